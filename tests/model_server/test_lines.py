"""Lines of the wire contract that no other test of this room pins."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from pathlib import Path
from typing import Annotated, Any

import fastapi
import httpx
import pytest

from nemo_gym.capture.shard import File
from nemo_gym.dialects.chat.schema import ChatRequest
from tests.bench import HELLO, TOOL, bench
from tests.scripted import Answer, chat_chunks, chat_reply, tool_call

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("value", [False, 0, None])
async def test_what_selects_no_stream(tmp_path: Path, value: Any) -> None:  # A2
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
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
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        found = await client.post(CHAT, content=data, headers=headers)
        untyped = await client.post(CHAT, content=data, headers={"content-type": "text/plain"})
    assert (found.status_code, found.content) == (expected.status_code, expected.content)
    assert untyped.content == found.content


async def test_a_rejected_screenshot_never_comes_back(tmp_path: Path) -> None:  # A4
    url = "data:image/png;base64," + "A" * 20_000
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": [url]}]}]}
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        answer = await client.post(CHAT, json=body)
    assert answer.status_code == 422
    assert len(answer.content) < 4096


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500, 503])
async def test_statuses_and_words_of_the_backend(tmp_path: Path, status: int) -> None:  # A5
    error = {"message": "said so", "type": "some_type", "code": "some_code"}
    answers = [Answer({"error": error}, status)]
    async with bench(tmp_path, answers) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
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
    async with bench(tmp_path, [Answer(reply)]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
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
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
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
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        assert (await client.post(CHAT, content=data)).status_code == 200
        sent = at.backend.calls[0].json()["u"]
        (record,) = at.records()
    assert sent == {"big": -98765432109876543210, "e": 1e-7, "s": "\ufffd!", "n": None}
    assert record.received.origin.body["u"] == sent
    huge = b'{"messages":[{"role":"user","content":"x"}],"u":' + b"1" * 5000 + b"}"
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        assert (
            await client.post(CHAT, content=huge)
        ).status_code == 400  # as under FastAPI: Python reads no such number


async def test_a_reply_without_its_head_gets_it_filled_once(tmp_path: Path) -> None:  # B2 A15
    reply = chat_reply("a" * 100)
    for field in ("id", "created", "model"):
        del reply[field]
    async with bench(tmp_path, [Answer(reply)]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
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


ROUTES = [
    ("POST", "/v1/chat/completions", {"messages": HELLO}),
    ("POST", "/v1/responses", {"input": "x"}),
    ("POST", "/v1/messages", {"model": "m", "max_tokens": 9, "messages": HELLO}),
    ("POST", "/v1/messages/count_tokens", {"model": "m", "messages": HELLO}),
    ("GET", "/v1/models", None),
    ("GET", "/health", None),
    ("GET", "/ready", None),
    ("GET", "/metrics", None),
]


async def test_every_route_also_below_a_rollout_and_with_a_query(tmp_path: Path) -> None:  # A1
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        made = (await client.post("/v1/responses", json={"input": "x"})).json()["id"]
        for method, path, body in [*ROUTES, ("GET", f"/v1/responses/{made}", None)]:
            expected = (await client.request(method, path, json=body)).status_code
            assert expected == (501 if path.endswith("count_tokens") else 200), path  # no tokenizer here: never a guess
            for other in (f"/ng-rollout/r1{path}", f"{path}?beta=true&x=%2F", f"/ng-rollout/r1{path}?a=/v1/models"):
                assert (await client.request(method, other, json=body)).status_code == expected, other
            if method == "POST":
                assert (await client.get(path)).status_code == 405
        for path in (
            "/",
            "/v1",
            "/v1/chat",
            "/v1/chat/completions/",
            "/ng-rollout/r1",
            "/seal",
            "/calls",
            "//v1/models",
        ):
            assert (await client.get(path)).status_code == 404, path


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_nothing_leaves_before_the_record_is_durable(tmp_path: Path, path: str, streamed: bool) -> None:  # A8
    """A slow disk: not a byte of the answer, whole or streamed, while the sync runs."""
    held = threading.Event()

    def sync(file: File) -> None:
        assert held.wait(60)

    body = {"messages": HELLO, "input": "x", "max_tokens": 9, "model": "m", "stream": streamed}
    async with (
        bench(tmp_path, [Answer(chat_reply("Hello!"))]) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(File, "sync", sync)
            got: list[bytes] = []

            async def ask() -> None:
                async with client.stream("POST", path, json=body, timeout=60) as answer:
                    got.append(str(answer.status_code).encode())
                    got.extend([data async for data in answer.aiter_bytes()])

            asking = asyncio.create_task(ask())
            while not at.backend.calls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert got == []
            held.set()
            await asking
    assert b"Hello!" in b"".join(got)


CALLED = {"tool_calls": [tool_call("get_weather", '{"city": "Rome"}')], "content": "I will not. "}
MARKUP = 'I will not. <tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.mark.parametrize("stream", ["replay", "relay"])
async def test_no_call_comes_out_of_tool_choice_none(tmp_path: Path, stream: str) -> None:  # A10 V0
    """A backend that parses calls all the same: what the model wrote is text, in every view."""
    chunks = chat_chunks(
        {"role": "assistant", "content": "I will not. "},
        {
            "tool_calls": [
                {"index": 0, **CALLED["tool_calls"][0]}  # type: ignore[dict-item]
            ]
        },
        finish="tool_calls",
    )

    def answer(request: Any) -> Answer:
        if not request.asks:
            return Answer({"data": []})
        return Answer(chunks=chunks) if request.json().get("stream") else Answer(chat_reply(None, message=CALLED))

    async with bench(tmp_path, answer, stream=stream) as at:
        client = at.client()
        asked: dict[str, Any] = {"model": "m", "messages": HELLO, "tools": [TOOL], "tool_choice": "none"}
        whole = await client.chat.completions.create(**asked)
        assert whole.choices[0].message.tool_calls is None
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (MARKUP, "stop")
        async with client.chat.completions.stream(**asked) as events:
            streamed = await events.get_final_completion()
        assert streamed.choices[0].message.tool_calls is None
        assert (streamed.choices[0].message.content, streamed.choices[0].finish_reason) == (MARKUP, "stop")
        tool = {"type": "function", **TOOL["function"]}
        response = await client.responses.create(model="m", input="x", tools=[tool], tool_choice="none")
        assert [item.type for item in response.output] == ["message"]
        assert response.output_text == MARKUP
        events_ = [
            event
            async for event in await client.responses.create(
                model="m", input="x", tools=[tool], tool_choice="none", stream=True
            )
        ]
        assert events_[-1].response.output_text == MARKUP
        asked["tool_choice"] = "auto"
        assert (await client.chat.completions.create(**asked)).choices[0].message.tool_calls
        records = at.records()
    assert [[part.text for part in record.reply.choices[0].parts] for record in records[:4]] == [[MARKUP]] * 4
    assert records[4].reply.choices[0].finish == "tool_calls"


async def test_a_field_travels_under_its_name_on_the_wire(tmp_path: Path) -> None:  # A14
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    async with (
        bench(tmp_path, [Answer(chat_reply('{"a": 1}'))]) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        body = {"model": "m", "input": "x", "text": {"format": form}}
        made = (await client.post("/v1/responses", json=body)).json()
        text = (await client.post("/v1/responses", json=body | {"stream": True})).text
        sent = at.backend.calls[0].json()["response_format"]
        typed = await at.client().responses.create(**body)
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["schema"] == schema
    assert made["text"]["format"]["schema"] == schema
    assert "schema_" not in json.dumps(made) + text + json.dumps(sent)
    last = json.loads(text.rpartition("data: ")[2])
    assert last["response"]["text"]["format"]["schema"] == schema
    assert typed.text.format.schema_ == schema  # as the SDK calls it in Python


async def test_calls_without_a_rollout_are_held_together_by_the_clients_session(tmp_path: Path) -> None:  # C4
    said = [*HELLO, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "And now?"}]
    async with (
        bench(tmp_path, [Answer(chat_reply("Hello!"))]) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        for session in ("s1", "s2", None):
            headers = {} if session is None else {"x-session-id": session}
            for messages in (HELLO, said):
                await client.post(CHAT, json={"messages": messages}, headers=headers)
        await client.post(f"/ng-rollout/r1{CHAT}", json={"messages": said}, headers={"x-session-id": "s1"})
        text = (await client.get("/metrics")).text
        records = at.records()
    assert "ng_calls_without_rollout_total 6.0" in text
    assert [(one.rollout_id, one.session_id, one.relation) for one in records] == [
        (None, "s1", "first"),
        (None, "s1", "turn"),
        (None, "s2", "first"),
        (None, "s2", "turn"),
        (None, None, "first"),
        (None, None, "first"),
        ("r1", "s1", "first"),
    ]
    assert [one.parent_call_id for one in records[:4]] == [None, records[0].call_id, None, records[2].call_id]


async def test_a_disk_that_fails_is_never_silent(tmp_path: Path) -> None:  # C7 A8
    """A call that runs ends with a failure, in the stream if it is open; the next is refused before the backend."""
    chunks = chat_chunks({"role": "assistant", "content": "one "}, {"content": "two"})

    def answer(request: Any) -> Answer:
        return Answer(chunks=chunks) if request.asks else Answer({"data": []})

    def full(file: File) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_file(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    body = {"messages": HELLO, "stream": True}
    async with (
        bench(tmp_path, answer, stream="relay") as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        assert (await client.get("/ready")).status_code == 200
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(File, "sync", full)
            running = await client.post(f"/ng-rollout/r1{CHAT}", json=body)
            assert running.status_code == 200  # its text had begun to flow
            assert '"content":"one "' in running.text.replace(" :", ":").replace('": "', '":"')
            assert 'finish_reason":"stop' not in running.text.replace(" ", "")
            assert "capture_error" in running.text
            patch.setattr(File, "__init__", no_file)
            asked = len(at.backend.calls)
            refused = await client.post(f"/ng-rollout/r1{CHAT}", json=body)
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            assert len(at.backend.calls) == asked
            unready = await client.get("/ready")
            assert (unready.status_code, "retry-after" in unready.headers) == (503, True)
            assert "cannot be recorded" in unready.json()["error"]["message"]
        at.apps[0].capture._retry_at = 0
        for _ in range(1200):
            if (await client.post(f"/ng-rollout/r1{CHAT}", json=body)).status_code == 200:
                break
            at.apps[0].capture._retry_at = 0
            await asyncio.sleep(0.05)
        assert (await client.get("/ready")).status_code == 200
        seal = (await client.post("/ng-rollout/r1/seal", json={})).json()
    assert seal["incomplete"] == "capture_error"
