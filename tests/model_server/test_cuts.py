"""A backend whose answer ends anywhere: the client is told, the record agrees, nothing hangs. # A5 A7 A19 V0"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import pytest

from tests.bench import HELLO, TOOL, bench
from tests.scripted import Answer, chat_chunks, chat_reply, tool_call

T = TypeVar("T")
STEPS = pytest.mark.parametrize("step", [67, pytest.param(1, marks=pytest.mark.ci)])
REPLY = chat_reply("Let me see.", message={"tool_calls": [tool_call("get_weather", '{"city": "Rome"}')]})
BODY: dict[str, Any] = {"messages": HELLO, "tools": [TOOL]}
AT_ONCE = 16


def asked(cut: int, **more: Any) -> dict[str, Any]:
    """A request that says where its answer is to be cut, so that many may run at once."""
    return BODY | {"messages": [{"role": "user", "content": str(cut)}]} | more


def cut_of(request: Any) -> int:
    return int(request.json()["messages"][0]["content"])


async def each(cuts: range, ask: Callable[[int], Awaitable[T]]) -> dict[int, T]:
    """What every cut gave, some of them at a time."""
    left = iter(cuts)
    gave: dict[int, T] = {}

    async def some() -> None:
        for cut in left:
            gave[cut] = await ask(cut)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())
    return gave


@STEPS
async def test_a_reply_cut_at_every_byte(tmp_path: Path, step: int) -> None:
    cuts = range(0, len(msgspec.json.encode(REPLY)), step)

    def answer(request: Any) -> Answer:
        return Answer(REPLY, cut=cut_of(request)) if request.asks else Answer({"data": []})

    async with bench(tmp_path, answer, capture={"durability": "none"}) as at, httpx.AsyncClient(timeout=60) as client:

        async def ask(cut: int) -> httpx.Response:
            url = f"{at.url}/ng-rollout/r{cut}/v1/chat/completions"
            return await client.post(url, json=asked(cut, stream=cut % 2 == 1))

        gave = await each(cuts, ask)
    assert sorted(gave) == list(cuts)
    for cut, got in gave.items():
        assert got.status_code == 502, cut
        assert "127.0.0.1" not in got.text
    records = sorted((one.rollout_id, one.status, one.error.kind, one.reply) for one in at.records())
    assert records == sorted((f"r{cut}", "failed", "backend", None) for cut in cuts)


@STEPS
async def test_a_relayed_stream_cut_at_every_byte(tmp_path: Path, step: int) -> None:
    call = {"index": 0, **tool_call("get_weather", '{"city": "Rome"}')}
    pieces = chat_chunks({"role": "assistant", "content": "Let me "}, {"content": "see."}, {"tool_calls": [call]})
    whole = b"".join(data for _, data in pieces)
    cuts = range(0, len(whole) + 1, step)

    def answer(request: Any) -> Answer:
        return Answer(chunks=[(0.0, whole[: cut_of(request)])]) if request.asks else Answer({"data": []})

    capture = {"durability": "none"}
    async with bench(tmp_path, answer, stream="relay", capture=capture) as at, httpx.AsyncClient(timeout=60) as client:

        async def ask(cut: int) -> httpx.Response:
            return await client.post(f"{at.url}/ng-rollout/r{cut}/v1/chat/completions", json=asked(cut, stream=True))

        gave = await each(cuts, ask)
    assert sorted(gave) == list(cuts)
    kept = at.records()
    records = {one.rollout_id: one for one in kept}
    assert len(records) == len(kept) == len(cuts)
    for cut, got in gave.items():
        check(got, records[f"r{cut}"])


def check(got: httpx.Response, record: Any) -> None:
    """What the client has of a stream that may have been cut agrees with the record."""
    if got.status_code != 200:  # nothing had been said yet
        assert (got.status_code, record.status) == (502, "failed")
        return
    events = [json.loads(line[6:]) for line in got.text.split("\n\n") if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event.get("choices", ())]
    said = "".join(delta.get("content") or "" for delta in deltas)
    assert "Let me see.".startswith(said)
    assert got.text.endswith("data: [DONE]\n\n")
    called = [one for delta in deltas for one in delta.get("tool_calls") or ()]
    if record.status == "answered":
        assert record.reply.choices[0].parts[1].arguments == '{"city": "Rome"}'
        assert said == "Let me see." and called
    else:
        # Agents run a tool as soon as its call is closed: none of a reply that failed.
        assert not called
        assert "error" in events[-1]
        assert record.status == "failed"


async def test_a_backend_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    async with bench(tmp_path, [Answer(hang=True)], timeout_s=0.5) as at, httpx.AsyncClient(timeout=60) as client:
        got = await client.post(f"{at.url}/ng-rollout/r1/v1/chat/completions", json=BODY)
        assert got.status_code == 504
        assert "timeout_s" in got.json()["error"]["message"]
        (record,) = at.records()
    assert (record.status, record.error.kind) == ("failed", "timeout")
    assert [attempt.error for attempt in record.attempts] == ["timeout"]
