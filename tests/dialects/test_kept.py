"""What two dialects have a word for goes over from one to the other, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.bench import bench
from tests.dialects.wires import DIALECTS
from tests.scripted import (
    Answer,
    Request,
    chat_reply,
    messages_reply,
    output_text,
    responses_events,
    responses_reply,
)

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
REPLIES = {"chat": chat_reply, "responses": lambda: responses_reply(output_text("x")), "messages": messages_reply}
SCHEMA = {"type": "object", "properties": {}}
HI = [{"role": "user", "content": "Hi"}]
CITED = {"type": "url_citation", "start_index": 0, "end_index": 5, "url": "https://x.test", "title": "X"}
LOGPROBS = [
    {
        "token": token,
        "bytes": list(token.encode()),
        "logprob": -0.5,
        "top_logprobs": [{"token": "A", "bytes": [65], "logprob": -1.5}],
    }
    for token in ("Hel", "lo")
]
SAID = {"type": "output_text", "text": "Hello", "annotations": [CITED], "logprobs": LOGPROBS}
ITEM = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [SAID]}


async def asked(tmp_path: Path, client: str, backend: str, body: dict[str, Any], status: int = 200) -> Any:
    """What the backend is asked for such a request; the client's answer where it is refused."""
    async with bench(tmp_path, [Answer(REPLIES[backend]())], api=backend) as at, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(at.url + PATHS[client], json=body)
        assert answer.status_code == status, answer.text
        return answer.json() if status != 200 else at.backend.calls[-1].json()


def function(backend: str, tool: dict[str, Any]) -> dict[str, Any]:
    return tool["function"] if backend == "chat" else tool


TOOLS = {
    "chat": {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}},
    "responses": {"type": "function", "name": "f", "strict": True, "parameters": SCHEMA},
    "messages": {"name": "f", "strict": True, "input_schema": SCHEMA},
}
BODIES = {"chat": {"messages": HI}, "responses": {"input": HI}, "messages": {"messages": HI, "max_tokens": 9}}


@pytest.mark.parametrize("backend", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
async def test_a_strict_tool_stays_strict(tmp_path: Path, client: str, backend: str) -> None:
    body = await asked(tmp_path, client, backend, {**BODIES[client], "tools": [TOOLS[client]]})
    assert function(backend, body["tools"][0])["strict"] is True


async def test_a_schema_keeps_its_name_over_responses(tmp_path: Path) -> None:  # R13
    form = {"name": "weather", "description": "of a day", "strict": True, "schema": SCHEMA}
    body = {**BODIES["chat"], "verbosity": "low", "response_format": {"type": "json_schema", "json_schema": form}}
    told = await asked(tmp_path, "chat", "responses", body)
    assert told["text"] == {"verbosity": "low", "format": {"type": "json_schema", **form}}


async def test_a_grammar_goes_over(tmp_path: Path) -> None:  # R7
    grammar = {"syntax": "lark", "definition": "start: /x/"}
    custom = {"name": "c", "description": "d", "format": {"type": "grammar", "grammar": grammar}}
    body = {**BODIES["chat"], "tools": [{"type": "custom", "custom": custom}]}
    (tool,) = (await asked(tmp_path / "1", "chat", "responses", body))["tools"]
    assert tool == {"type": "custom", "name": "c", "description": "d", "format": {"type": "grammar", **grammar}}
    (tool,) = (await asked(tmp_path / "2", "chat", "messages", body))["tools"]
    assert tool["description"] == "d\n\nThe input follows this lark grammar:\nstart: /x/"


async def test_media_of_chat_over_responses(tmp_path: Path) -> None:
    pdf = "data:application/pdf;base64,AAAA"
    parts = [
        {"type": "image_url", "image_url": {"url": "https://x.test/y.png", "detail": "high"}},
        {"type": "file", "file": {"file_data": pdf, "filename": "a.pdf"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ]
    told = await asked(tmp_path, "chat", "responses", {"messages": [{"role": "user", "content": parts}]})
    assert told["input"][0]["content"] == [
        {"type": "input_image", "image_url": "https://x.test/y.png", "detail": "high"},
        {"type": "input_file", "file_data": pdf, "filename": "a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ]


async def test_a_document_by_its_url(tmp_path: Path) -> None:
    block = {"type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf"}}
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": [block, {"type": "text", "text": "Hi"}]}]}
    told = await asked(tmp_path / "1", "messages", "responses", body)
    assert told["input"][0]["content"][0] == {"type": "input_file", "file_url": "https://x.test/a.pdf"}
    refused = await asked(tmp_path / "2", "messages", "chat", body, 400)
    assert refused["error"]["message"] == "messages: this backend takes a document as data only, not by its URL"


@pytest.mark.parametrize("backend", ["responses", "messages"])
async def test_only_the_allowed_tools_are_offered_elsewhere(tmp_path: Path, backend: str) -> None:  # A10
    named = [{"type": "function", "function": {"name": "g"}}]
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    told = await asked(tmp_path, "chat", backend, {**BODIES["chat"], "tools": tools, "tool_choice": choice})
    assert [tool["name"] for tool in told["tools"]] == ["g"]
    assert told["tool_choice"] == ("required" if backend == "responses" else {"type": "any"})


def backend_of(reply: dict[str, Any]) -> Any:
    def answer(request: Request) -> Answer:
        if not request.asks:
            return Answer({"object": "list", "data": []})
        return Answer(chunks=responses_events(reply)) if request.json().get("stream") else Answer(reply)

    return answer


@pytest.mark.parametrize("stream", [None, "replay", "relay"])
async def test_what_a_responses_backend_says_beside_its_text(tmp_path: Path, stream: str | None) -> None:  # V0
    reply = responses_reply(ITEM, service_tier="priority")
    body = {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1, "stream": stream is not None}
    async with (
        bench(tmp_path, backend_of(reply), api="responses", stream=stream or "replay") as at,
        httpx.AsyncClient(timeout=60) as http,
    ):
        answer = await http.post(f"{at.url}/v1/responses", json=body)
        (record,) = at.records()
    if stream is None:
        found = answer.json()
    else:
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        found = events[-1]["response"]
        (done,) = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == found["output"][0]
    assert found["service_tier"] == "priority"
    (part,) = found["output"][0]["content"]
    assert (part["text"], part["annotations"]) == ("Hello", [CITED])
    assert [(one["token"], one["logprob"], one["top_logprobs"][0]["token"]) for one in part["logprobs"]] == [
        ("Hel", -0.5, "A"),
        ("lo", -0.5, "A"),
    ]
    assert list(record.reply.choices[0].tokens.logprobs) == [-0.5, -0.5]


async def test_log_probs_of_a_responses_backend_for_a_chat_client(tmp_path: Path) -> None:  # B4
    body = {**BODIES["chat"], "logprobs": True, "top_logprobs": 1}
    async with bench(tmp_path, backend_of(responses_reply(ITEM)), api="responses") as at, httpx.AsyncClient() as http:
        (choice,) = (await http.post(f"{at.url}/v1/chat/completions", json=body)).json()["choices"]
        asked = at.backend.calls[-1].json()
    assert (asked["top_logprobs"], asked["include"]) == (1, ["message.output_text.logprobs"])
    assert [(one["token"], one["logprob"]) for one in choice["logprobs"]["content"]] == [("Hel", -0.5), ("lo", -0.5)]
