"""What a backend can do is found by asking it, ability by ability."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from nemo_gym.backends.http import HttpBackend
from nemo_gym.backends.probe import Finding, examine
from nemo_gym.dialects import chat
from nemo_gym.exchange.errors import ModelError
from nemo_gym.web import client
from tests.scripted import Answer, Request, chat_chunks, chat_reply, scripted, tool_call

GAPS = {"red": -0.2, "blue": -1.9, "green": -4.0}


class Endpoint(Struct):
    """What a scripted endpoint can do."""

    ids: bool = True
    logprobs: str | None = "processed"
    parser: bool = True
    forced: bool = True
    schema: bool = True
    images: str = "seen"
    streams: bool = True
    context: int | None = 4096

    def __call__(self, request: Request) -> Answer:
        if request.path.endswith("/models"):
            entry = {"id": "m", "object": "model"} | ({"max_model_len": self.context} if self.context else {})
            return Answer({"object": "list", "data": [entry]})
        if not request.asks:
            return Answer({"detail": "Not Found"}, 404)
        return self.reply(request.json())

    def reply(self, body: dict[str, Any]) -> Answer:
        content = body["messages"][0]["content"]
        seen = not isinstance(content, str) and any(part["type"] == "image_url" for part in content)
        if seen and self.images == "refused":
            return Answer({"error": {"message": "m is not a multimodal model", "code": 400}}, 400)
        if body.get("stream") and self.streams:
            return Answer(chunks=chat_chunks({"content": "1, "}, {"content": "2"}))
        reply = chat_reply(self.text(body), message=self.calls(body))
        if seen and self.images == "seen":
            reply["usage"] = reply["usage"] | {"prompt_tokens": 75}
        if self.ids and body.get("return_token_ids"):
            reply["prompt_token_ids"] = [1, 2, 3]
            reply["choices"][0]["token_ids"] = [7]
        if self.logprobs and body.get("logprobs"):
            heat = body.get("temperature", 1.0) if self.logprobs == "processed" else 1.0
            tops = [{"token": name, "logprob": value / heat, "bytes": None} for name, value in GAPS.items()]
            entry = tops[0] | {"top_logprobs": tops[: body.get("top_logprobs", 0)]}
            reply["choices"][0]["logprobs"] = {"content": [entry]}
        return Answer(reply)

    def text(self, body: dict[str, Any]) -> str:
        if body.get("tools") and not self.parser:
            return '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
        return '{"answer": "no"}' if "response_format" in body and self.schema else "Hello!"

    def calls(self, body: dict[str, Any]) -> dict[str, Any]:
        choice = body.get("tool_choice", "auto")
        if not body.get("tools") or not self.parser or (choice != "auto" and not self.forced):
            return {}
        name = choice["function"]["name"] if isinstance(choice, dict) else "get_weather"
        return {"tool_calls": [tool_call(name, '{"city": "Rome"}')]}


async def found(endpoint: Endpoint) -> dict[str, Finding]:
    async with scripted(endpoint) as backend:
        asked = HttpBackend(chat, [backend.url], api_key=None, model="m", retries=0)
        try:
            return {one.name: one for one in await examine(asked)}
        finally:
            await client.close()


async def test_an_endpoint_that_can_do_all_of_it() -> None:
    able = await found(Endpoint())
    assert [name for name, one in able.items() if one.able is not True] == ["system messages"]
    assert able["token ids"].detail == "3 of the prompt, 1 sampled"
    assert able["log-prob mode"].detail == "processed"
    assert able["context"].detail == "4,096 tokens"
    assert able["images"].detail == "64 tokens"
    assert able["streaming"].detail == "2 pieces, without token ids"


@pytest.mark.parametrize(
    ("endpoint", "name", "able", "detail"),
    [
        (Endpoint(ids=False), "token ids", False, ""),
        (Endpoint(logprobs="raw"), "log-prob mode", False, "raw"),
        (Endpoint(logprobs=None), "log-probs", False, ""),
        (Endpoint(logprobs=None), "log-prob mode", None, "no alternatives to compare"),
        (Endpoint(parser=False), "tool calls", False, "a call came as text: no parser reads it"),
        (Endpoint(forced=False), "required tool", False, ""),
        (Endpoint(forced=False), "named tool", False, ""),
        (Endpoint(schema=False), "output schema", False, "the text is not JSON"),
        (Endpoint(images="refused"), "images", False, "400: m is not a multimodal model"),
        (Endpoint(images="ignored"), "images", False, "accepted, and left out of the prompt"),
        (Endpoint(streams=False), "streaming", False, "the reply came whole"),
        (Endpoint(context=None), "context", None, ""),
    ],
)
async def test_what_one_cannot_do(endpoint: Endpoint, name: str, able: bool | None, detail: str) -> None:
    assert (await found(endpoint))[name] == Finding(name, able, detail)


async def test_a_backend_that_answers_nothing_is_an_error() -> None:
    def refuse(request: Request) -> Answer:
        return Answer({"error": {"message": "no key"}}, 401)

    async with scripted(refuse) as backend:
        with pytest.raises(ModelError) as raised:
            await examine(HttpBackend(chat, [backend.url], api_key=None, model="m", retries=0))
        await client.close()
    assert (raised.value.status, raised.value.kind) == (401, "auth")
