"""A model server in front of an endpoint of any dialect: a vLLM started by hand, another server, a provider."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from nemo_gym.backends.http import HttpBackend
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.dialects import chat, messages, responses

_DIALECTS = {"chat": chat, "responses": responses, "messages": messages}


class VLLMModelConfig(BaseResponsesAPIModelConfig):
    base_url: str | list[str]
    """Up to and including `/v1`; a list names equal endpoints."""
    api_key: str = ""
    model: str = Field(min_length=1)
    api: Literal["chat", "responses", "messages"] = "chat"
    """What the endpoint speaks; token ids come only from `chat`."""
    forward_unknown: bool = True
    return_token_ids: bool | None = None
    """Ask for token ids and log-probs; null finds out whether the endpoint gives them."""
    extra_body: dict[str, Any] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, value: str | list[str]) -> str | list[str]:
        urls = [value] if isinstance(value, str) else value
        if not urls:
            raise ValueError("expected a URL or a list of URLs, found an empty list")
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"expected a URL that starts with http:// or https://, found {url!r}")
            if "@" in url.partition("://")[2].partition("/")[0]:
                raise ValueError("expected a URL without a user and a password: a key belongs in api_key")
        return value


class VLLMModel(SimpleResponsesAPIModel):
    config: VLLMModelConfig

    @property
    def backend_dialect(self) -> str:
        return self.config.api

    @property
    def developer_role_unknown(self) -> bool:
        return self.config.api == "chat"

    async def start(self) -> None:
        config = self.config
        urls = [config.base_url] if isinstance(config.base_url, str) else config.base_url
        self._backend = HttpBackend(
            _DIALECTS[config.api],
            urls,
            api_key=config.api_key or None,
            model=config.model,
            extra_body=config.extra_body,
            ask_token_ids=config.return_token_ids,
            retries=config.retries,
            timeout_s=config.timeout_s,
        )


if __name__ == "__main__":
    VLLMModel.run_webserver()
