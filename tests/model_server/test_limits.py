"""Limits on body, head and concurrency, and what every refusal is: said in the dialect's own shape, recorded, clear."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from nemo_gym.exchange.errors import ModelError
from responses_api_models.vllm_model.app import VLLMModelConfig
from tests.bench import HELLO, Bench, bench
from tests.processes import process
from tests.scripted import Answer, chat_reply, scripted

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": HELLO},
}


def error_of(path: str, answer: httpx.Response) -> dict[str, Any]:
    """The error object, in the shape of the dialect."""
    body = answer.json()
    assert answer.headers["content-type"] == "application/json"
    if path == "/v1/messages":
        assert body["type"] == "error"
        assert set(body["error"]) >= {"type", "message"}
    else:
        assert set(body["error"]) >= {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@contextlib.asynccontextmanager
async def asking(tmp_path: Path, answers: Any, **settings: Any) -> AsyncIterator[tuple[Bench, httpx.AsyncClient]]:
    async with bench(tmp_path, answers, **settings) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        yield at, client


@pytest.mark.parametrize("path", BODIES)
async def test_a_large_body_and_a_large_head(tmp_path: Path, path: str) -> None:  # A5 C1
    settings = {"max_body_bytes": 2000, "max_header_bytes": 2000}
    async with asking(tmp_path, [Answer(chat_reply())], **settings) as (at, client):

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b" " * 100  # chunked: no length is said before

        large = [
            await client.post(path, json=BODIES[path] | {"user": "x" * 3000}),
            await client.post(path, content=pieces()),
        ]
        head = await client.post(path, json=BODIES[path], headers={"x-long": "y" * 3000})
        assert (await client.post(path, json=BODIES[path], headers={"x-long": "y" * 100})).status_code == 200
        assert len(at.backend.calls) == 1
        records = at.records()
    for answer, status, named in (*((one, 413, "max_body_bytes") for one in large), (head, 431, "max_header_bytes")):
        # Permanent: agents go on repeating a 413 of Responses, and give up at a 400.
        assert answer.status_code == (status if path == "/v1/chat/completions" else 400)
        assert named in error_of(path, answer)["message"]
    assert [(one.status, one.error and one.error.status) for one in records] == [
        ("rejected", 413),
        ("rejected", 413),
        ("rejected", 431),
        ("answered", None),
    ]


@pytest.mark.parametrize("path", BODIES)
async def test_a_full_queue(tmp_path: Path, path: str) -> None:  # A5 C1
    settings = {"max_in_flight": 1, "max_queue": 1}
    held = asyncio.Event()
    async with asking(tmp_path, [Answer(chat_reply(), held=held)], **settings) as (at, client):
        asked = [asyncio.create_task(client.post(path, json=BODIES[path])) for _ in range(4)]
        ended = asyncio.as_completed(asked, timeout=60)
        await next(ended)
        await next(ended)  # one is being answered and one waits: the rest is refused
        held.set()
        answers = await asyncio.gather(*asked)
        records = at.records()
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429]
    for answer in answers:
        if answer.status_code == 429:
            assert answer.headers["retry-after"] == "1"
            assert "waiting" in error_of(path, answer)["message"]
    assert sorted(record.status for record in records) == ["answered", "answered", "failed", "failed"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_missing_key(tmp_path: Path, path: str) -> None:  # A5 C1
    async with asking(tmp_path, [Answer(chat_reply())], api_keys=["s3cret-key"]) as (at, client):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "s3cret"}, {"authorization": "Basic x"}):
            answer = await client.post(path, json=BODIES[path], headers=headers)
            assert answer.status_code == (401 if path == "/v1/chat/completions" else 400)
            assert "key" in error_of(path, answer)["message"]
            assert "s3cret" not in answer.text
        for headers in ({"authorization": "bearer s3cret-key"}, {"x-api-key": "s3cret-key"}, {"api-key": "s3cret-key"}):
            assert (await client.post(path, json=BODIES[path], headers=headers)).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
        records = at.records()
    assert [record.status for record in records] == ["rejected"] * 4 + ["answered"] * 3
    assert {record.error.kind for record in records[:4]} == {"auth"}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_who_is_overloaded_always_says_when_to_come_back(tmp_path: Path, path: str, status: int) -> None:  # A5
    error = {"error": {"message": "busy"}}
    scripts: list[tuple[dict[str, str], str]] = [
        ({}, "1"),
        ({"retry-after": "7"}, "7"),
        ({"Retry-After": "0.2"}, "1"),
        ({"retry-after-ms": "2500"}, "3"),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, "1"),
        ({"retry-after": "soon"}, "1"),
    ]
    answers = [Answer(error, status, headers) for headers, _ in scripts]
    async with asking(tmp_path, answers) as (_, client):
        for _, expected in scripts:
            answer = await client.post(path, json=BODIES[path])
            assert (answer.status_code, answer.headers["retry-after"]) == (status, expected)
            assert error_of(path, answer)["message"] == "busy"


@pytest.mark.parametrize("path", BODIES)
async def test_503s_of_the_server_itself(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:  # A5 C7
    async with asking(tmp_path, lambda _: Answer({}, 500)) as (at, client):
        at.apps[0].readiness.started = False
        for route in ("/ready", "/v1/models"):
            answer = await client.get(route)
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True)

        def failing() -> None:
            raise ModelError(503, "capture", "captures cannot be written: no space", retry_after=5.0)

        monkeypatch.setattr(at.apps[0].capture, "check", failing)
        answer = await client.post(path, json=BODIES[path])
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "captures cannot be written" in error_of(path, answer)["message"]
        assert at.backend.calls == []
    async with asking(tmp_path, [Answer(chat_reply())], base_url="http://127.0.0.1:9/v1") as (_, client):
        answer = await client.post(path, json=BODIES[path])  # nobody listens there
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        message = error_of(path, answer)["message"]
        assert "127.0.0.1" not in message  # the type, and no address
        assert "Error" in message


@pytest.mark.parametrize("path", BODIES)
async def test_a_fault_of_ours_gives_its_type_only(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # A5
    async with asking(tmp_path, [Answer(chat_reply())]) as (at, client):

        async def broken(*_: Any) -> None:
            raise KeyError("/home/someone/secret-path")

        monkeypatch.setattr(type(at.apps[0].server), "generate", broken)
        answer = await client.post(path, json=BODIES[path])
        (record,) = at.records()
    assert answer.status_code == 500
    assert error_of(path, answer)["message"] == "internal error (KeyError)"
    assert "secret-path" not in answer.text
    assert (record.status, record.error.kind) == ("failed", "internal")
    (line,) = [entry for entry in caplog.records if entry.levelname == "ERROR"]
    assert line.exc_info is not None
    assert line.call_id == record.call_id  # type: ignore[attr-defined]


@pytest.mark.ci
async def test_a_head_without_an_end_is_not_gathered(tmp_path: Path) -> None:
    async with scripted([Answer(chat_reply())]) as backend, process(tmp_path, backend.url) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(at.url.rpartition(":")[2]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(4000):
                writer.write(b"x-%d: %s\r\n" % (number, b"y" * 1000))
                await writer.drain()
                if reader.at_eof():
                    break
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 431") or not answer
        async with httpx.AsyncClient(base_url=at.url, timeout=60) as client:
            assert (await client.post("/v1/chat/completions", json={"messages": HELLO})).status_code == 200
            inside = await client.post("/v1/chat/completions", json={"messages": HELLO}, headers={"x": "y" * 100_000})
            assert (inside.status_code, "max_header_bytes" in inside.text) == (431, True)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"host": "0.0.0.0"}, "host"),
        ({"host": "10.0.0.1", "api_keys": []}, "host"),
        ({"host": "::", "api_keys": [""]}, "api_keys"),
        ({"host": "0.0.0.0", "api_keys": ["k"]}, None),
        ({"host": "0.0.0.0", "allow_unauthenticated": True}, None),
        ({"host": "::1"}, None),
        ({"api_keys": ["", "k"]}, "api_keys"),  # a variable that is not set must not let everyone in
    ],
)
def test_beyond_loopback_a_key_is_needed(settings: dict[str, Any], named: str | None) -> None:
    told = {"name": "policy_model", "base_url": "http://127.0.0.1:1/v1", "model": "m", **settings}
    if named is None:
        VLLMModelConfig.model_validate(told)
        return
    with pytest.raises(ValidationError, match=named):
        VLLMModelConfig.model_validate(told)
