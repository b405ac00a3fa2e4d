"""A backend whose answer ends anywhere: the client is told, the record agrees, nothing hangs. # A5 A7 A19 V0"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.bench import HELLO, TOOL, bench
from tests.scripted import Answer, chat_chunks, chat_reply, tool_call

STEPS = pytest.mark.parametrize("step", [67, pytest.param(1, marks=pytest.mark.ci)])
REPLY = chat_reply("Let me see.", message={"tool_calls": [tool_call("get_weather", '{"city": "Rome"}')]})
BODY: dict[str, Any] = {"messages": HELLO, "tools": [TOOL]}


@STEPS
async def test_a_reply_cut_at_every_byte(tmp_path: Path, step: int) -> None:
    whole = msgspec.json.encode(REPLY)
    cuts = iter(range(0, len(whole), step))

    def answer(request: Any) -> Answer:
        return Answer(REPLY, cut=next(cuts)) if request.asks else Answer({"data": []})

    count = len(range(0, len(whole), step))
    async with bench(tmp_path, answer, capture={"durability": "none"}) as at, httpx.AsyncClient(timeout=60) as client:
        url = f"{at.url}/ng-rollout/r1/v1/chat/completions"
        for number in range(count):
            got = await client.post(url, json=BODY | {"stream": number % 2 == 1})
            assert got.status_code == 502, number
            assert "127.0.0.1" not in got.text
    records = at.records()
    assert [(one.status, one.error.kind, one.reply) for one in records] == [("failed", "backend", None)] * count


@STEPS
async def test_a_relayed_stream_cut_at_every_byte(tmp_path: Path, step: int) -> None:
    call = {"index": 0, **tool_call("get_weather", '{"city": "Rome"}')}
    pieces = chat_chunks({"role": "assistant", "content": "Let me "}, {"content": "see."}, {"tool_calls": [call]})
    whole = b"".join(data for _, data in pieces)
    cuts = iter(range(0, len(whole) + 1, step))

    def answer(request: Any) -> Answer:
        return Answer(chunks=[(0.0, whole[: next(cuts)])]) if request.asks else Answer({"data": []})

    count = len(range(0, len(whole) + 1, step))
    streams: list[tuple[int, str]] = []
    capture = {"durability": "none"}
    async with bench(tmp_path, answer, stream="relay", capture=capture) as at, httpx.AsyncClient(timeout=60) as client:
        url = f"{at.url}/ng-rollout/r1/v1/chat/completions"
        for _ in range(count):
            got = await client.post(url, json=BODY | {"stream": True})
            streams.append((got.status_code, got.text))
    records = at.records()
    assert len(records) == count
    for (status, text), record in zip(streams, records, strict=True):
        if status != 200:  # nothing had been said yet
            assert (status, record.status) == (502, "failed")
            continue
        events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
        deltas = [choice["delta"] for event in events for choice in event.get("choices", ())]
        said = "".join(delta.get("content") or "" for delta in deltas)
        assert "Let me see.".startswith(said)
        assert text.endswith("data: [DONE]\n\n")
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
