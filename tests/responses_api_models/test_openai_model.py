"""OpenAI: each client in its own dialect, what OpenAI refuses left out; replies are the stock SDK's own types."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from nemo_gym.backends.presets import openai as as_openai
from nemo_gym.backends.presets import presets
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig
from tests.bench import HELLO, bench
from tests.scripted import Answer, Request, chat_reply, responses_reply

KEY = "sk-proj-0123456789"


def provider(request: Request) -> Answer:
    """Answers as the API does: what comes is checked against the SDK's parameters, what goes is one of its objects."""
    if not request.asks:
        return Answer({"object": "list", "data": []})
    body = request.json()
    params: Any = CompletionCreateParamsBase if request.path.endswith("completions") else ResponseCreateParamsBase
    unknown = sorted(body.keys() - params.__annotations__.keys() - {"stream"})
    for message in body.get("messages", ()):
        unknown += [name for name in ("reasoning_content", "reasoning_details") if name in message]
    if unknown:
        error = {"message": f"Unknown parameter: '{unknown[0]}'.", "type": "invalid_request_error", "param": unknown[0]}
        return Answer({"error": error | {"code": "unknown_parameter"}}, 400)
    if params is CompletionCreateParamsBase:
        return Answer(ChatCompletion.model_validate(chat_reply("from chat")).model_dump(mode="json"))
    whole = responses_reply() | {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    whole["usage"]["input_tokens_details"] |= {"cache_write_tokens": 0}
    return Answer(Response.model_validate(whole).model_dump(mode="json"))


def over(folder: Path, **settings: Any) -> Any:
    return bench(folder, provider, kind=OpenAIModel, api_key=KEY, **settings)


async def test_chat_goes_as_chat_without_what_is_refused(tmp_path: Path) -> None:
    async with over(tmp_path, organization="org-1", project="proj-1", default_headers={"x-more": "1"}) as at:
        reply = await at.client().chat.completions.create(
            model="m",
            messages=[
                *HELLO,
                {"role": "assistant", "content": "Hm.", "reasoning_content": "secret thoughts"},  # type: ignore[typeddict-unknown-key]
                {"role": "user", "content": "Go on."},
                {"role": "assistant", "content": "Hm.", "reasoning_details": [{"type": "reasoning.text"}]},  # type: ignore[typeddict-unknown-key]
                {"role": "user", "content": "Go on."},
            ],
            max_tokens=7,
            n=1,
            stop=["END"],
            seed=3,
            extra_body={"top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}},
        )
        assert reply.choices[0].message.content == "from chat"
        (request,) = at.backend.calls
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert (request.headers["openai-organization"], request.headers["openai-project"]) == ("org-1", "proj-1")
    assert request.headers["x-more"] == "1"
    body = request.json()
    assert (body["max_completion_tokens"], body["stop"], body["seed"]) == (7, ["END"], 3)
    assert body["model"] == "scripted-model"
    assert not body.keys() & {"max_tokens", "top_k", "min_p", "chat_template_kwargs", "return_token_ids", "logprobs"}


async def test_responses_and_messages_go_as_responses_in_the_foreground(tmp_path: Path) -> None:  # A18
    async with over(tmp_path) as at:
        first = await at.client().responses.create(model="m", input="Hi", background=True, max_output_tokens=20)
        assert (first.status, first.output_text) == ("completed", "Hello!")
        other = await at.anthropic().messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
        )
        assert other.content[0].text == "Hello!"
        bodies = [(request.path, request.json()) for request in at.backend.calls]
        records = at.records()
    assert [path for path, _ in bodies] == ["/v1/responses"] * 2
    assert [body["store"] for _, body in bodies] == [False, False]
    assert [body["max_output_tokens"] for _, body in bodies] == [20, 9]
    assert not any("background" in body for _, body in bodies)
    assert [record.backend_dialect for record in records] == ["responses"] * 2


async def test_all_in_one_dialect_where_that_is_wanted(tmp_path: Path) -> None:
    async with over(tmp_path, api="chat") as at:
        reply = await at.client().responses.create(model="m", input="Hi")
        assert reply.output_text == "from chat"
        assert [request.path for request in at.backend.calls] == ["/v1/chat/completions"]


async def test_a_key_that_the_provider_quotes_is_not_passed_on(tmp_path: Path) -> None:  # A5 C8
    error = {
        "message": f"Incorrect API key provided: {KEY}.",
        "type": "invalid_request_error",
        "code": "invalid_api_key",
    }

    def refuse(request: Request) -> Answer:
        return Answer({"error": error}, 401) if request.asks else Answer({"object": "list", "data": []})

    import openai

    async with bench(tmp_path, refuse, kind=OpenAIModel, api_key=KEY) as at:
        with pytest.raises(openai.AuthenticationError) as raised:
            await at.client().chat.completions.create(model="m", messages=HELLO)
        (record,) = at.records()
    assert KEY not in raised.value.message + record.error.message
    assert raised.value.code == "invalid_api_key"


def test_names_of_keys_as_nemo_gym_has_them() -> None:
    told = {
        "openai_base_url": "https://api.openai.com/v1",
        "openai_api_key": KEY,
        "openai_model": "gpt-5",
        "openai_default_headers": {},
        "max_concurrent_requests": 8,
    }
    config = OpenAIModelConfig(name="policy_model", **told)
    assert (config.api_key, config.model, config.max_concurrent_requests) == (KEY, "gpt-5", 8)
    assert config.api == "auto"


def test_what_is_left_out_is_what_the_sdk_does_not_know() -> None:
    for dialect, params in (("chat", CompletionCreateParamsBase), ("responses", ResponseCreateParamsBase)):
        told = as_openai(dialect, {})
        assert told.refused & typing.cast(Any, params).__annotations__.keys() == set()
        assert set(told.renamed.values()) <= typing.cast(Any, params).__annotations__.keys()


def test_the_table_of_providers() -> None:
    table = presets()
    assert len(table) > 15
    for name, preset in table.items():
        local = preset.base_url.startswith("http://127.0.0.1:")
        assert local or preset.base_url.startswith("https://"), name
        assert not preset.base_url.endswith("/")
        assert (preset.key_env is None) == local
