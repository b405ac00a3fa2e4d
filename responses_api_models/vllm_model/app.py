"""A model server in front of endpoints of any dialect: a vLLM started by hand, several of them, another server."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from nemo_gym.model_server.endpoint import EndpointModel, EndpointModelConfig

_NOT_NEEDED = frozenset({"uses_reasoning_parser", "uses_interleaved_reasoning"})


class VLLMModelConfig(EndpointModelConfig):
    api: Literal["chat", "responses", "messages"] = "chat"
    """What the endpoint speaks; token ids come only from `chat`."""
    forward_unknown: bool = True
    return_token_ids: bool | None = None
    """Ask for token ids and log-probs; null finds out whether the endpoint gives them."""

    @model_validator(mode="before")
    @classmethod
    def _as_nemo_gym_says_it(cls, data: Any) -> Any:
        return named_as_here(data) if isinstance(data, dict) else data


def named_as_here(given: dict[str, Any]) -> dict[str, Any]:
    """A configuration in which NeMo Gym's keys of this server have the names that they have here.

    Whether an endpoint has a reasoning parser is seen from its replies, so what says so is dropped.
    """
    data = {key: value for key, value in given.items() if key not in _NOT_NEEDED}
    if "return_token_id_information" in data:
        asked = data.pop("return_token_id_information")
        data.setdefault("return_token_ids", asked)
    if data.pop("replace_developer_role_with_system", False):
        data.setdefault("developer_role", "system")
    if (template := data.pop("chat_template_kwargs", None)) is not None:
        data["extra_body"] = {"chat_template_kwargs": template} | (data.get("extra_body") or {})
    elif data.get("extra_body", ...) is None:
        data.pop("extra_body")
    return data


class VLLMModel(EndpointModel):
    config: VLLMModelConfig

    @property
    def developer_role_unknown(self) -> bool:
        return self.config.api == "chat"

    def asks_token_ids(self) -> bool | None:
        return self.config.return_token_ids


if __name__ == "__main__":
    VLLMModel.run_webserver()
