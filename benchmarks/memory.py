"""What a model server takes of memory: a slow stream, and a long run of small calls.

    python -m benchmarks.memory                       # 1,000 streams with bodies of 2 kB and of 200 kB, 200,000 calls
    python -m benchmarks.memory --streams 300 --calls 20000

The server runs as `ng_run` runs it, capture on, every record synced, and is a process of its own; the figures are its
resident set. A stream is relayed from a backend that gives a piece every second; all of them run at once, and each is
read to its end. Asked for: less than 64 KiB and twice its body a stream, none cut; no growth after 10,000 small calls.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

HOST = "127.0.0.1"
PIECES = 12
EVERY_S = 1.0
CALLS_AT_ONCE = 32
CALLS_A_ROLLOUT = 8
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Streams(Struct):
    """What many streams at once took."""

    count: int
    body: int
    before: int
    peak: int
    after: int
    whole: int
    """Streams that came to their proper end, with every piece."""

    @property
    def each(self) -> float:
        return (self.peak - self.before) / self.count

    @property
    def allowed(self) -> float:
        return 64 * 1024 + 2 * self.body


# ---- the backend


class Slow(asyncio.Protocol):
    """A stream where one is asked for, a piece at a time; else a small reply at once."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.data = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.data[:end]).lower()
            place = head.find(b"content-length:")
            size = int(head[place + 15 :].split(b"\r\n")[0]) if place >= 0 else 0
            if len(self.data) < end + 4 + size:
                return
            streamed = b'"stream":true' in self.data
            del self.data[: end + 4 + size]
            if streamed:
                self.task = asyncio.ensure_future(self._stream())
            else:
                self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + _length(REPLY) + REPLY)

    async def _stream(self) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for number in range(PIECES):
            delta = {"content": f"piece {number}. "}
            self.transport.write(_event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
            await asyncio.sleep(EVERY_S)
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        self.transport.write(_event(end) + b"data: [DONE]\n\n")
        self.transport.close()


def _length(data: bytes) -> bytes:
    return b"content-length: %d\r\n\r\n" % len(data)


def _event(body: dict[str, Any]) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
    return b"data: " + msgspec.json.encode(head | body) + b"\n\n"


REPLY = msgspec.json.encode(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
    }
)


# ---- the server


def ours(url: str, captures: str, max_shard_bytes: int) -> Any:
    from nemo_gym.model_server.app import ModelApp
    from nemo_gym.web.peers import ServerClient
    from nemo_gym.web.service import ServerContext
    from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig

    settings = {"base_url": url, "model": "m", "return_token_ids": False, "stream": "relay", "max_in_flight": 4096}
    config = VLLMModelConfig(name="policy_model", **settings)
    capture = {"dir": captures, "max_shard_bytes": max_shard_bytes}
    context = ServerContext("policy_model", "responses_api_models", "vllm_model", {}, run_id="bench", capture=capture)
    return ModelApp(VLLMModel(config=config, server_client=ServerClient({})), context)


def role(arguments: argparse.Namespace) -> None:
    import uvloop

    from nemo_gym.web.serve import serve
    from nemo_gym.web.service import _raise_file_limit

    _raise_file_limit()
    sock = socket.socket(fileno=arguments.fd)
    if arguments.role == "server":
        serve(ours(arguments.url, arguments.captures, arguments.shard_bytes), sock)
        return

    async def backend() -> None:
        server = await asyncio.get_running_loop().create_server(Slow, sock=sock, backlog=4096)
        await server.serve_forever()

    uvloop.run(backend())


@contextlib.contextmanager
def process(kind: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Its port and its pid."""
    sock = socket.socket()
    sock.bind((HOST, 0))
    sock.listen(4096)
    argv = [sys.executable, "-m", "benchmarks.memory", "--role", kind, "--fd", str(sock.fileno()), *arguments]
    child = subprocess.Popen(argv, pass_fds=[sock.fileno()])
    try:
        yield sock.getsockname()[1], child.pid
    finally:
        sock.close()
        child.terminate()
        child.wait()


@contextlib.contextmanager
def served(max_shard_bytes: int = 256 << 20) -> Iterator[tuple[int, int]]:
    """A model server before the backend: its port and its pid."""
    with contextlib.ExitStack() as stack:
        captures = stack.enter_context(tempfile.TemporaryDirectory())
        port, _ = stack.enter_context(process("backend"))
        told = ["--url", f"http://{HOST}:{port}/v1", "--captures", captures, "--shard-bytes", str(max_shard_bytes)]
        yield stack.enter_context(process("server", *told))


# ---- load


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * _PAGE


def _request(rollout: str, body: dict[str, Any]) -> bytes:
    data = msgspec.json.encode(body)
    head = f"POST /ng-rollout/{rollout}/v1/chat/completions HTTP/1.1\r\nhost: x\r\n".encode()
    return head + _length(data) + data


async def _stream(port: int, name: str, size: int) -> bool:
    """One stream, read to its end; whether it was whole."""
    text = f"{name} " + "x" * size
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(_request(name, {"messages": [{"role": "user", "content": text}], "stream": True}))
    await writer.drain()
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            return False
        data = await reader.readuntil(b"\r\n0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    finally:
        writer.close()
    return all(f"piece {number}. ".encode() in data for number in range(PIECES)) and b"data: [DONE]\n\n" in data


async def streams(port: int, pid: int, count: int, size: int) -> Streams:
    await asyncio.gather(*(_stream(port, f"warm{size}-{number}", size) for number in range(min(count, 16))))
    before = peak = resident(pid)
    running = asyncio.gather(*(_stream(port, f"s{size}-{number}", size) for number in range(count)))
    while not running.done():
        peak = max(peak, resident(pid))
        await asyncio.wait({running}, timeout=0.1)
    return Streams(count, size, before, peak, resident(pid), sum(running.result()))


async def calls(port: int, pid: int, count: int, marks: list[int]) -> list[int]:
    """The resident set after so many calls as `marks` say; each rollout has a few, and is sealed."""
    found: list[int] = []
    done = 0

    async def client(first: int) -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection(HOST, port)

        async def ask(request: bytes) -> None:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b" 200 " in head[:20], head
            size = int(head[head.find(b"content-length:") + 15 :].split(b"\r\n")[0])
            await reader.readexactly(size)

        for number in range(first, count // CALLS_A_ROLLOUT, CALLS_AT_ONCE):
            for turn in range(CALLS_A_ROLLOUT):
                messages = [{"role": "user", "content": f"call {number} of turn {turn}"}]
                await ask(_request(f"c{number}", {"messages": messages}))
                done += 1
                if len(found) < len(marks) and done >= marks[len(found)]:
                    found.append(resident(pid))
            await ask(f"POST /ng-rollout/c{number}/seal HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
        writer.close()

    await asyncio.gather(*(client(first) for first in range(CALLS_AT_ONCE)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=200_000)
    for hidden in ("--role", "--url", "--captures"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--shard-bytes", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        role(arguments)
        return
    from nemo_gym.web.service import _raise_file_limit

    _raise_file_limit()
    for size in (2_000, 200_000) if arguments.streams else ():
        with served() as (port, pid):
            found = asyncio.run(streams(port, pid, arguments.streams, size))
        print(
            f"{found.count} streams, bodies of {size // 1000} kB: {found.each / 1024:.0f} KiB each, "
            f"asked for under {found.allowed / 1024:.0f}; {found.count - found.whole} cut; "
            f"{found.before >> 20} MiB before, {found.peak >> 20} at most, {found.after >> 20} after",
            flush=True,
        )
    if arguments.calls:
        marks = [count for count in (2_000, 10_000, 50_000, 100_000, 150_000, 200_000) if count <= arguments.calls]
        with served() as (port, pid):
            sizes = asyncio.run(calls(port, pid, arguments.calls, marks))
        print(
            "small calls:",
            ", ".join(f"{size >> 20} MiB after {mark:,}" for mark, size in zip(marks, sizes, strict=True)),
        )


if __name__ == "__main__":
    main()
