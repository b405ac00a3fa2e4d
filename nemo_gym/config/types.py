"""The shape of a configuration, as pydantic models.

Strangers write configurations, so this is where they are checked, and every message is about a key that the writer can
see. What is this project's own (a job, capture, the cluster) refuses unknown keys; what NeMo Gym has too passes them
over, as there (`unknown.py` tells of them). `host` and `port` have defaults: the launcher chooses what is not said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator

Kind = Literal["responses_api_models", "responses_api_agents", "resources_servers"]
KINDS: tuple[Kind, ...] = ("responses_api_models", "responses_api_agents", "resources_servers")
ROLLOUT_PATH_PREFIX = "ng-rollout"
TOKEN_CAPTURE_PATH_SEGMENT = "training-token-capture"
"""Under the name that environments import; no call has it here, since tokens are always recorded."""


class ConfigError(Exception):
    """A mistake in what the user wrote; its text is all that the user needs to see."""


def _a_path(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError(f"expected a path, got {text!r}")
    return text


PathText = Annotated[str, AfterValidator(_a_path)]
"""A file or a folder; an empty one would be taken for the project's folder."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, protected_namespaces=())


# ---- references from one server to another


class ModelServerRef(BaseModel):
    type: Literal["responses_api_models"]
    name: str


class ResourcesServerRef(BaseModel):
    type: Literal["resources_servers"]
    name: str


class AgentServerRef(BaseModel):
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
    jsonl_fpath: PathText
    num_repeats: int = Field(default=1, ge=1)
    license: str | None = None
    prepare_script: Path | None = None
    """By which the file is made, where it is not in the repository."""
    prepare_dependencies: list[str] = []
    taskset: str | None = Field(default=None, min_length=1)

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
    model_config = ConfigDict(protected_namespaces=())
    PASSED_OVER: ClassVar[Mapping[str, str]] = {}
    """Keys that NeMo Gym's server of this name has and that change nothing here, and why; a warning tells of each."""

    host: str = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65535)
    num_workers: int | None = Field(default=None, ge=1)
    log_format: Literal["text", "json"] = "text"

    @model_validator(mode="before")
    @classmethod
    def _without_what_says_nothing(cls, data: Any) -> Any:
        """A server's own kind is known: environments' tests name it, as a reference to the server does."""
        if not isinstance(data, dict):
            return data
        needless = set(cls.PASSED_OVER)
        if "type" not in cls.model_fields and data.get("type") in KINDS:
            needless.add("type")
        return {key: value for key, value in data.items() if key not in needless}


class PlaceConfig(_Closed):
    """Where a server goes on the run's Ray cluster (the run's own `ray.address`); without one nothing comes of it."""

    num_cpus: float | None = Field(default=None, ge=0)
    """Kept for it. null: a CPU must be free when it is placed, and none is kept."""
    num_gpus: float = Field(default=0, ge=0)
    resources: dict[str, Annotated[float, Field(gt=0)]] = {}
    """The cluster's own, by name: how much of each is kept for it."""
    node: str | None = Field(default=None, min_length=1)
    """A node by its id, the beginning of it, or its address; spread over all nodes unless said."""


class BaseRunServerConfig(BaseServerConfig):
    entrypoint: str = "app.py"
    ray: PlaceConfig = PlaceConfig()
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


# ---- the cluster, capture and jobs


class ClusterConfig(_Closed):
    """The Ray cluster that a run's servers are placed on."""

    address: str = "local"
    """`auto` or host:port joins one; `local`: no cluster, the servers are processes beside ng_run."""
    files: Literal["auto", "shared", "brought"] = "auto"
    """How captures and logs come together: written to their folders from every node (`shared`), or kept on the node
    and brought here as they grow (`brought`). `auto`: shared by each node that sees the folders."""
    node_dir: PathText = "~/.cache/nemo_gym/nodes"
    """Where a node keeps what is to be brought."""
    env: dict[str, str] = {}
    """Environment variables of all servers, beside those of their nodes."""
    place_timeout_s: float = Field(default=300, gt=0)
    """How long a server may wait for its place."""

    @property
    def joined(self) -> bool:
        return self.address != "local"

    @field_validator("address")
    @classmethod
    def _is_one(cls, value: str) -> str:
        if value in ("auto", "local") or re.fullmatch(r"[^\s/:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", value):
            return value
        raise ValueError(f"expected auto, local or host:port, got {value!r}")


class CaptureConfig(_Closed):
    """How calls are recorded; a job's default folder is `<output>/captures`."""

    enabled: bool = True
    dir: PathText | None = None
    durability: Literal["fsync", "flush", "none"] = "fsync"
    raw: Literal["off", "errors", "all"] = "off"
    binary: Literal["keep", "reference"] = "keep"
    max_shard_bytes: int = Field(default=256 << 20, ge=1 << 16)
    max_shard_age_s: float = Field(default=3600, gt=0)
    upload: PathText | None = None

    @field_validator("raw", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads a bare `off` as false


def _either(name: str, other: str) -> AliasChoices:
    return AliasChoices(name, other)


_MOST_REPEATS = 1_000_000
_MOST_ROWS = 2**53
"""What any reader of JSON takes for a whole number."""


def _at_least_one(repeats: int | dict[str, int]) -> int | dict[str, int]:
    numbers = list(repeats.values()) if isinstance(repeats, dict) else [repeats]
    if (fewest := min(numbers, default=1)) < 1:
        raise ValueError(f"expected at least 1, got {fewest}")
    if (most := max(numbers, default=1)) > _MOST_REPEATS:
        raise ValueError(f"expected at most {_MOST_REPEATS:,}, got {most}")
    return repeats


class JobDataset(_Closed):
    """One of several datasets of a job; what is not said here is the job's own."""

    input: PathText = Field(validation_alias=_either("input", "input_jsonl_fpath"))
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """In every row's `_ng_dataset`; the file's name without its ending unless said."""
    agent: str | list[str] | None = Field(default=None, validation_alias=_either("agent", "agent_name"))
    repeats: int | dict[str, int] | None = Field(default=None, validation_alias=_either("repeats", "num_repeats"))
    limit: int | None = Field(default=None, ge=1, le=_MOST_ROWS)
    responses_create_params: dict[str, Any] = {}

    @field_validator("repeats")
    @classmethod
    def _some(cls, value: int | dict[str, int] | None) -> int | dict[str, int] | None:
        return None if value is None else _at_least_one(value)


class JobLimits(_Closed):
    """Where a job ends before its data does; what an earlier start of it took counts too."""

    rollouts: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    """Prompt and completion tokens of finished rollouts, as usage states them."""
    cost: float | None = Field(default=None, gt=0)
    """In the currency of `prices`."""
    seconds: float | None = Field(default=None, gt=0)
    """Of this start."""


class Price(_Closed):
    """Of a million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """Of prompt tokens that were read from a cache; `input` unless said."""


class StopWhen(_Closed):
    """Enough is known: the 95 % interval of the mean, clustered by task, is narrower than this, end to end."""

    metric: str = "reward"
    """`reward`, or a numeric field that the verifier answers with."""
    narrower_than: float = Field(gt=0)
    tasks: int = Field(default=10, ge=2)
    """Not before so many tasks were seen: a few that agree by chance have a narrow interval too."""


RetriedKind = Literal["agent", "model", "verifier", "timeout", "infrastructure"]


class JobConfig(_Closed):
    """One eval job. NeMo Gym's names of the same keys are accepted."""

    agent: str | list[str] | None = Field(default=None, validation_alias=_either("agent", "agent_name"))
    """Who plays each row; several play each row each. Without it the row's own `agent_ref`."""
    input: PathText | None = Field(default=None, validation_alias=_either("input", "input_jsonl_fpath"))
    datasets: list[JobDataset] = []
    """In the place of `input`, where there are several."""
    output: PathText = Field(validation_alias=_either("output", "output_jsonl_fpath"))
    repeats: int | dict[str, int] = Field(default=1, validation_alias=_either("repeats", "num_repeats"))
    """Or a number for each agent, by its name. A row's `num_repeats` wins over both."""
    concurrency: int = Field(default=64, ge=1, validation_alias=_either("concurrency", "num_samples_in_parallel"))
    limit: int | None = Field(default=None, ge=1, le=_MOST_ROWS)
    rollout_timeout_s: float = Field(default=900, gt=0)
    retries: dict[RetriedKind, Annotated[int, Field(ge=0, le=100)]] = {"infrastructure": 2, "model": 1}
    """How often a rollout that failed is made anew, by the kind of its failure."""
    limits: JobLimits = JobLimits()
    prices: dict[str, Price] = {}
    """By the model that replies name; `*` in a name stands for anything."""
    stop_when: StopWhen | None = None
    resume: bool = Field(default=False, validation_alias=_either("resume", "resume_from_cache"))
    accept_changes: bool = False
    """Resume although the config or a dataset is not what it was; the manifest then says what changed."""
    overwrite: bool = False
    export: list[str] = []
    run_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,128}$")
    responses_create_params: dict[str, Any] = {}

    def parts(self) -> list[JobDataset]:
        """Its datasets, each with all that it plays by; names are unique."""
        said = self.datasets or [JobDataset(input=self.input or "")]
        taken: dict[str, int] = {}
        found = []
        for part in said:
            name = part.name or re.sub(r"[^A-Za-z0-9._-]", "_", PurePath(part.input).stem) or "dataset"
            taken[name] = taken.get(name, 0) + 1
            told = {
                "name": name if taken[name] == 1 else f"{name}-{taken[name]}",
                "agent": self.agent if part.agent is None else part.agent,
                "repeats": self.repeats if part.repeats is None else part.repeats,
                "limit": self.limit if part.limit is None else part.limit,
                "responses_create_params": self.responses_create_params | part.responses_create_params,
            }
            found.append(part.model_copy(update=told))
        return found

    def agents(self) -> list[str]:
        """Those that the job names, each once."""
        named = [part.agent for part in self.parts()]
        every = [name for one in named for name in ([one] if isinstance(one, str) else one or [])]
        return list(dict.fromkeys(every))

    @field_validator("output")
    @classmethod
    def _folder(cls, value: str) -> str:
        return _a_path(value.removesuffix(".jsonl"))  # a job's output is a folder; NeMo Gym names a file

    @field_validator("repeats")
    @classmethod
    def _some(cls, value: int | dict[str, int]) -> int | dict[str, int]:
        return _at_least_one(value)

    @model_validator(mode="after")
    def _one_source(self) -> JobConfig:
        if (self.input is None) == (not self.datasets):
            raise ValueError("expected input, or datasets, and not both")
        if self.limits.cost is not None and not self.prices:
            raise ValueError("limits.cost needs prices, by model")
        return self

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
