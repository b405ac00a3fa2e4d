"""A model server in front of endpoints of any dialect: a vLLM started by hand, several of them, another server."""

from __future__ import annotations

from typing import Literal

from nemo_gym.model_server.endpoint import EndpointModel, EndpointModelConfig


class VLLMModelConfig(EndpointModelConfig):
    api: Literal["chat", "responses", "messages"] = "chat"
    """What the endpoint speaks; token ids come only from `chat`."""
    forward_unknown: bool = True
    return_token_ids: bool | None = None
    """Ask for token ids and log-probs; null finds out whether the endpoint gives them."""


class VLLMModel(EndpointModel):
    config: VLLMModelConfig

    @property
    def developer_role_unknown(self) -> bool:
        return self.config.api == "chat"

    def asks_token_ids(self) -> bool | None:
        return self.config.return_token_ids


if __name__ == "__main__":
    VLLMModel.run_webserver()
