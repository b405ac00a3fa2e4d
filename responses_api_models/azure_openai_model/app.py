"""A model server in front of Azure OpenAI: a deployment, by api-version or the `v1` API; with a key or an Entra token.

`base_url` is the resource's endpoint. With an api-version that is a date, requests go to
`/openai/deployments/<model>/…?api-version=…`; with `v1` (the default) or `preview`, to `/openai/v1/…`. A token is a
reference to one that is valid, or the file in which something keeps it fresh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal
from urllib.parse import quote

from msgspec.structs import replace
from pydantic import AliasChoices, Field, model_validator

from nemo_gym.backends.presets import openai
from nemo_gym.backends.provider import Provider, TokenFile
from nemo_gym.model_server.endpoint import EndpointModel, EndpointModelConfig

_UNVERSIONED = ("v1", "preview", "latest")


class AzureOpenAIModelConfig(EndpointModelConfig):
    base_url: str | list[str] = Field(validation_alias=AliasChoices("base_url", "openai_base_url"))
    """The resource's endpoint, such as https://name.openai.azure.com."""
    api_key: str = Field(default="", validation_alias=AliasChoices("api_key", "openai_api_key"))
    model: str = Field(min_length=1, validation_alias=AliasChoices("model", "openai_model"))
    """The deployment's name."""
    api: Literal["auto", "chat", "responses"] = "chat"
    """Older api-versions have no Responses."""
    api_version: str = "v1"
    default_query: dict[str, str] = Field(default_factory=dict)
    """Sent with every request; an `api-version` in it is `api_version`."""
    azure_ad_token: str = ""
    azure_ad_token_file: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _version_in_query(cls, data: object) -> object:
        query = data.get("default_query") if isinstance(data, dict) else None
        if isinstance(data, dict) and isinstance(query, dict) and "api-version" in query:
            if "api_version" in data:
                raise ValueError("api_version and default_query.api-version are one key: keep api_version")
            rest = {name: value for name, value in query.items() if name != "api-version"}
            return {**data, "default_query": rest, "api_version": query["api-version"]}
        return data

    @model_validator(mode="after")
    def _one_credential(self) -> AzureOpenAIModelConfig:
        given = [
            name
            for name in ("api_key", "azure_ad_token", "azure_ad_token_file")
            if getattr(self, name) not in ("", None)
        ]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"api_key: expected this, azure_ad_token or azure_ad_token_file, got {found}")
        return self

    @property
    def versioned(self) -> bool:
        return self.api_version not in _UNVERSIONED


class AzureOpenAIModel(EndpointModel):
    config: AzureOpenAIModelConfig

    def base_urls(self) -> list[str]:
        return [
            url.rstrip("/").removesuffix("/v1").removesuffix("/openai")
            + ("/openai" if self.config.versioned else "/openai/v1")
            for url in super().base_urls()
        ]

    def provider(self, dialect: str) -> Provider:
        config = self.config
        query = dict(config.default_query)
        if config.api_version != "v1":
            query["api-version"] = config.api_version
        paths = {"chat": f"/deployments/{quote(config.model, safe='')}/chat/completions"} if config.versioned else {}
        return replace(
            openai(dialect, {}),
            name="Azure OpenAI",
            query=query,
            paths=paths,
            key_header="api-key",
            token=self._token(),
        )

    def _token(self) -> Callable[[], str] | None:
        if self.config.azure_ad_token_file is not None:
            return TokenFile(self.config.azure_ad_token_file)
        token = self.config.azure_ad_token
        return (lambda: token) if token else None


if __name__ == "__main__":
    AzureOpenAIModel.run_webserver()
