"""Text goes out while the backend generates; what an agent acts on waits for the record. # A7 A8 A9"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.bench import HELLO, TOOL, Bench, bench
from tests.scripted import Answer, chat_chunks, chat_reply

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": '}}
REST = {"index": 0, "function": {"arguments": '"Rome"}'}}
BODY: dict[str, Any] = {"messages": HELLO, "tools": [TOOL], "stream": True, "stream_options": {"include_usage": True}}


async def lines(at: Bench, body: dict[str, Any], path: str = "chat/completions") -> list[tuple[float, Any]]:
    """Every event, with the seconds since the first byte was asked for."""
    begun = time.monotonic()
    found = []
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{at.url}/ng-rollout/r1/v1/{path}", json=body) as answer,
    ):
        if answer.status_code != 200:
            await answer.aread()
            return [(0.0, (answer.status_code, answer.json()))]
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                found.append((time.monotonic() - begun, json.loads(line[6:])))
    return found


async def hang_up_at(at: Bench, word: str) -> None:
    """A client that goes as soon as it has read this."""
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{at.url}/ng-rollout/r1/v1/chat/completions", json=BODY) as answer,
    ):
        async for line in answer.aiter_lines():
            if word in line:
                return


def deltas(events: list[tuple[float, Any]]) -> list[tuple[float, Any]]:
    return [(at, e["choices"][0]["delta"]) for at, e in events if e.get("choices")]


async def test_text_flows_and_tool_calls_wait_for_the_record(tmp_path: Path) -> None:  # A8 B5
    chunks = chat_chunks(
        {"role": "assistant", "content": "Let "},
        {"content": "me see."},
        {"tool_calls": [CALL]},
        {"tool_calls": [REST]},
        delay=0.3,
        finish="tool_calls",
    )
    async with bench(tmp_path, [Answer(chunks=chunks)], stream="relay") as at:
        events = await lines(at, BODY)
        assert at.backend.calls[0].json()["stream"] is True
        (record,) = at.records()
    said = {text: when for when, delta in deltas(events) if (text := delta.get("content"))}
    assert list(said) == ["Let ", "me see."]
    assert said["Let "] < said["me see."] - 0.2
    calls = [(when, delta) for when, delta in deltas(events) if delta.get("tool_calls")]
    assert calls[0][0] > said["me see."] + 0.5
    assert calls[0][1]["tool_calls"][0]["id"] == "call_1"
    assert "".join(d["tool_calls"][0]["function"]["arguments"] for _, d in calls) == '{"city": "Rome"}'
    assert {event["id"] for _, event in events} == {record.reply.id} == {"chatcmpl-scripted"}  # A15
    assert {event["model"] for _, event in events} == {"scripted-model"}
    assert events[-1][1]["usage"]["total_tokens"] == 14
    assert record.times.first_token is not None
    assert [part.text for part in record.reply.choices[0].parts[:1]] == ["Let me see."]


async def test_a_call_that_is_long_held_back_is_kept_alive(tmp_path: Path) -> None:  # A7
    chunks = chat_chunks({"content": "x"}, {"tool_calls": [CALL]}, {"tool_calls": [REST]}, delay=0.3)
    async with bench(tmp_path, [Answer(chunks=chunks)], stream="relay", keepalive_s=0.1) as at:
        events = await lines(at, BODY)
    empty = [when for when, delta in deltas(events) if delta == {}]
    assert len(empty) >= 5


async def test_responses_are_relayed_too(tmp_path: Path) -> None:  # A8 R21
    chunks = chat_chunks({"reasoning_content": "hm"}, {"content": "Hello "}, {"content": "you"}, delay=0.2)
    async with bench(tmp_path, [Answer(chunks=chunks)], stream="relay") as at:
        events = await lines(at, {"input": "x", "stream": True}, "responses")
        (record,) = at.records()
    texts = [(when, e["delta"]) for when, e in events if e["type"] == "response.output_text.delta"]
    assert [text for _, text in texts] == ["Hello ", "you"]
    assert texts[1][0] - texts[0][0] > 0.1
    assert [e["sequence_number"] for _, e in events] == list(range(len(events)))
    assert events[-1][1]["type"] == "response.completed"
    assert events[-1][1]["response"]["id"] == record.reply.id


async def test_a_failure_before_the_first_increment_keeps_its_status(tmp_path: Path) -> None:  # A7
    answers = [Answer({"error": {"message": "busy"}}, 503), Answer({"error": {"message": "no"}}, 400)]
    async with bench(tmp_path, answers, stream="relay", retries=1) as at:
        ((_, (status, body)),) = await lines(at, BODY)
        assert (status, body["error"]["message"]) == (400, "no")
        (record,) = at.records()
    assert [attempt.error for attempt in record.attempts] == ["overloaded", "invalid"]


async def test_a_stream_that_breaks_is_an_error_in_the_stream_and_not_asked_again(tmp_path: Path) -> None:  # A7 A19
    chunks = chat_chunks({"content": "half"}, {"content": " a"}, delay=0.1, finish=None)
    async with bench(tmp_path, [Answer(chunks=chunks)], stream="relay", retries=3) as at:
        events = await lines(at, BODY)
        assert len(at.backend.calls) == 1
        (record,) = at.records()
    assert "error" in events[-1][1]
    assert record.status == "failed"


@pytest.mark.parametrize("finish", ["abort", "error"])
async def test_a_reply_that_was_aborted_has_failed(tmp_path: Path, finish: str) -> None:  # A19
    chunks = chat_chunks({"content": "half"}, finish=finish)
    answers = [Answer(chunks=chunks), Answer(chat_reply(finish_reason=finish)), Answer(chat_reply(finish_reason=None))]
    async with bench(tmp_path, answers, stream="relay") as at:
        assert "error" in (await lines(at, BODY))[-1][1]
        async with httpx.AsyncClient(base_url=at.url, timeout=60) as client:
            for _ in range(2):
                assert (await client.post("/v1/chat/completions", json={"messages": HELLO})).status_code == 502
        assert [record.status for record in at.records()] == ["failed"] * 3


async def test_a_hang_up_is_recorded_with_what_had_come(tmp_path: Path) -> None:  # A9
    chunks = [*chat_chunks({"content": "so "}, {"content": "far"}, delay=0.05, finish=None), (30.0, b"")]
    async with bench(tmp_path, [Answer(chunks=chunks)], stream="relay", repeat_grace_s=0.1) as at:
        await hang_up_at(at, "far")
        async with asyncio.timeout(60):
            while not (at.records() and at.backend.hung_up):  # noqa: ASYNC110 - it happens elsewhere
                await asyncio.sleep(0.02)
        (record,) = at.records()
        assert at.backend.hung_up == 1
    assert record.status == "disconnected"
    assert record.reply.choices[0].finish == "cancelled"
    assert [part.text for part in record.reply.choices[0].parts] == ["so far"]


async def test_a_repeat_takes_over_a_relay_from_its_beginning(tmp_path: Path) -> None:  # A16
    chunks = chat_chunks({"content": "one "}, {"content": "two "}, {"content": "three"}, delay=0.4)
    async with bench(tmp_path, [Answer(chunks=chunks)], stream="relay") as at:
        await hang_up_at(at, "one ")
        events = await lines(at, BODY)
        assert len(at.backend.calls) == 1
        records = at.records()
    assert "".join(delta.get("content") or "" for _, delta in deltas(events)) == "one two three"
    assert sorted(record.relation for record in records) == ["first", "repeat"]


async def test_a_backend_that_does_not_stream_is_replayed(tmp_path: Path) -> None:
    async with bench(tmp_path, [Answer(chat_reply("whole"))], stream="relay") as at:
        events = await lines(at, BODY)
        assert "".join(delta.get("content") or "" for _, delta in deltas(events)) == "whole"
