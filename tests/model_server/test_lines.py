"""Lines of the wire contract that no other test of this room pins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import fastapi
import httpx
import pytest

from nemo_gym.dialects.chat.schema import ChatRequest
from tests.bench import HELLO, TOOL, bench
from tests.scripted import Answer, chat_reply, tool_call

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("value", [False, 0, None])
async def test_what_selects_no_stream(tmp_path: Path, value: Any) -> None:  # A2
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url) as client:
        answer = await client.post(CHAT, json={"messages": HELLO, "stream": value})
        assert answer.headers["content-type"] == "application/json"
        bad = [await client.post(CHAT, json={"messages": HELLO, "stream": one}) for one in ("false", "true", 1, [])]
        assert [one.status_code for one in bad] == [422] * 4
        assert {one.json()["detail"][0]["loc"][1] for one in bad} == {"stream"}


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"{",
            b"5",
            b"[]",
            b"null",
            b'"x"',
            b"{}",
            b'{"messages": 5}',
            b'{"messages": [{"role": "x"}]}',
        ),
        b'{"messages": [], "temperature": "hot", "n": 0, "stop": [1]}',
        b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": 5}]}], "tools": [{}]}',
    ],
)
async def test_the_422_is_fastapis(tmp_path: Path, data: bytes) -> None:  # A3
    app = fastapi.FastAPI()

    @app.post(CHAT)
    def route(body: Annotated[ChatRequest, fastapi.Body()]) -> None: ...

    headers = {"content-type": "application/json"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        expected = await client.post(CHAT, content=data, headers=headers)
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url) as client:
        found = await client.post(CHAT, content=data, headers=headers)
        untyped = await client.post(CHAT, content=data, headers={"content-type": "text/plain"})
    assert (found.status_code, found.content) == (expected.status_code, expected.content)
    assert untyped.content == found.content


async def test_a_rejected_screenshot_never_comes_back(tmp_path: Path) -> None:  # A4
    url = "data:image/png;base64," + "A" * 20_000
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": [url]}]}]}
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url) as client:
        answer = await client.post(CHAT, json=body)
    assert answer.status_code == 422
    assert len(answer.content) < 4096


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500, 503])
async def test_statuses_and_words_of_the_backend(tmp_path: Path, status: int) -> None:  # A5
    error = {"message": "said so", "type": "some_type", "code": "some_code"}
    answers = [Answer({"error": error}, status)]
    async with bench(tmp_path, answers) as at, httpx.AsyncClient(base_url=at.url) as client:
        chat = await client.post(CHAT, json={"messages": HELLO})
        responses = await client.post("/v1/responses", json={"input": "x"})
    assert chat.status_code == status
    assert chat.json()["error"] == error | {"param": None}
    assert ("retry-after" in chat.headers) == (status in (429, 503))
    assert responses.status_code == (status if status in (500, 503) else 400)
    found = responses.json()["error"]
    assert (found["message"], found["code"]) == ("said so", "some_code")
    assert responses.status_code == status or found["status"] == status


async def test_white_space_halves_and_large_integers_survive(tmp_path: Path) -> None:  # A13
    data = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00 \\ud800"}], "seed": 123456789012345678901234}'
    reply = chat_reply(" \n two \n ")
    async with bench(tmp_path, [Answer(reply)]) as at, httpx.AsyncClient(base_url=at.url) as client:
        answer = await client.post(CHAT, content=data)
        assert answer.json()["choices"][0]["message"]["content"] == " \n two \n "
        assert at.backend.calls[0].json()["messages"][0]["content"] == "\U0001f600 \ufffd"
        assert b"123456789012345678901234" in at.backend.calls[0].body
        (record,) = at.records()
    assert record.reply.choices[0].parts[0].text == " \n two \n "


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b'{"messages": [{"role": "user", "content": "x"}], "unknown": {"a": [1, NaN]}}', ["unknown", "a", 1]),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": -Infinity}', ["temperature"]),
        (b'{"messages": [{"role": "user", "content": "x", "z": 1e999}]}', ["messages", 0, "z"]),
    ],
)
async def test_numbers_that_json_has_not_are_refused_by_name(tmp_path: Path, data: bytes, field: list[Any]) -> None:
    """A13: what cannot survive as written is no null on the way to the backend."""
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url) as client:
        chat = await client.post(CHAT, content=data)
        other = await client.post("/v1/responses", content=data.replace(b'"messages"', b'"input"'))
        assert at.backend.calls == []
    assert chat.status_code == 422
    (error,) = chat.json()["detail"]
    assert (error["type"], error["loc"]) == ("finite_number", ["body", *field])
    assert other.status_code == 400
    assert "finite number" in other.json()["error"]["message"]


async def test_unknown_fields_survive_as_written(tmp_path: Path) -> None:  # A6 A13
    unknown = b'{"big":-98765432109876543210,"e":1e-7,"s":"\\ud800!","n":null}'
    data = b'{"messages":[{"role":"user","content":"x"}],"u":' + unknown + b"}"
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url) as client:
        assert (await client.post(CHAT, content=data)).status_code == 200
        sent = at.backend.calls[0].json()["u"]
        (record,) = at.records()
    assert sent == {"big": -98765432109876543210, "e": 1e-7, "s": "\ufffd!", "n": None}
    assert record.received.origin.body["u"] == sent
    huge = b'{"messages":[{"role":"user","content":"x"}],"u":' + b"1" * 5000 + b"}"
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url) as client:
        assert (
            await client.post(CHAT, content=huge)
        ).status_code == 400  # as under FastAPI: Python reads no such number


async def test_a_reply_without_its_head_gets_it_filled_once(tmp_path: Path) -> None:  # B2 A15
    reply = chat_reply("a" * 100)
    for field in ("id", "created", "model"):
        del reply[field]
    async with bench(tmp_path, [Answer(reply)]) as at, httpx.AsyncClient(base_url=at.url) as client:
        text = (await client.post(CHAT, json={"messages": HELLO, "stream": True})).text
        (record,) = at.records()
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    assert {(c["id"], c["created"], c["model"]) for c in chunks} == {
        (record.reply.id, record.reply.created, "scripted-model")
    }
    assert record.reply.id.startswith("chatcmpl-")


async def test_calls_that_are_cut_off(tmp_path: Path) -> None:  # A19
    message = {"tool_calls": [tool_call("get_weather", '{"city": "Ro')]}
    answer = Answer(chat_reply(None, message=message, finish_reason="length"))
    async with bench(tmp_path, [answer]) as at:
        client = at.client()
        chat = await client.chat.completions.create(model="m", messages=HELLO, tools=[TOOL])
        assert chat.choices[0].message.tool_calls[0].function.arguments == '{"city": "Ro'
        assert chat.choices[0].finish_reason == "length"
        tool = {"type": "function", **TOOL["function"]}
        response = await client.responses.create(model="m", input="x", tools=[tool])
        assert (response.output, response.status) == ([], "incomplete")
        records = at.records()
    assert {record.reply.choices[0].parts[0].arguments for record in records} == {'{"city": "Ro'}
