"""A model server in front of endpoints of any dialect: a vLLM started by hand, several of them, another server.

With `api: completions` conversations are rendered and parsed here, and the endpoint is asked with token ids: then
turns continue on their own tokens (`history: exact`), whoever owns the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from nemo_gym.backends.backend import Capabilities
from nemo_gym.backends.provider import Provider
from nemo_gym.config import paths
from nemo_gym.model_server.endpoint import EndpointModel, EndpointModelConfig

if TYPE_CHECKING:
    from nemo_gym.backends.token_endpoints import Endpoints

_NOT_NEEDED = frozenset({"uses_reasoning_parser", "uses_interleaved_reasoning"})
_ENDPOINT_FILE = "the addresses of base_url are all that is asked; a replica that is gone is left out until it answers"


class VLLMModelConfig(EndpointModelConfig):
    PASSED_OVER = {  # noqa: RUF012
        "endpoint_file": _ENDPOINT_FILE,
        "endpoint_stale_grace_s": _ENDPOINT_FILE,
        "endpoint_connection_retries": _ENDPOINT_FILE,
        "endpoint_check_interval_s": _ENDPOINT_FILE,
        "sequential_reasoning_allowed": "a reply is never asked for twice",
        "continue_final_assistant_message": "an endpoint that gives token ids is always asked to go on",
    }
    api: Literal["chat", "responses", "messages", "completions"] = "chat"
    """What the endpoint speaks; token ids come only from `chat` and `completions`."""
    forward_unknown: bool = True
    default_headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every request."""
    return_token_ids: bool | None = None
    """Ask for token ids and log-probs; null finds out whether the endpoint gives them."""
    # What follows is about `api: completions`.
    tokenizer: str | None = None
    """A folder with the model's tokenizer and chat template; null: where the endpoint says that the model is."""
    history: Literal["exact", "template"] | None = None
    """`exact` needs token ids; null: exact where the endpoint gives them."""
    route: Literal["completions", "generate"] = "completions"
    """vLLM's generate route tells the weights' version of each token; it wants `--enable-scale-out`."""
    tool_parser: str | None = "auto"
    reasoning_parser: str | None = "auto"
    """A format's name; `auto`: what the model's chat template writes; null: none."""
    adapters: list[str] = Field(default_factory=list)
    """The endpoint's LoRA adapters that clients may name as their model."""
    prompt_logprobs: bool = False
    """Of every call, into its record."""
    renderer: str = "auto"
    """A family of the `renderers` package, which then renders all; `auto`: the one that renders as the model's chat
    template does, if there is one; `template`: the template alone."""

    @model_validator(mode="after")
    def _renders_only_for_completions(self) -> VLLMModelConfig:
        for name in ("tokenizer", "history", "route", "adapters", "prompt_logprobs", "renderer"):
            if self.api != "completions" and name in self.model_fields_set and getattr(self, name):
                raise ValueError(f"{name}: expected api: completions beside it, found api: {self.api}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _as_nemo_gym_says_it(cls, data: Any) -> Any:
        return named_as_here(data) if isinstance(data, dict) else data


def named_as_here(given: dict[str, Any]) -> dict[str, Any]:
    """A configuration in which NeMo Gym's keys of this server have the names that they have here.

    Whether an endpoint has a reasoning parser is seen from its replies, so what says so is dropped.
    """
    data = {key: value for key, value in given.items() if key not in _NOT_NEEDED}
    if data.get("history") == "exact":
        data.setdefault("api", "completions")
    if data.pop("is_responses_native", False):
        data.setdefault("api", "responses")
    for name in ("return_token_id_information", "request_prompt_and_generation_token_ids"):
        if name in data:
            asked = data.pop(name)
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
    _endpoints: Endpoints | None = PrivateAttr(default=None)

    @property
    def adapters(self) -> Sequence[str]:
        return self.config.adapters

    def provider(self, dialect: str) -> Provider:
        return Provider(headers=self.config.default_headers)

    @property
    def spoken(self) -> tuple[str, ...]:
        return () if self.config.api == "completions" else super().spoken

    @property
    def backend_dialect(self) -> str | None:
        return None if self.config.api == "completions" else super().backend_dialect

    def asked_in(self, dialect: str) -> str | None:
        return None if self.config.api == "completions" else super().asked_in(dialect)

    @property
    def developer_role_unknown(self) -> bool:
        return self.config.api == "chat"

    def asks_token_ids(self) -> bool | None:
        return self.config.return_token_ids

    async def start(self) -> None:
        if self.config.api != "completions":
            await super().start()
            return
        from nemo_gym.backends.token_endpoints import Endpoints, Wanted
        from nemo_gym.rendering.renderer import check_family

        config = self.config
        await asyncio.to_thread(check_family, config.renderer)
        wanted = Wanted(
            model=config.model,
            served_name=config.served_name,
            folder=None if config.tokenizer is None else _folder(config.tokenizer),
            history=config.history,
            token_ids=config.return_token_ids,
            route=config.route,
            tool_parser=config.tool_parser,
            reasoning_parser=config.reasoning_parser,
            adapters=tuple(config.adapters),
            template_kwargs=config.extra_body.get("chat_template_kwargs") or {},
            prompt_logprobs=config.prompt_logprobs,
            renderer=config.renderer,
            retries=config.retries,
            timeout_s=config.timeout_s,
        )
        self._endpoints = Endpoints(self.link("chat"), self.base_urls(), wanted, self.pool_of)

    async def probe(self) -> Capabilities:
        if self._backend is None and self._endpoints is not None:
            self._backend = await self._endpoints.backend()
            self._pool = self._endpoints.pool
        return await super().probe()


def __getattr__(name: str) -> Any:
    """What agents of NeMo Gym import from here; loaded when it is asked for."""
    if name not in ("VLLMConverter", "split_responses_input_output_items"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nemo_gym import responses_converter

    return getattr(responses_converter, name)


def _folder(named: str) -> Path:
    folder = paths.locate(named)
    if not (folder / "tokenizer_config.json").is_file():
        raise ValueError(f"tokenizer: expected a folder with a tokenizer_config.json, found none at {named!r}")
    return folder.resolve()


if __name__ == "__main__":
    VLLMModel.run_webserver()
