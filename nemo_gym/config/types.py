"""The shape of a configuration, as pydantic models.

Strangers write configurations, so this is where they are checked: unknown keys are refused, and every message is about
a key that the writer can see. `host` and `port` have defaults, since the launcher chooses what is not said.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator

Kind = Literal["responses_api_models", "responses_api_agents", "resources_servers"]
KINDS: tuple[Kind, ...] = ("responses_api_models", "responses_api_agents", "resources_servers")
ROLLOUT_PATH_PREFIX = "ng-rollout"


class ConfigError(Exception):
    """A mistake in what the user wrote; its text is all that the user needs to see."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, protected_namespaces=())


# ---- references from one server to another


class ModelServerRef(_Closed):
    type: Literal["responses_api_models"]
    name: str


class ResourcesServerRef(_Closed):
    type: Literal["resources_servers"]
    name: str


class AgentServerRef(_Closed):
    type: Literal["responses_api_agents"]
    name: str


ServerRef = ModelServerRef | ResourcesServerRef | AgentServerRef


# ---- datasets


class DatasetConfig(BaseModel):
    """A dataset that belongs to an environment or an agent.

    Keys that only a download or a preparation needs (`source`, `gitlab_identifier`, ...) are kept as they are.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    type: Literal["train", "validation", "example", "benchmark"]
    jsonl_fpath: str
    num_repeats: int = Field(default=1, ge=1)
    license: str | None = None

    @model_validator(mode="after")
    def _trained_on_by_licence(self) -> DatasetConfig:
        if self.type in ("train", "validation") and not self.license:
            raise ValueError(f"license: is required for {self.name}, since it is of the type {self.type}")
        return self


# ---- servers


class Domain(StrEnum):
    """The one capability that an environment mainly measures or trains."""

    MATH = "math"
    CODING = "coding"
    AGENT = "agent"
    KNOWLEDGE = "knowledge"
    INSTRUCTION_FOLLOWING = "instruction_following"
    LONG_CONTEXT = "long_context"
    SAFETY = "safety"
    GAMES = "games"
    TRANSLATION = "translation"
    E2E = "e2e"
    RLHF = "rlhf"
    OTHER = "other"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    return host in ("localhost", "::1") or host.startswith("127.")


class BaseServerConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    host: str = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65535)
    num_workers: int | None = Field(default=None, ge=1)
    log_format: Literal["text", "json"] = "text"


class BaseRunServerConfig(BaseServerConfig):
    entrypoint: str = "app.py"
    domain: Domain | None = None


class BaseRunServerInstanceConfig(BaseRunServerConfig):
    """What every server's config has; `name` is the instance's, unique in a run."""

    name: str
    datasets: list[DatasetConfig] | None = None
    description: str | None = None
    value: str | None = None
    verified: bool | None = None
    verified_url: str | None = None
    license: str | None = None
    allowed_agents: list[str] | str | None = None
    allowed_model_types: list[str] | str | None = None


# ---- capture and jobs


class CaptureConfig(_Closed):
    """How calls are recorded; a job's default folder is `<output>/captures`."""

    enabled: bool = True
    dir: str | None = None
    durability: Literal["fsync", "flush", "none"] = "fsync"
    raw: Literal["off", "errors", "all"] = "off"
    binary: Literal["keep", "reference"] = "keep"
    max_shard_bytes: int = Field(default=256 << 20, ge=1 << 16)
    max_shard_age_s: float = Field(default=3600, gt=0)
    upload: str | None = None

    @field_validator("raw", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads a bare `off` as false


def _either(name: str, other: str) -> AliasChoices:
    return AliasChoices(name, other)


class JobConfig(_Closed):
    """One eval job. NeMo Gym's names of the same keys are accepted."""

    agent: str = Field(validation_alias=_either("agent", "agent_name"))
    input: str = Field(validation_alias=_either("input", "input_jsonl_fpath"))
    output: str = Field(validation_alias=_either("output", "output_jsonl_fpath"))
    repeats: int = Field(default=1, ge=1, validation_alias=_either("repeats", "num_repeats"))
    concurrency: int = Field(default=64, ge=1, validation_alias=_either("concurrency", "num_samples_in_parallel"))
    limit: int | None = Field(default=None, ge=1)
    rollout_timeout_s: float = Field(default=900, gt=0)
    resume: bool = Field(default=False, validation_alias=_either("resume", "resume_from_cache"))
    overwrite: bool = False
    export: list[str] = []
    run_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,128}$")
    responses_create_params: dict[str, Any] = {}

    @field_validator("output")
    @classmethod
    def _folder(cls, value: str) -> str:
        return value.removesuffix(".jsonl")  # a job's output is a folder; NeMo Gym names a file

    @model_validator(mode="before")
    @classmethod
    def _one_name_each(cls, data: Any) -> Any:
        for name, field in cls.model_fields.items() if isinstance(data, dict) else ():
            if isinstance(field.validation_alias, AliasChoices):
                said = [str(choice) for choice in field.validation_alias.choices if choice in data]
                if len(said) > 1:
                    raise ValueError(f"{' and '.join(said)} are two names of one key: keep {name}")
        return data


# ---- metrics that an environment or an agent computes over many rollouts


class AggregateMetricsRequest(BaseModel):
    """Verify responses, each with at least `_ng_task_index` and `reward`."""

    verify_responses: list[dict[str, Any]]


class AggregateMetrics(BaseModel):
    """Flat string keys, ready for a tracker."""

    group_level_metrics: list[dict[str, Any]] = Field(default_factory=list)
    agent_metrics: dict[str, Any] = Field(default_factory=dict)
    key_metrics: dict[str, Any] = Field(default_factory=dict)
    repeat_level_metrics: list[dict[str, Any]] = Field(default_factory=list)
    perf_summary: dict[str, Any] | None = None
