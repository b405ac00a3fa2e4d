"""Tokens of a Messages request, counted where somebody can; never guessed."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.bench import bench
from tests.model_server.test_messages import TOOL, post
from tests.scripted import Answer, Request, chat_reply

COUNT = {"messages": [{"role": "user", "content": "How many?"}], "tools": [TOOL], "system": "S"}


async def test_tokens_are_counted_by_vllm(tmp_path: Path) -> None:  # M4
    def decide(request: Request) -> Answer:
        return Answer({"count": 42, "max_model_len": 99}) if request.path == "/tokenize" else Answer({"data": []})

    async with bench(tmp_path, decide, extra_body={"chat_template_kwargs": {"x": 1}}) as at:
        client = at.anthropic()
        counted = await client.messages.count_tokens(model="m", **COUNT, thinking={"type": "disabled"})
        await client.close()
        (asked,) = [request.json() for request in at.backend.requests if b"How many?" in request.body]
        assert not at.records()
    assert counted.input_tokens == 42
    assert asked["messages"] == [{"role": "system", "content": "S"}, {"role": "user", "content": "How many?"}]
    assert asked["tools"][0]["function"]["name"] == "get_weather"
    assert asked["chat_template_kwargs"] == {"reasoning_effort": "none", "enable_thinking": False, "x": 1}
    assert "max_tokens" not in asked


@pytest.mark.parametrize(
    ("api", "path"), [("messages", "messages/count_tokens"), ("responses", "responses/input_tokens")]
)
async def test_tokens_are_counted_by_a_provider(tmp_path: Path, api: str, path: str) -> None:  # M4
    def decide(request: Request) -> Answer:
        return Answer({"input_tokens": 17}) if request.path == f"/v1/{path}" else Answer({"data": []})

    async with bench(tmp_path, decide, api=api) as at:
        answer = await post(at, COUNT, "/ng-rollout/r1/v1/messages/count_tokens?beta=true")
        (asked,) = [request.json() for request in at.backend.requests if b"How many?" in request.body]
    assert answer.json() == {"input_tokens": 17}
    assert asked["model"] == "scripted-model"
    assert {"max_tokens", "max_output_tokens", "store"}.isdisjoint(asked)


async def test_what_cannot_be_counted_is_not_guessed(tmp_path: Path) -> None:  # M4
    async with bench(tmp_path, [Answer(chat_reply())]) as at:
        answer = await post(at, COUNT, "/v1/messages/count_tokens")
        refused = await post(at, {"messages": 3}, "/v1/messages/count_tokens")
        wrong = await post(at, COUNT, "/ng-rollout/a$b/v1/messages/count_tokens")
        async with httpx.AsyncClient(base_url=at.url, timeout=60) as client:
            assert (await client.get("/v1/messages/count_tokens")).status_code == 405
    assert (answer.status_code, answer.json()["error"]["type"]) == (501, "api_error")
    assert "cannot count tokens" in answer.json()["error"]["message"]
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "messages: Input should be a valid list")
    assert (wrong.status_code, wrong.json()["type"]) == (400, "error")


# ---- repeats
