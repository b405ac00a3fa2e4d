"""A client that hangs up frees the backend, in every dialect, whole or streamed, waiting or in the middle. # A9"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.bench import HELLO, Bench, bench
from tests.scripted import Answer, chat_chunks

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 50},
}
GENEROUS_S = 30.0
"""Of a machine with much else to do; it takes some milliseconds (`python -m benchmarks.hangup`)."""


class Case(Struct):
    path: str
    streamed: bool = False
    relayed: bool = False
    rollout: bool = False


async def freed_after(at: Bench, case: Case) -> float:
    """Seconds from the client's hang-up to the backend's end of the connection."""
    before = at.backend.hung_up
    port = int(at.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = BODIES[case.path] | ({"stream": True} if case.streamed else {})
    writer.write(request(("/ng-rollout/r1" if case.rollout else "") + case.path, body))
    await until(lambda: len(at.backend.calls) > before)
    if case.relayed:
        await asyncio.wait_for(reader.readuntil(b"so"), 60)
    hung_up = time.monotonic()
    writer.close()
    await until(lambda: at.backend.hung_up > before)
    return at.backend.hung_up_at - hung_up


def request(path: str, body: dict[str, Any]) -> bytes:
    import json

    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - what is waited for happens on the backend's side
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("how", ["whole", "replayed", "relayed", "rollout"])
async def test_a_hang_up_frees_the_backend(tmp_path: Path, path: str, how: str) -> None:
    case = Case(path, streamed=how != "whole", relayed=how == "relayed", rollout=how == "rollout")
    chunks = [*chat_chunks({"content": "so "}, {"content": "far"}, finish=None), (600.0, b"")]
    answer = Answer(chunks=chunks) if case.relayed else Answer(hang=True)
    settings: dict[str, Any] = {"stream": "relay" if case.relayed else "replay", "repeat_grace_s": 0.0}
    async with bench(tmp_path, [answer], **settings) as at:
        assert 0 <= await freed_after(at, case) < GENEROUS_S
        await until(at.records)
        assert [record.status for record in at.records()] == ["disconnected"]
