"""A model server with its own engines: vLLM replicas in Ray actors, token ids in and out.

Nothing heavy is imported before `start`: whoever checks a configuration imports this file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.config import paths
from nemo_gym.config.types import PlaceConfig
from nemo_gym.exchange.errors import ModelError
from responses_api_models.local_vllm_model.arguments import (
    adapter_folders,
    engine_arguments,
    has_connector,
    with_role,
)
from responses_api_models.local_vllm_model.names import named_as_here

if TYPE_CHECKING:
    from nemo_gym.backends.tokens import TokensBackend
    from nemo_gym.engines.deployment import Deployment, Prefill
    from nemo_gym.engines.engine import Engine
    from nemo_gym.engines.weights import Weights
    from nemo_gym.model_server.app import ModelApp

_OF_ENGINES = (
    "num_replicas",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "num_gpus",
    "placement",
    "prefill",
    "max_tokens_in_flight",
    "engine_args",
    "adapters",
    "ray",
    "weights_in_flight",
    "max_restarts",
    "restart_window_s",
)
_ASK_AGAIN_S = 1.0


class RayConfig(PlaceConfig):
    address: str | None = None
    """`local` starts a Ray of this server's own, on loopback; `auto` or host:port joins one. null: the cluster that the
    run is on (its `ray.address`), and `local` without one."""


class PrefillConfig(BaseModel):
    """Replicas that compute prompts, and hand them to the others over vLLM's connector
    (`engine_args.kv_transfer_config`)."""

    model_config = ConfigDict(extra="forbid")

    num_replicas: int = Field(default=1, ge=1)
    order: Literal["prefill_first", "decode_first"] = "prefill_first"
    """Decode is asked with what prefill says of the prompt; or both at once, with one `transfer_id`, as connectors want
    it that push."""
    handoff: dict[str, Any] = Field(default_factory=dict)
    """Told to decode in each call's `kv_transfer_params` besides."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Win over those of the others."""


class LocalVLLMModelConfig(BaseResponsesAPIModelConfig):
    model_config = ConfigDict(extra="forbid")

    model: str = ""
    """The model's folder."""
    deployment: str | None = None
    """Another server of this run, whose engines answer here too: then nothing about engines is said here, and `model`
    only if the tokenizer and the template are to be others than that server's model has."""
    model_name: str | None = None
    """What clients call the model; the folder's name when absent."""
    num_replicas: int = Field(default=1, ge=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    num_gpus: float | None = Field(default=None, ge=0)
    """Of each worker; null: 1 where there is an NVIDIA GPU, else 0."""
    prefill: PrefillConfig | None = None
    """null: each replica computes its prompts itself."""
    placement: Literal["pack", "spread"] = "pack"
    """A replica's workers on as few machines as there is room for, or on as many."""
    max_tokens_in_flight: int | None = Field(default=None, ge=1)
    """At one replica, of prompts and replies together; further calls wait. null: as many as its cache holds."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """vLLM's own engine arguments; they win over everything here."""
    tool_parser: str | None = "auto"
    reasoning_parser: str | None = "auto"
    """A format's name; `auto`: what the model's chat template writes; null: none."""
    history: Literal["exact", "template"] = "exact"
    adapters: dict[str, str] = Field(default_factory=dict)
    """LoRA adapters by the names that clients ask for in the place of the model's, and their folders."""
    renderer: str = "auto"
    """A family of the `renderers` package, which then renders all; `auto`: the one that renders as the model's chat
    template does, if there is one; `template`: the template alone."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    ray: RayConfig = Field(default_factory=RayConfig)
    start_timeout_s: float = Field(default=600.0, gt=0)
    """How long a replica may take to start, or to come back."""
    weights_in_flight: Literal["wait", "keep", "abort"] = "wait"
    """What becomes of running calls when new weights come: they end first; they are frozen, and go on with the new
    ones; they are ended, and asked anew."""
    max_restarts: int = Field(default=3, ge=0)
    restart_window_s: float = Field(default=600.0, gt=0)
    """A replica whose engine ends more often than `max_restarts` within it is given up."""
    num_workers: int | None = Field(default=None, ge=1, le=1)
    """One process, which has the engines."""

    @model_validator(mode="before")
    @classmethod
    def _as_nemo_gym_says_it(cls, data: Any) -> Any:
        return named_as_here(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _has_engines(self) -> LocalVLLMModelConfig:
        if self.deployment is None and not self.model:
            raise ValueError("model: expected the model's folder, or deployment: the server whose engines answer here")
        said = [name for name in _OF_ENGINES if self.deployment is not None and name in self.model_fields_set]
        if said:
            raise ValueError(f"{said[0]}: deployment {self.deployment} says that; expected it there")
        if self.prefill is not None and not has_connector(self.engine_args):
            words = "expected vLLM's connector over which prefill hands prompts on (prefill is set)"
            raise ValueError(f"engine_args.kv_transfer_config.kv_connector: {words}")
        if self.served_name in self.adapters:
            raise ValueError(f"adapters.{self.served_name}: the model itself is called that: see model_name")
        return self

    @property
    def served_name(self) -> str:
        return self.model_name or Path(self.model).name or self.deployment or ""


class LocalVLLMModel(SimpleResponsesAPIModel):
    config: LocalVLLMModelConfig
    _deployment: Deployment | None = PrivateAttr(default=None)
    _waits_for: str = PrivateAttr(default="")
    _adapters: dict[str, str] = PrivateAttr(default_factory=dict)
    """Names and folders; those of another server's engines lie there."""

    async def start(self) -> None:
        from nemo_gym.rendering.renderer import check_family

        await asyncio.to_thread(check_family, self.config.renderer)
        self._backend = await (self._with_own_engines() if self.config.deployment is None else self._with_another_s())

    async def _with_own_engines(self) -> TokensBackend:
        from nemo_gym.engines.deployment import Deployment

        config = self.config
        folder = _folder(config.model)
        gpus = gpus_of_each_worker(config)
        self._adapters = adapter_folders(config.adapters)
        arguments, prefill = self._sides(folder, gpus)
        self._deployment = Deployment(
            arguments,
            prefill=prefill,
            replicas=config.num_replicas,
            tensor_parallel=config.tensor_parallel_size,
            pipeline_parallel=config.pipeline_parallel_size,
            gpus=gpus,
            spread=config.placement,
            ray_address=self._ray_address,
            max_restarts=config.max_restarts,
            window_s=config.restart_window_s,
            start_s=config.start_timeout_s,
            seconds=config.timeout_s,
            most_tokens=config.max_tokens_in_flight,
            max_queue=config.max_in_flight,
            tries=config.retries + 1,
            in_flight=config.weights_in_flight,
            adapters=self._adapters,
        )
        # Beside the engine's start: the template and the tokenizer take seconds too.
        starting = asyncio.create_task(self._deployment.start())
        try:
            backend = await asyncio.to_thread(self._backend_of, self._deployment.engine, folder)
            await starting
        finally:
            if starting.cancel():
                await asyncio.wait([starting])
        self.policy_version.value = self._deployment.engine.weights.version
        return backend

    def _sides(self, folder: Path, gpus: float) -> tuple[dict[str, Any], Prefill | None]:
        """What vLLM is told in the replicas that reply, and in those that compute prompts for them."""
        from nemo_gym.engines.deployment import Prefill

        config, prefill = self.config, self.config.prefill
        arguments = engine_arguments(folder, gpus, config.engine_args, self._adapters)
        if prefill is None:
            return arguments, None
        computing = with_role(arguments | prefill.engine_args, "kv_producer")
        told = Prefill(computing, prefill.num_replicas, prefill.order, prefill.handoff)
        return with_role(arguments, "kv_consumer"), told

    @property
    def _ray_address(self) -> str:
        return self.config.ray.address or (self.context.ray_address if self.context is not None else "") or "local"

    async def _with_another_s(self) -> TokensBackend:
        """Its engines, rendered for and parsed in this server's own way."""
        from nemo_gym.engines.remote import RemoteEngine
        from responses_api_models.local_vllm_model.sharing import Sharing

        config = self.config
        assert config.deployment is not None
        self.server_client.base_url(config.deployment)  # a name that nobody has is told now
        key = self.context.admin_key if self.context is not None else ""
        sharing = Sharing(self.server_client, config.deployment, key, config.timeout_s)
        loop = asyncio.get_running_loop()
        until = loop.time() + config.start_timeout_s
        while True:
            try:
                engine, facts = await RemoteEngine.connected(sharing.send, sharing.flow)
                break
            except ModelError as error:
                self._waits_for = f"{config.deployment}: {error.message}"
                if loop.time() > until or error.status == 404:
                    raise ValueError(f"deployment: {self._waits_for}") from None
            await asyncio.sleep(_ASK_AGAIN_S)
        self._adapters = dict.fromkeys(facts.adapters, "")
        folder = _folder(config.model) if config.model else Path(facts.folder)
        return await asyncio.to_thread(self._backend_of, engine, folder)

    def _backend_of(self, engine: Engine, folder: Path) -> TokensBackend:
        from nemo_gym.backends.tokens import TokensBackend
        from nemo_gym.parsers.detect import reasoning_format, tool_call_format
        from nemo_gym.rendering.renderer import renderer

        config = self.config
        rendering = renderer(folder, config.chat_template_kwargs, config.renderer)
        return TokensBackend(
            engine,
            rendering,
            tool_call_format(rendering.text) if config.tool_parser == "auto" else config.tool_parser,
            reasoning_format(rendering.text) if config.reasoning_parser == "auto" else config.reasoning_parser,
            config.served_name,
            config.history,
            adapters=tuple(self._adapters),
        )

    @property
    def starting(self) -> str:
        return self._waits_for if self._deployment is None else self._deployment.progress

    @property
    def adapters(self) -> Sequence[str]:
        return tuple(self._adapters)

    @property
    def weights(self) -> Weights | None:
        return None if self._deployment is None else self._deployment.engine.weights

    @property
    def shared_engine(self) -> tuple[Engine, str] | None:
        return None if self._deployment is None else (self._deployment.engine, str(_folder(self.config.model)))

    def setup_webserver(self) -> ModelApp:
        from nemo_gym.model_server.replicas import ReplicaMetrics

        app = super().setup_webserver()
        app.metrics.registry.register(
            ReplicaMetrics(lambda: () if self._deployment is None else self._deployment.engine.pools)
        )
        return app

    async def stop(self) -> None:
        if self._deployment is not None:
            await self._deployment.close()


def _folder(model: str) -> Path:
    folder = paths.locate(model)
    if not (folder / "config.json").is_file():
        raise ValueError(f"model: expected a model's folder with a config.json, found none at {model!r}")
    return folder.resolve()


def gpus_of_each_worker(config: LocalVLLMModelConfig) -> float:
    return (1.0 if _has_gpu() else 0.0) if config.num_gpus is None else config.num_gpus


def _has_gpu() -> bool:
    return Path("/proc/driver/nvidia/gpus").is_dir() or Path("/dev/nvidia0").exists()


if __name__ == "__main__":
    LocalVLLMModel.run_webserver()
