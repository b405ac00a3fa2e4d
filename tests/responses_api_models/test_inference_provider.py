"""A well-known host by its name: the table says where it answers and what it refuses; a configuration wins over it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from responses_api_models.inference_provider.app import InferenceProvider, InferenceProviderConfig
from tests.bench import HELLO, bench
from tests.scripted import Answer, chat_reply


def config(**settings: object) -> InferenceProviderConfig:
    return InferenceProviderConfig.model_validate({"name": "policy_model", "model": "m", **settings})


def test_the_table_fills_in_what_is_not_said() -> None:
    known = config(provider="anthropic")
    assert (known.base_url, known.api) == ("https://api.anthropic.com/v1", "messages")
    other = config(provider="anthropic", base_url="https://gateway/v1", api="chat")
    assert (other.base_url, other.api) == ("https://gateway/v1", "chat")
    assert config(base_url="http://h/v1", provider=None).api == "chat"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"provider": "mistrall"}, "provider: there is none called 'mistrall'; did you mean 'mistral'"),
        ({"provider": 7}, "provider: there is none called 7"),
        ({}, "base_url"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(**settings)


async def test_requests_are_as_the_host_takes_them(tmp_path: Path) -> None:
    settings = {"kind": InferenceProvider, "provider": "mistral", "api_key": "key-0123456789"}
    async with bench(tmp_path, [Answer(chat_reply())], **settings) as at:
        async with at.client() as client:
            await client.chat.completions.create(
                model="m", messages=HELLO, seed=5, max_tokens=9, logprobs=True, extra_body={"top_k": 3}
            )
        (request,) = at.backend.calls  # and it was asked nothing that only vLLM knows
    body = request.json()
    assert (body["random_seed"], body["max_tokens"]) == (5, 9)
    assert not body.keys() & {"seed", "top_k", "logprobs", "return_token_ids"}
    assert request.headers["authorization"] == "Bearer key-0123456789"
