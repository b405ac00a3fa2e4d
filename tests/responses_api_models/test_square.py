"""The square of dialects before OpenAI and Azure OpenAI: a client of each dialect, over each API that they have. # V0

The provider here takes only what the stock SDK can send, and what it answers is one of the SDK's own objects, over real
HTTP. What a conversation becomes in the words of each API is in `tests/dialects/wires.py`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from openai.types.shared import ErrorObject

from responses_api_models.azure_openai_model.app import AzureOpenAIModel
from responses_api_models.openai_model.app import OpenAIModel
from tests.bench import bench
from tests.dialects import wires
from tests.dialects.test_square import ENDS, FILTER, LENGTH, OVERFLOW, STOP, overflows, simple
from tests.dialects.wires import DIALECTS
from tests.responses_api_models.test_azure_openai_model import HARMLESS, PROMPT
from tests.scripted import Answer, Request, chat_reply, output_text, responses_events, responses_reply

pytestmark = pytest.mark.ci

KEY = {"api_key": "a-key-0123456789"}
AZURE = KEY | {"kind": AzureOpenAIModel, "root": True, "api_version": "2025-04-01-preview"}
SERVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai-chat": ("chat", KEY | {"kind": OpenAIModel, "api": "chat"}),
    "openai-responses": ("responses", KEY | {"kind": OpenAIModel, "api": "responses"}),
    "azure-chat": ("chat", AZURE | {"api": "chat"}),
    "azure-responses": ("responses", AZURE | {"api": "responses"}),
}
SQUARE = list(itertools.product(DIALECTS, SERVERS))
pairs = pytest.mark.parametrize(("client", "server"), SQUARE, ids=[f"{a}-before-{b}" for a, b in SQUARE])
PARAMETERS: dict[str, Any] = {"chat": CompletionCreateParamsBase, "responses": ResponseCreateParamsBase}
_REQUIRED = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def given(server: str, reply: dict[str, Any]) -> dict[str, Any]:
    """A reply as this provider gives it: the SDK's object; with Azure's word on what its filters found."""
    if SERVERS[server][0] == "responses":
        details = reply["usage"]["input_tokens_details"] | {"cache_write_tokens": 0}
        whole = reply | _REQUIRED | {"usage": reply["usage"] | {"input_tokens_details": details}}
        return Response.model_validate(whole).model_dump(mode="json", by_alias=True)
    if server.startswith("azure"):
        choices = [choice | {"content_filter_results": HARMLESS} for choice in reply["choices"]]
        reply = reply | {"prompt_filter_results": PROMPT, "choices": choices}
    return ChatCompletion.model_validate(reply).model_dump(mode="json", by_alias=True)


def streamed(server: str, reply: dict[str, Any]) -> list[tuple[float, bytes]]:
    if SERVERS[server][0] == "responses":
        return responses_events(given(server, reply))
    frames = wires.chat_stream(reply)
    for _, frame in frames[:-1]:
        ChatCompletionChunk.model_validate_json(frame.removeprefix(b"data: "))
    first = b'data: {"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[]}\n\n'
    return [(0.0, first), *frames] if server.startswith("azure") else frames


def failed(server: str, status: int, kind: str, code: str | None, message: str) -> Answer:
    error = ErrorObject(code=code, message=message, param=None, type=kind).model_dump()
    if server.startswith("azure"):
        error["innererror"] = {"code": "Details", "content_filter_result": HARMLESS}
    return Answer({"error": error}, status, {"retry-after": "0.2"} if status in (429, 503) else {})


def provider(server: str, *answers: Answer) -> Any:
    """Gives these in turn, the last one again and again; what the SDK could not have sent is refused."""
    left = list(answers)

    def decide(request: Request) -> Answer:
        if not request.asks:
            return Answer({"object": "list", "data": []})
        unknown = request.json().keys() - PARAMETERS[SERVERS[server][0]].__annotations__.keys() - {"stream"}
        if unknown:
            return failed(server, 400, "invalid_request_error", "unknown_parameter", f"Unknown: {sorted(unknown)}")
        return left.pop(0) if len(left) > 1 else left[0]

    return decide


def before(tmp_path: Path, server: str, *answers: Answer, **settings: Any) -> Any:
    return bench(tmp_path, provider(server, *answers), **SERVERS[server][1], **settings)


def reasoning(client: str, api: str) -> list[tuple[Any, ...]]:
    """A thought of an earlier turn: OpenAI takes it back where it is sealed, and nowhere else."""
    return [("reasoning", "Two at once.", "sealed")] if api == "responses" and client != "chat" else []


FORM = [
    ("reasoning", "Hm."),
    ("text", "Both."),
    ("call", "call_1", "get_weather", {"city": "Oslo"}),
    ("call", "call_2", "get_weather", {"city": "Rome"}),
    ("usage", 11, 3, 4),
]


@pairs
async def test_a_conversation_and_its_reply(tmp_path: Path, client: str, server: str) -> None:
    api = SERVERS[server][0]
    async with before(tmp_path, server, Answer(given(server, wires.reply(api)))) as at:
        views = [await wires.ask(at, client, wires.request(client), stream) for stream in (False, True)]
        bodies = [request.json() for request in at.backend.calls]
        records = at.records()
    assert views == [(FORM, ENDS[client])] * 2
    for body in bodies:
        assert body["model"] == "scripted-model"
        if api == "chat":
            body["max_tokens"] = body["max_completion_tokens"]
        assert wires.asked(api, body) == wires.said(reasoning(client, api))
    assert [(record.dialect, record.backend_dialect, record.streamed) for record in records] == [
        (client, api, False),
        (client, api, True),
    ]
    for record in records:
        thought, text, *calls = record.reply.choices[0].parts
        assert (thought.text, text.text) == ("Hm.", "Both.")
        assert [(call.call_id, call.name) for call in calls] == [("call_1", "get_weather"), ("call_2", "get_weather")]
        assert record.reply.usage.reasoning == 2


@pairs
async def test_a_relayed_reply_is_the_same(tmp_path: Path, client: str, server: str) -> None:  # A8
    reply = wires.reply(SERVERS[server][0])
    answers = Answer(chunks=streamed(server, reply)), Answer(given(server, reply))
    async with before(tmp_path, server, *answers, stream="relay") as at:
        views = [await wires.ask(at, client, wires.request(client), stream) for stream in (True, False)]
        assert [request.json().get("stream", False) for request in at.backend.calls] == [True, False]
        first, second = at.records()
    assert views == [(FORM, ENDS[client])] * 2
    assert first.reply.usage == second.reply.usage


REFUSAL = ("stop", ("completed", None), ("refusal", None))
FINISHES: dict[str, list[tuple[dict[str, Any], tuple[Any, ...]]]] = {
    "chat": [
        (chat_reply("x"), STOP),
        (chat_reply("x", finish_reason="length"), LENGTH),
        (chat_reply("x", finish_reason="content_filter"), FILTER),
        (chat_reply(None, message={"refusal": "No."}), REFUSAL),
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
        (
            responses_reply(output_text("No.") | {"content": [{"type": "refusal", "refusal": "No."}]}),
            REFUSAL,
        ),
    ],
}


@pairs
async def test_each_end_keeps_its_meaning(tmp_path: Path, client: str, server: str) -> None:  # M3 R27 A19
    cases = FINISHES[SERVERS[server][0]]
    answers = [Answer(given(server, reply)) for reply, _ in cases for _ in (False, True)]
    async with before(tmp_path, server, *answers) as at:
        for _, ends in cases:
            views = [await wires.ask(at, client, simple(client), stream) for stream in (False, True)]
            assert [end for _, end in views] == [ends[DIALECTS.index(client)]] * 2
            assert views[0][0] == views[1][0]
        records = at.records()
    assert {record.status for record in records} == {"answered"}


FAILURES: list[tuple[int, str, str | None, int, str]] = [
    # the provider's status, type and code; what Responses and Messages say, and the type in Messages
    (400, "invalid_request_error", "invalid_value", 400, "invalid_request_error"),
    (401, "invalid_request_error", "invalid_api_key", 400, "authentication_error"),
    (403, "invalid_request_error", "unsupported_country_region_territory", 400, "permission_error"),
    (404, "invalid_request_error", "model_not_found", 400, "not_found_error"),
    (413, "invalid_request_error", None, 400, "request_too_large"),
    (422, "invalid_request_error", "string_above_max_length", 400, "invalid_request_error"),
    (429, "requests", "rate_limit_exceeded", 429, "rate_limit_error"),
    (429, "insufficient_quota", "insufficient_quota", 429, "rate_limit_error"),
    (500, "server_error", None, 500, "api_error"),
    (503, "server_error", "overloaded", 503, "overloaded_error"),
    (504, "server_error", "timeout", 504, "timeout_error"),
]


@pairs
async def test_each_failure_is_the_client_s_own_error(tmp_path: Path, client: str, server: str) -> None:  # A5 A12
    answers = [failed(server, status, kind, code, f"no: {code}") for status, kind, code, *_ in FAILURES for _ in (0, 1)]
    too_long = failed(server, 400, "invalid_request_error", "context_length_exceeded", OVERFLOW[SERVERS[server][0]])
    async with (
        before(tmp_path, server, *answers, too_long) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as http,
    ):
        for status, kind, code, other, told in FAILURES:
            for stream in (False, True):
                answer = await http.post(wires.PATHS[client], json=simple(client) | {"stream": stream})
                error = answer.json()["error"]
                assert answer.status_code == (status if client == "chat" else other), (status, stream)
                assert (error["message"], answer.headers["content-type"]) == (f"no: {code}", "application/json")
                assert error["type"] == (told if client == "messages" else kind)
                said = (error.get("details") or {}).get("error_code") if client == "messages" else error["code"]
                assert said == code
                assert ("retry-after" in answer.headers) == (status in (429, 503))
        await overflows(at, client)
        records = at.records()
    assert [record.error.status for record in records[: 2 * len(FAILURES)]] == [
        status for status, *_ in FAILURES for _ in (0, 1)
    ]
    assert {record.status for record in records[: 2 * len(FAILURES)]} == {"failed"}


@pairs
async def test_a_cut_off_call_is_not_run(tmp_path: Path, client: str, server: str) -> None:  # A19
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": ', "status": "incomplete"}
    reply = {
        "chat": chat_reply("Wait.", message={"tool_calls": [call]}, finish_reason="length"),
        "responses": responses_reply(
            output_text("Wait."),
            item,
            status="incomplete",
            incomplete_details={"reason": "max_output_tokens"},
        ),
    }[SERVERS[server][0]]
    async with (
        before(tmp_path, server, Answer(given(server, reply))) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as http,
    ):
        for stream in (False, True):
            answer = await http.post(wires.PATHS[client], json=simple(client) | {"stream": stream})
            assert "Wait." in answer.text
            assert ('"name":"f"' in answer.text) == (client == "chat")
        assert all(record.reply.choices[0].parts[1].name == "f" for record in at.records())
