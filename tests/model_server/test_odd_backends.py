"""Backends that do not keep to their API: what can be understood is, the rest is their failure and nobody else's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from tests.bench import HELLO, Bench, bench
from tests.scripted import (
    Answer,
    chat_chunks,
    chat_reply,
    messages_events,
    messages_reply,
    output_text,
    responses_events,
    responses_reply,
    tool_call,
)

pytestmark = pytest.mark.ci

PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
ASKED: dict[str, dict[str, Any]] = {
    "chat": {"messages": HELLO},
    "responses": {"input": "Hello"},
    "messages": {"messages": HELLO, "max_tokens": 100},
}


async def ask(at: Bench, dialect: str, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{at.url}/v1/{PATHS[dialect]}", json=ASKED[dialect] | more)


def frame(body: Any) -> tuple[float, bytes]:
    return 0.0, b"data: " + (body if isinstance(body, bytes) else msgspec.json.encode(body)) + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **choice: Any) -> tuple[float, bytes]:
    return frame({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish} | choice]})


def call(call_id: str, name: str = "f", arguments: str = "{}", index: int = 0) -> dict[str, Any]:
    return {"index": index, **tool_call(name, arguments, call_id)}


RELAYED: dict[str, tuple[list[tuple[float, bytes]], dict[str, Any]]] = {
    "an event without data": ([frame(b""), chunk({"content": "a"}), chunk({}, "stop")], {"content": "a"}),
    "thoughts under both their names": (
        [chunk({"reasoning": one, "reasoning_content": one}) for one in ("th", "ink")] + [chunk({}, "stop")],
        {"content": "", "reasoning_content": "think"},
    ),
    "content in parts": (
        [
            chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
            chunk({"content": [{"type": "text", "text": "Yes"}]}),
            chunk({"content": "."}, "stop"),
        ],
        {"content": "Yes.", "reasoning_content": "hm"},
    ),
    "each call numbered 0": (
        [
            chunk({"tool_calls": [call("a", "f", "{")]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}),
            chunk({"tool_calls": [call("b", "g", '{"x": 1}')]}, "tool_calls"),
        ],
        {"content": None, "tool_calls": [tool_call("f", "{}", "a"), tool_call("g", '{"x": 1}', "b")]},
    ),
    "a new id with each fragment": (
        [
            chunk({"tool_calls": [call("a", "f", "{")]}),
            chunk({"tool_calls": [{"index": 0, "id": "b", "function": {"arguments": "}"}}]}, "tool_calls"),
        ],
        {"content": None, "tool_calls": [tool_call("f", "{}", "b")]},
    ),
}


@pytest.mark.parametrize("name", RELAYED)
async def test_what_a_stream_says_in_its_own_way(tmp_path: Path, name: str) -> None:
    """V0 B5 P5: what is relayed, its record and the client's object say the same."""
    chunks, message = RELAYED[name]
    answers = [Answer(chunks=[*chunks, frame(b"[DONE]")])]
    async with bench(tmp_path, answers, stream="relay") as at:
        async with at.client().chat.completions.stream(model="m", messages=HELLO) as stream:
            found = (await stream.get_final_completion()).choices[0].message
        (record,) = at.records()
    told = found.model_dump(exclude_none=True, exclude={"parsed": True})
    for one in told.get("tool_calls", ()):
        one.pop("index", None)
        one["function"].pop("parsed_arguments", None)
    assert told == {key: value for key, value in message.items() if value is not None} | {"role": "assistant"}
    texts = [part.text for part in record.reply.choices[0].parts if hasattr(part, "text")]
    assert texts == [message[key] for key in ("reasoning_content", "content") if message.get(key)]


@pytest.mark.parametrize(
    ("event", "status", "words"),
    [
        ({"choices": [{"index": "0", "delta": {"content": "x"}}]}, 502, "The backend's stream is malformed."),
        ({"error": {"message": "said so", "code": 429}}, 429, "said so"),
        ({"object": "error", "message": "said so", "code": 400}, 400, "said so"),
    ],
)
async def test_a_stream_that_fails_at_once(tmp_path: Path, event: Any, status: int, words: str) -> None:  # A5 A7
    async with bench(tmp_path, [Answer(chunks=[frame(event)])], stream="relay") as at:
        answer = await ask(at, "chat", stream=True)
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, words)


@pytest.mark.parametrize(
    ("api", "body", "status"),
    [
        ("chat", {"error": {"message": "said so", "type": "t", "code": 429}}, 429),
        ("chat", {"error": {"message": "said so", "type": "t", "code": "c"}}, 502),
        ("responses", {"error": {"message": "said so", "type": "t", "code": "c"}}, 502),
        ("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "said so"}}, 529),
    ],
)
@pytest.mark.parametrize("stream", ["replay", "relay"])
async def test_an_error_in_the_place_of_a_reply(
    tmp_path: Path, api: str, body: Any, status: int, stream: str
) -> None:  # A5
    answers = [Answer(body) if stream == "replay" else Answer(chunks=[frame(body)])]
    async with bench(tmp_path, answers, api=api, stream=stream) as at:
        found = [await ask(at, dialect, stream=stream == "relay") for dialect in PATHS]
    assert [one.status_code for one in found] == [status] * 3
    assert [one.json()["error"]["message"] for one in found] == ["said so"] * 3


async def test_a_code_that_is_a_number_is_passed_on(tmp_path: Path) -> None:  # A5
    error = {"message": "no", "type": "BadRequestError", "param": None, "code": 400}
    async with bench(tmp_path, [Answer({"error": error}, 400)]) as at:
        found = [(await ask(at, dialect)).json()["error"] for dialect in ("chat", "responses")]
    assert found == [error | {"code": "400"}] * 2


async def test_counts_that_are_none_are_unknown(tmp_path: Path) -> None:  # R29
    usages = [{"input_tokens": "3", "output_tokens": -4}, {"input_tokens": 3.0, "output_tokens": 4}]
    for api, made in (("responses", responses_reply), ("messages", messages_reply)):
        answers = [Answer(made(usage=usage)) for usage in usages]
        async with bench(tmp_path / api, answers, api=api) as at:
            found = [(await ask(at, "responses")).json()["usage"] for _ in usages]
            counts = {(one.reply.usage.prompt, one.reply.usage.completion) for one in at.records()}
        assert found[0] is None
        assert (found[1]["input_tokens"], found[1]["total_tokens"]) == (3, 7)
        assert counts == {(None, None), (3, 4)}


async def test_an_item_without_a_type_is_no_item(tmp_path: Path) -> None:  # A5 R32
    async with bench(tmp_path, [Answer(responses_reply({"id": "x"}))], api="responses") as at:
        assert (await ask(at, "responses")).status_code == 502


@pytest.mark.parametrize("stream", ["replay", "relay"])
async def test_two_calls_never_share_an_id(tmp_path: Path, stream: str) -> None:
    """R10: results bind by it, and the SDK of Responses accepts no stream in which they do."""
    calls = [tool_call(name, "{}", "a") for name in "fgh"] + [tool_call("i", "{}", "a_2")]
    chunks = chat_chunks({"tool_calls": [{"index": n} | one for n, one in enumerate(calls)]}, finish="tool_calls")
    answers = [Answer(chat_reply(None, message={"tool_calls": calls})) if stream == "replay" else Answer(chunks=chunks)]
    expected = [("a", "f"), ("a_3", "g"), ("a_4", "h"), ("a_2", "i")]
    async with bench(tmp_path, answers, stream=stream) as at:
        async with at.client().responses.stream(model="m", input="x") as events:
            output = (await events.get_final_response()).output
        (record,) = at.records()
    assert [(one.call_id, one.name) for one in output if one.type == "function_call"] == expected
    assert len({one.id for one in output}) == 4
    assert [(part.call_id, part.name) for part in record.reply.choices[0].parts] == expected


async def test_no_choices_is_an_object_too(tmp_path: Path) -> None:  # B3 B7
    async with bench(tmp_path, [Answer(chat_reply() | {"choices": []})]) as at:
        for options in ({}, {"stream_options": {"include_usage": True}}):
            async with at.client().chat.completions.stream(model="m", messages=HELLO, **options) as stream:
                found = await stream.get_final_completion()
            assert (found.id, found.choices) == ("chatcmpl-scripted", [])


@pytest.mark.parametrize("stream", ["replay", "relay"])
async def test_a_choice_that_is_left_out_is_a_failure(tmp_path: Path, stream: str) -> None:  # B3 A5 A7
    """Of two choices a backend answers the second alone: the first could never end."""
    second = chat_reply("b", choice={"index": 1})
    relayed = [chunk({"content": "b"}, index=1), chunk({}, "stop", index=1), frame(b"[DONE]")]
    answers = [Answer(second), Answer(second) if stream == "replay" else Answer(chunks=relayed)]
    async with bench(tmp_path, answers, stream=stream) as at:
        unstreamed = await ask(at, "chat", n=2)
        streamed = await ask(at, "chat", n=2, stream=True)
        records = at.records()
    assert unstreamed.status_code == 502
    assert "it has no choice 0" in unstreamed.json()["error"]["message"]
    assert streamed.status_code == (502 if stream == "replay" else 200)
    assert "it has no choice 0" in streamed.text
    assert '"finish_reason":"stop"' not in streamed.text
    assert [record.status for record in records] == ["failed", "failed"]


async def test_a_stop_string_behind_calls(tmp_path: Path) -> None:  # B5
    reply = chat_reply(None, message={"tool_calls": [tool_call("f", "{}")]}, finish_reason="stop")
    reply["choices"][0]["stop_reason"] = "</tools>"
    async with bench(tmp_path, [Answer(reply)]) as at:
        assert (await ask(at, "chat")).json()["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("arguments", ["", '{"a": '])
async def test_a_call_that_was_cut_off(tmp_path: Path, arguments: str) -> None:  # A19
    reply = chat_reply("x", message={"tool_calls": [tool_call("f", arguments)]}, finish_reason="length")
    item = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": arguments}
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    said = responses_reply(output_text("x"), item | {"status": "completed"}, **cut)
    for api, body in (("chat", reply), ("responses", said)):
        async with bench(tmp_path / api, [Answer(body)], api=api) as at:
            chat, responses, messages = [(await ask(at, dialect)).json() for dialect in PATHS]
        assert chat["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments
        assert [one["type"] for one in responses["output"]] == ["message"]
        assert ([one["type"] for one in messages["content"]], messages["stop_reason"]) == (["text"], "max_tokens")


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": 1e999}', "[1]", "{"])
async def test_arguments_that_are_no_object_are_none(tmp_path: Path, arguments: str) -> None:  # M5
    async with bench(tmp_path, [Answer(chat_reply(None, message={"tool_calls": [tool_call("f", arguments)]}))]) as at:
        whole = (await ask(at, "messages")).json()["content"][0]
        async with at.anthropic().messages.stream(model="m", max_tokens=9, messages=HELLO) as stream:
            streamed = (await stream.get_final_message()).content[0]
        chat = (await ask(at, "chat")).json()["choices"][0]["message"]["tool_calls"][0]
    assert (whole["input"], streamed.input) == ({}, {})
    assert chat["function"]["arguments"] == arguments


@pytest.mark.parametrize("stream", ["replay", "relay"])
async def test_a_cancelled_response_has_not_stopped(tmp_path: Path, stream: str) -> None:  # A19 R27
    reply = responses_reply(output_text("So far"), status="cancelled")
    answers = [Answer(reply) if stream == "replay" else Answer(chunks=responses_events(reply))]
    async with bench(tmp_path, answers, api="responses", stream=stream) as at:
        chat = await ask(at, "chat", stream=stream == "relay")
        messages = await ask(at, "messages", stream=stream == "relay")
        assert {one.status for one in at.records()} == {"failed"}
    for found in (chat, messages):
        assert found.status_code == (502 if stream == "replay" else 200)
        assert "the backend cancelled the reply" in found.text


async def test_a_message_without_its_start(tmp_path: Path) -> None:  # A5
    events = messages_events(messages_reply())[1:]
    async with bench(tmp_path, [Answer(chunks=events)], api="messages", stream="relay") as at:
        found = await ask(at, "messages", stream=True)
    assert (found.status_code, json.loads(found.content)["error"]["message"]) == (
        502,
        "The backend's stream is malformed.",
    )


async def test_the_stock_client_reads_what_a_route_refuses(tmp_path: Path) -> None:  # A1 A5
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await at.client().responses.retrieve("resp_none")
        refused = {
            path: await client.request(method, path)
            for method, path in (("GET", "/v1/responses"), ("POST", "/v1/models"), ("DELETE", "/policy_version"))
        }
        head = await client.head("/v1/responses/resp_none")
    assert missing.value.type == "not_found_error"
    assert {one.status_code for one in refused.values()} == {405}
    assert [one.headers["allow"] for one in refused.values()] == ["POST", "GET, HEAD", "GET, PUT"]
    assert {one.json()["error"]["type"] for one in refused.values()} == {"invalid_request_error"}
    assert (head.status_code, head.content) == (404, b"")
