"""The law of the three views over OpenAI and Azure OpenAI, for a client of each dialect: what the provider answers is
one of the stock SDK's own objects, over real HTTP. # V0"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from responses_api_models.azure_openai_model.app import AzureOpenAIModel
from responses_api_models.openai_model.app import OpenAIModel
from tests.model_server import test_law as chat_law
from tests.model_server import test_messages as messages_law
from tests.model_server import test_responses_law as responses_law
from tests.scripted import Answer, Request, responses_events

pytestmark = pytest.mark.ci

KEY = {"api_key": "a-key-0123456789"}
AZURE = KEY | {"kind": AzureOpenAIModel, "root": True}
SERVERS: dict[str, dict[str, Any]] = {
    "openai": KEY | {"kind": OpenAIModel},
    "azure": AZURE | {"api": "auto"},
    "openai-chat": KEY | {"kind": OpenAIModel, "api": "chat"},
    "azure-dated": AZURE | {"api_version": "2025-04-01-preview"},
}
EXAMPLES = [10, pytest.param(200, marks=pytest.mark.nightly)]
_REQUIRED = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
"""By the SDK's object, and said by every provider."""


def as_completion(reply: dict[str, Any], _: Request) -> Answer:
    return Answer(ChatCompletion.model_validate(reply).model_dump(mode="json", by_alias=True))


def as_response(reply: dict[str, Any], request: Request) -> Answer:
    usage = reply["usage"] | {
        "input_tokens_details": reply["usage"]["input_tokens_details"] | {"cache_write_tokens": 0}
    }
    given = Response.model_validate(reply | _REQUIRED | {"usage": usage}).model_dump(mode="json", by_alias=True)
    return Answer(chunks=responses_events(given)) if request.json().get("stream") else Answer(given)


@pytest.mark.parametrize("server", ["openai", "azure", "azure-dated"])
@pytest.mark.parametrize("examples", EXAMPLES)
def test_chat(tmp_path: Path, server: str, examples: int) -> None:
    chat_law.hold(tmp_path, examples, as_completion, **SERVERS[server])


@pytest.mark.parametrize("stream", ["replay", "relay"])
@pytest.mark.parametrize("server", ["openai", "azure"])
@pytest.mark.parametrize("examples", EXAMPLES)
def test_responses(tmp_path: Path, server: str, stream: str, examples: int) -> None:
    replies = responses_law.responses_replies()
    responses_law.hold(tmp_path, replies, as_response, examples, stream=stream, **SERVERS[server])


@pytest.mark.parametrize("server", ["azure-dated", "openai-chat"])
@pytest.mark.parametrize("examples", EXAMPLES)
def test_responses_over_chat(tmp_path: Path, server: str, examples: int) -> None:
    responses_law.hold(tmp_path, responses_law.chat_replies(), as_completion, examples, **SERVERS[server])


@pytest.mark.parametrize("server", ["azure-dated", "openai-chat"])
@pytest.mark.parametrize("examples", EXAMPLES)
def test_messages_over_chat(tmp_path: Path, server: str, examples: int) -> None:
    messages_law.hold(tmp_path, messages_law.chat_replies(), as_completion, examples, **SERVERS[server])


@pytest.mark.parametrize("stream", ["replay", "relay"])
@pytest.mark.parametrize("server", ["openai", "azure"])
@pytest.mark.parametrize("examples", EXAMPLES)
def test_messages_over_responses(tmp_path: Path, server: str, stream: str, examples: int) -> None:
    replies = responses_law.responses_replies()
    messages_law.hold(tmp_path, replies, as_response, examples, stream=stream, **SERVERS[server])
