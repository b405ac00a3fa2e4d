"""Azure OpenAI: addresses and keys as the stock SDK has them, content filters in replies, streams and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import ValidationError

from nemo_gym.backends.provider import TokenFile
from responses_api_models.azure_openai_model.app import AzureOpenAIModel, AzureOpenAIModelConfig
from tests.bench import HELLO, bench
from tests.scripted import Answer, Request, chat_chunks, chat_reply, responses_reply, scripted

KEY = "azure-key-0123456789"
HARMLESS = {name: {"filtered": False, "severity": "safe"} for name in ("hate", "self_harm", "sexual", "violence")}
PROMPT = [{"prompt_index": 0, "content_filter_results": HARMLESS}]


def over(folder: Path, answers: Any, **settings: Any) -> Any:
    credential = {} if settings.keys() & {"azure_ad_token", "azure_ad_token_file"} else {"api_key": KEY}
    return bench(folder, answers, kind=AzureOpenAIModel, root=True, **credential | settings)


def filtered(content: str | None = "Hello!", **changes: Any) -> dict[str, Any]:
    body = chat_reply(content, **changes) | {"prompt_filter_results": PROMPT}
    body["choices"][0]["content_filter_results"] = HARMLESS
    return ChatCompletion.model_validate(body).model_dump(mode="json")


async def asked_by_the_sdk(api: str, version: str) -> Request:
    """What the stock client sends for the same deployment."""
    async with scripted([Answer(chat_reply() if api == "chat" else responses_reply())]) as backend:
        endpoint = backend.url.removesuffix("/v1")
        client = openai.AsyncAzureOpenAI(azure_endpoint=endpoint, api_key=KEY, api_version=version, max_retries=0)
        if api == "chat":
            await client.chat.completions.create(model="scripted-model", messages=HELLO)
        else:
            await client.responses.create(model="scripted-model", input="Hi")
        return backend.calls[0]


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_address_is_the_stock_client_s(tmp_path: Path, api: str) -> None:
    theirs = await asked_by_the_sdk(api, "2025-04-01-preview")
    answers = [Answer(filtered() if api == "chat" else responses_reply())]
    async with over(tmp_path, answers, api=api, api_version="2025-04-01-preview") as at:
        await at.client().chat.completions.create(model="m", messages=HELLO)
        (ours,) = at.backend.calls
    assert ours.path == theirs.path
    assert "api-version=2025-04-01-preview" in ours.path
    assert ours.headers["api-key"] == theirs.headers["api-key"] == KEY
    assert "authorization" not in ours.headers


@pytest.mark.parametrize(
    ("version", "given", "path"),
    [
        ("v1", "", "/openai/v1/chat/completions"),
        ("preview", "", "/openai/v1/chat/completions?api-version=preview"),
        ("v1", "/openai/v1/", "/openai/v1/chat/completions"),
        ("2024-10-21", "/openai", "/openai/deployments/scripted-model/chat/completions?api-version=2024-10-21"),
    ],
)
def test_the_address_by_version(version: str, given: str, path: str) -> None:
    settings = {"model": "scripted-model", "api_key": KEY, "api_version": version, "base_url": f"https://r{given}"}
    config = AzureOpenAIModelConfig(name="policy_model", **settings)
    server = AzureOpenAIModel.model_construct(config=config)
    provider = server.provider("chat")
    query = "&".join(f"{name}={value}" for name, value in provider.query.items())
    (base,) = server.base_urls()
    assert base + provider.path("chat") + (f"?{query}" if query else "") == f"https://r{path}"


async def test_a_token_in_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first-token-of-entra\n")
    async with over(tmp_path / "captures", [Answer(filtered())], azure_ad_token_file=str(file)) as at:
        for token in ("first-token-of-entra", "second-token-of-entra!"):
            file.write_text(token)
            await at.client().chat.completions.create(model="m", messages=HELLO)
            request = at.backend.calls[-1]
            assert request.headers["authorization"] == f"Bearer {token}"
            assert "api-key" not in request.headers
        file.unlink()
        with pytest.raises(openai.APIStatusError) as raised:
            await at.client().chat.completions.create(model="m", messages=HELLO)
    assert (raised.value.status_code, str(file) in raised.value.message) == (502, False)


def test_a_file_that_holds_no_token(tmp_path: Path) -> None:
    for text in ("", "two words", "not ascii ü"):
        (tmp_path / "token").write_text(text)
        with pytest.raises(ValueError, match="expected one token"):
            TokenFile(tmp_path / "token")()


async def test_a_prompt_that_the_filter_refuses(tmp_path: Path) -> None:
    result = HARMLESS | {"jailbreak": {"filtered": True, "detected": True}}
    error = {
        "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "type": None,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": result},
    }
    async with over(tmp_path, [Answer({"error": error}, 400)], retries=3) as at:
        with pytest.raises(openai.BadRequestError) as raised:
            await at.client().chat.completions.create(model="m", messages=HELLO)
        assert len(at.backend.calls) == 1
        (record,) = at.records()
    assert (raised.value.code, raised.value.param) == ("content_filter", "prompt")
    assert (record.error.status, record.error.kind) == (400, "invalid")
    assert "content management policy" in record.error.message


async def test_a_reply_that_the_filter_cut(tmp_path: Path) -> None:
    async with over(tmp_path, [Answer(filtered("So far", finish_reason="content_filter"))]) as at:
        reply = await at.client().chat.completions.create(model="m", messages=HELLO)
        answer = await at.client().responses.create(model="m", input="Hi")
    assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("content_filter", "So far")
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "content_filter")


async def test_a_stream_that_begins_with_the_filter_s_word(tmp_path: Path) -> None:
    chunks = chat_chunks({"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"})
    first = b'data: {"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[]}\n\n'
    async with over(tmp_path, [Answer(chunks=[(0.0, first), *chunks])], stream="relay") as at:
        async with at.client().chat.completions.stream(model="m", messages=HELLO) as stream:
            reply = await stream.get_final_completion()
        (record,) = at.records()
    assert (reply.choices[0].message.content, reply.model) == ("Hello", "scripted-model")
    assert record.reply.id == reply.id == "chatcmpl-scripted"


async def test_throttling_is_waited_out(tmp_path: Path) -> None:
    busy = {"error": {"code": "429", "message": "Requests have exceeded the call rate limit. Retry after 1 second."}}
    answers = [Answer(busy, 429, {"retry-after-ms": "30"}), Answer(filtered("after all"))]
    async with over(tmp_path, answers, retries=1) as at:
        reply = await at.client().chat.completions.create(model="m", messages=HELLO)
        (record,) = at.records()
    assert reply.choices[0].message.content == "after all"
    assert [attempt.error for attempt in record.attempts] == ["rate_limit", None]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "api_key: expected this, azure_ad_token or azure_ad_token_file, got none of them"),
        ({"api_key": KEY, "azure_ad_token": "t"}, "got api_key and azure_ad_token"),
        (
            {"api_key": KEY, "api_version": "v1", "default_query": {"api-version": "v1"}},
            "are one key: keep api_version",
        ),
    ],
)
def test_what_does_not_fit_together(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        AzureOpenAIModelConfig(name="policy_model", base_url="https://r", model="d", **settings)


def test_names_of_keys_as_nemo_gym_has_them() -> None:
    told = {
        "openai_base_url": "https://my.endpoint/v1/azure",
        "openai_api_key": KEY,
        "openai_model": "gpt-5-nano",
        "default_query": {"api-version": "2024-10-21"},
        "num_concurrent_requests": 8,
    }
    config = AzureOpenAIModelConfig(name="policy_model", **told)
    assert (config.api_version, config.default_query, config.max_concurrent_requests) == ("2024-10-21", {}, 8)
    server = AzureOpenAIModel.model_construct(config=config)
    assert server.base_urls() == ["https://my.endpoint/v1/azure/openai"]
