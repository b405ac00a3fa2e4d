"""A model server in front of a well-known host: `provider` names it in the table `nemo_gym/backends/providers.yaml`.

The table says where the host answers and how it differs; `base_url` and `api` win over it, and alone they serve for a
host that it does not know.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from nemo_gym.backends.presets import presets
from nemo_gym.backends.provider import Provider
from nemo_gym.config.faults import did_you_mean
from nemo_gym.model_server.endpoint import EndpointModel, EndpointModelConfig


class InferenceProviderConfig(EndpointModelConfig):
    provider: str | None = None
    """A name of the table."""
    api: Literal["chat", "responses", "messages"] = "chat"

    @model_validator(mode="before")
    @classmethod
    def _from_table(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("provider") is None:
            return data
        name = data["provider"]
        preset = presets().get(name) if isinstance(name, str) else None
        if preset is None:
            raise ValueError(f"provider: there is none called {name!r}{did_you_mean(str(name), presets())}")
        return {"base_url": preset.base_url, "api": preset.api} | {k: v for k, v in data.items() if v is not None}


class InferenceProvider(EndpointModel):
    config: InferenceProviderConfig

    @property
    def developer_role_unknown(self) -> bool:
        return self.config.api == "chat"

    def provider(self, dialect: str) -> Provider:
        name = self.config.provider
        return Provider() if name is None else presets()[name].provider(name)


if __name__ == "__main__":
    InferenceProvider.run_webserver()
