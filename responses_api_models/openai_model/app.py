"""A model server in front of OpenAI: clients of Chat Completions and of Responses each in their own dialect.

What OpenAI refuses is left out with a warning, and nothing runs in the background there (A18). NeMo Gym's names of the
keys are accepted.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, Field, model_validator

from nemo_gym.backends.presets import openai
from nemo_gym.backends.provider import Provider
from nemo_gym.model_server.endpoint import EndpointModel, EndpointModelConfig


class OpenAIModelConfig(EndpointModelConfig):
    base_url: str | list[str] = Field(
        default="https://api.openai.com/v1", validation_alias=AliasChoices("base_url", "openai_base_url")
    )
    api_key: str = Field(default="", validation_alias=AliasChoices("api_key", "openai_api_key"))
    model: str = Field(min_length=1, validation_alias=AliasChoices("model", "openai_model"))
    api: Literal["auto", "chat", "responses"] = "auto"
    organization: str | None = None
    project: str | None = None
    default_headers: dict[str, str] = Field(
        default_factory=dict, validation_alias=AliasChoices("default_headers", "openai_default_headers")
    )
    """Sent with every request."""

    @model_validator(mode="before")
    @classmethod
    def _tries_as_retries(cls, data: Any) -> Any:
        """NeMo Gym counts the first try too."""
        if not isinstance(data, dict) or not isinstance(tries := data.get("max_http_attempts"), int):
            return data
        rest = {key: value for key, value in data.items() if key != "max_http_attempts"}
        return {"retries": tries - 1} | rest


class OpenAIModel(EndpointModel):
    config: OpenAIModelConfig

    def provider(self, dialect: str) -> Provider:
        config = self.config
        named = {"OpenAI-Organization": config.organization, "OpenAI-Project": config.project}
        return openai(dialect, {name: value for name, value in named.items() if value} | config.default_headers)


if __name__ == "__main__":
    OpenAIModel.run_webserver()
