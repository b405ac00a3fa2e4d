"""Every client dialect over every backend dialect: one conversation, one reply, each end and each failure. # V0"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.bench import Bench, bench
from tests.dialects import wires
from tests.dialects.wires import DIALECTS
from tests.scripted import (
    Answer,
    Request,
    chat_reply,
    messages_events,
    messages_reply,
    output_text,
    responses_events,
    responses_reply,
)

SQUARE = list(itertools.product(DIALECTS, DIALECTS))
pairs = pytest.mark.parametrize(("client", "backend"), SQUARE, ids=[f"{a}-over-{b}" for a, b in SQUARE])


def over(tmp_path: Path, backend: str, *answers: Answer, **settings: Any) -> Any:
    return bench(tmp_path, list(answers), api=backend, **settings)


def reasoning(client: str, backend: str) -> list[tuple[Any, ...]]:
    """A thought of an earlier turn: a provider takes back only what it signed, and this chat client's is not."""
    if backend == "chat":
        return [("reasoning", "Two at once.")]
    return [] if client == "chat" else [("reasoning", "Two at once.", "sealed")]


@pairs
async def test_a_conversation_reaches_the_backend_whole(tmp_path: Path, client: str, backend: str) -> None:
    async with over(tmp_path, backend, Answer(wires.reply(backend))) as at:
        for streamed in (False, True):
            await wires.ask(at, client, wires.request(client), streamed)
        bodies = [request.json() for request in at.backend.calls]
    for body in bodies:
        assert body["model"] == "scripted-model"
        assert wires.asked(backend, body) == wires.said(reasoning(client, backend))


ENDS = {"chat": "tool_calls", "responses": ("completed", None), "messages": ("tool_use", None)}


@pairs
async def test_a_reply_is_the_same_in_every_view(tmp_path: Path, client: str, backend: str) -> None:  # V0
    async with over(tmp_path, backend, Answer(wires.reply(backend))) as at:
        views = [await wires.ask(at, client, wires.request(client), streamed) for streamed in (False, True)]
        records = at.records()
    for form, end in views:
        assert form == [
            ("reasoning", "Hm."),
            ("text", "Both."),
            ("call", "call_1", "get_weather", {"city": "Oslo"}),
            ("call", "call_2", "get_weather", {"city": "Rome"}),
            ("usage", 11, 3, 4),
        ]
        assert end == ENDS[client]
    assert [(record.dialect, record.backend_dialect, record.streamed) for record in records] == [
        (client, backend, False),
        (client, backend, True),
    ]
    for record in records:
        thought, text, *calls = record.reply.choices[0].parts
        assert (thought.text, text.text) == ("Hm.", "Both.")
        assert [(call.call_id, call.name) for call in calls] == [("call_1", "get_weather"), ("call_2", "get_weather")]
        assert record.reply.usage.reasoning == 2


def streaming(backend: str, whole: dict[str, Any] | None = None) -> Any:
    """A backend that streams when it is asked to."""
    whole = whole or wires.reply(backend)
    streamed = {
        "chat": lambda: wires.chat_stream(whole),
        "responses": lambda: responses_events(whole),
        "messages": lambda: messages_events(whole),
    }[backend]()

    def decide(request: Request) -> Answer:
        if not request.asks:
            return Answer({"object": "list", "data": []})
        return Answer(chunks=streamed) if request.json().get("stream") else Answer(whole)

    return decide


@pytest.mark.ci
@pairs
async def test_a_relayed_reply_is_the_same(tmp_path: Path, client: str, backend: str) -> None:  # V0 A8
    async with bench(tmp_path, streaming(backend), api=backend, stream="relay") as at:
        form, end = await wires.ask(at, client, wires.request(client), True)
        whole, _ = await wires.ask(at, client, wires.request(client), False)
        assert [request.json().get("stream", False) for request in at.backend.calls] == [True, False]
        first, second = at.records()
    assert form == whole
    assert form[:2] == [("reasoning", "Hm."), ("text", "Both.")]
    assert end == ENDS[client]
    assert [part.text for part in first.reply.choices[0].parts[:2]] == ["Hm.", "Both."]
    called = [
        [(call.call_id, json.loads(call.arguments)) for call in one.reply.choices[0].parts[2:]]
        for one in (first, second)
    ]
    assert called[0] == called[1]
    assert first.reply.usage == second.reply.usage


HIDDEN: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"type": "thinking", "thinking": "Hm.", "signature": "seal"},
        {"type": "redacted_thinking", "data": "hidden"},
    ],
    "responses": [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "seal",
        },
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "hidden"},
    ],
}


@pytest.mark.ci
@pytest.mark.parametrize("stream", [False, "replay", "relay"])
@pytest.mark.parametrize("backend", HIDDEN)
async def test_a_chat_client_brings_back_what_was_signed(tmp_path: Path, backend: str, stream: Any) -> None:  # V0
    """Two turns as the stock client has them: the second sends the message that the first gave."""
    whole = wires.reply(backend)
    field = {"messages": "content", "responses": "output"}[backend]
    whole[field] = HIDDEN[backend] + whole[field][1:]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    async with bench(tmp_path, streaming(backend, whole), api=backend, stream=stream or "replay") as at:
        message = await wires.chat_message(at.client(), body, bool(stream))
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "rain"} for call in message["tool_calls"]]
        body["messages"] += [message, *results]
        await wires.chat_message(at.client(), body, bool(stream))
        sent = at.backend.calls[1].json()["input" if backend == "responses" else "messages"]
        first, second = at.records()
    assert message["reasoning_content"] == "Hm."
    thoughts = sent[1]["content"] if backend == "messages" else sent[1:]
    assert thoughts[:2] == HIDDEN[backend]
    assert b'"Hm."' not in json.dumps(thoughts[2:]).encode()  # exactly once
    assert second.received.messages[1].parts[:2] == first.reply.choices[0].parts[:2]
    assert (second.relation, second.parent_call_id) == ("turn", first.call_id)


STOP = ("stop", ("completed", None), ("end_turn", None))
LENGTH = ("length", ("incomplete", "max_output_tokens"), ("max_tokens", None))
FILTER = ("content_filter", ("incomplete", "content_filter"), ("refusal", None))
SEQUENCE = ("stop", ("completed", None), ("stop_sequence", "END"))
REFUSED = ("stop", ("completed", None), ("refusal", None))
FINISHES: dict[str, list[tuple[dict[str, Any], tuple[Any, ...]]]] = {
    "chat": [
        (chat_reply("x"), STOP),
        (chat_reply("x", finish_reason="length"), LENGTH),
        (chat_reply("x", finish_reason="content_filter"), FILTER),
        (chat_reply("x", choice={"stop_reason": "END"}), SEQUENCE),
    ],
    "responses": [
        (responses_reply(output_text("x")), STOP),
        (
            responses_reply(output_text("x"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            LENGTH,
        ),
        (
            responses_reply(output_text("x"), status="incomplete", incomplete_details={"reason": "content_filter"}),
            FILTER,
        ),
    ],
    "messages": [
        (messages_reply(), STOP),
        (messages_reply(stop_reason="max_tokens"), LENGTH),
        (messages_reply(stop_reason="stop_sequence", stop_sequence="END"), SEQUENCE),
        (messages_reply(stop_reason="refusal"), REFUSED),
    ],
}


def simple(client: str) -> dict[str, Any]:
    if client == "responses":
        return {"model": "m", "input": "Hi"}
    return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}


@pytest.mark.ci
@pairs
async def test_each_end_keeps_its_meaning(tmp_path: Path, client: str, backend: str) -> None:  # M3 R27 A19
    answers = [Answer(body) for body, _ in FINISHES[backend] for _ in (False, True)]
    async with over(tmp_path, backend, *answers) as at:
        for _, ends in FINISHES[backend]:
            views = [await wires.ask(at, client, simple(client), streamed) for streamed in (False, True)]
            assert [end for _, end in views] == [ends[DIALECTS.index(client)]] * 2
            assert views[0][0] == views[1][0]


def failure(backend: str, status: int, kind: str, message: str) -> Answer:
    error = {"type": kind, "message": message}
    body = {"type": "error", "error": error} if backend == "messages" else {"error": {**error, "code": None}}
    return Answer(body, status, {"retry-after": "0.2"} if status in (429, 503) else {})


FAILURES = [
    # the backend's status, its type in Messages, what Chat Completions and the two others say
    (400, "invalid_request_error", 400, 400),
    (401, "authentication_error", 401, 400),
    (403, "permission_error", 403, 400),
    (404, "not_found_error", 404, 400),
    (413, "request_too_large", 413, 400),
    (422, "invalid_request_error", 422, 400),
    (429, "rate_limit_error", 429, 429),
    (500, "api_error", 500, 500),
    (503, "overloaded_error", 503, 503),
    (504, "timeout_error", 504, 504),
    (529, "overloaded_error", 529, 529),
]


@pytest.mark.ci
@pairs
async def test_each_failure_is_the_client_s_own_error(tmp_path: Path, client: str, backend: str) -> None:  # A5
    answers = [failure(backend, status, kind, f"no: {status}") for status, kind, *_ in FAILURES for _ in (0, 1)]
    async with over(tmp_path, backend, *answers) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as http:
        for status, kind, *expected in FAILURES:
            for streamed in (False, True):
                body = simple(client) | {"stream": streamed}
                answer = await http.post(f"/ng-rollout/r1{wires.PATHS[client]}", json=body)
                error = answer.json()["error"]
                assert answer.status_code == expected[client != "chat"], (status, streamed)
                assert error["message"] == f"no: {status}"
                assert answer.headers["content-type"] == "application/json"
                if client == "messages":
                    assert answer.json()["type"] == "error"
                    assert error["type"] == kind
                    assert answer.json()["request_id"].startswith("req_")
                if status in (429, 503):
                    assert answer.headers["retry-after"] == "1"  # whole seconds
                if client != "chat" and 400 < status < 500:
                    assert status in (error.get("status"), (error.get("details") or {}).get("status"))
        assert {record.status for record in at.records()} == {"failed"}


OVERFLOW = {
    "chat": "This model's maximum context length is 4096 tokens. However, your prompt contains 5120 input tokens.",
    "responses": "This model's maximum context length is 4096 tokens. However, your input has 5120 tokens.",
    "messages": "prompt is too long: 5120 tokens > 4096 maximum",
}


@pytest.mark.ci
@pairs
async def test_a_prompt_that_is_too_long(tmp_path: Path, client: str, backend: str) -> None:  # A12
    async with over(tmp_path, backend, failure(backend, 400, "invalid_request_error", OVERFLOW[backend])) as at:
        await overflows(at, client)


async def overflows(at: Bench, client: str) -> None:
    async with httpx.AsyncClient(base_url=at.url, timeout=60) as http:
        for streamed in (False, True):
            answer = await http.post(wires.PATHS[client], json=simple(client) | {"stream": streamed})
            if client == "chat":
                assert answer.status_code == 200
                assert '"finish_reason":"length"' in answer.text
                continue
            error = answer.json()["error"]
            assert answer.status_code == 400
            if client == "messages":
                assert error["message"] == "prompt is too long: 5120 tokens > 4096 maximum"
                assert error["details"]["error_code"] == "context_length_exceeded"
            else:
                assert error["code"] == "context_length_exceeded"


@pytest.mark.ci
@pairs
async def test_a_cut_off_call_is_not_run(tmp_path: Path, client: str, backend: str) -> None:  # A19
    """Chat Completions passes on what the backend gave; the two others would have an agent run it."""
    reply = {
        "chat": lambda: chat_reply(
            "Wait.",
            message={"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}]},
            finish_reason="length",
        ),
        "responses": lambda: responses_reply(
            output_text("Wait."),
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": ', "status": "incomplete"},
            status="incomplete",
            incomplete_details={"reason": "max_output_tokens"},
        ),
        "messages": lambda: messages_reply(
            {"type": "text", "text": "Wait."},
            {"type": "tool_use", "id": "c", "name": "f", "input": {}},
            stop_reason="max_tokens",
        ),
    }[backend]()
    async with over(tmp_path, backend, Answer(reply)) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as http:
        for streamed in (False, True):
            answer = await http.post(wires.PATHS[client], json=simple(client) | {"stream": streamed})
            assert "Wait." in answer.text
            assert ('"name":"f"' in answer.text) == (client == "chat")
        assert all(record.reply.choices[0].parts[1].name == "f" for record in at.records())
