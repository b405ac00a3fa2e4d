"""Clients of a model server in a process of their own, on bare sockets: their cost is small, and is not the server's.

The process gets a turn's calls as a line of JSON and answers with what they took. Connections stay open from turn to
turn, as a client's do.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from msgspec import Struct

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Calls(Struct):
    """One turn: `calls` requests, `concurrent` at a time, each in a rollout of its own."""

    body: dict[str, Any]
    concurrent: int
    calls: int
    tokens: int
    """That every reply has to have."""


class Taken(Struct):
    seconds: float
    """Of the median call."""
    rate: float
    """Calls a second."""


class _Usage(Struct):
    completion_tokens: int


class _Reply(Struct):
    usage: _Usage


class Clients:
    """The process, as whoever measures has it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, calls: Calls) -> Taken:
        to, told = self._process.stdin, self._process.stdout
        assert to is not None and told is not None
        to.write(msgspec.json.encode(calls) + b"\n")
        line = await told.readline()
        if not line:
            raise RuntimeError("the clients' process has ended")
        return msgspec.json.decode(line, type=Taken)


@contextlib.asynccontextmanager
async def clients(port: int) -> AsyncIterator[Clients]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.asking", str(port), stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None
    try:
        yield Clients(process)
    finally:
        process.stdin.close()
        await process.wait()


# ---- in that process


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    streams: list[Streams] = []
    turn = 0
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        told = msgspec.json.decode(line, type=Calls)
        turn += 1
        while len(streams) < told.concurrent:
            streams.append(await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))
        taken = await _taken(told, streams[: told.concurrent], turn)
        sys.stdout.buffer.write(msgspec.json.encode(taken) + b"\n")
        sys.stdout.buffer.flush()


async def _taken(told: Calls, streams: list[Streams], turn: int) -> Taken:
    data = msgspec.json.encode(told.body)
    rest = f"/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    requests = (f"POST /ng-rollout/r{turn}-{n}{rest}\r\n\r\n".encode() + data for n in range(told.calls))
    seconds: list[float] = []
    begun = time.perf_counter()
    await asyncio.gather(*(_ask(one, requests, told.tokens, seconds) for one in streams))
    return Taken(statistics.median(seconds), told.calls / (time.perf_counter() - begun))


async def _ask(streams: Streams, requests: Iterator[bytes], tokens: int, seconds: list[float]) -> None:
    reader, writer = streams
    for request in requests:
        begun = time.perf_counter()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        body = await reader.readexactly(size)
        seconds.append(time.perf_counter() - begun)
        assert head.startswith(b"http/1.1 200"), head + body
        assert msgspec.json.decode(body, type=_Reply).usage.completion_tokens == tokens, body


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(int(sys.argv[1])))
