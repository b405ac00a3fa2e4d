"""What a job is to make: every row of every dataset, by every agent that plays it, so many times.

Tasks are numbered through the whole job, and each row has a number for each agent that plays it: repeats of one number
are alike in everything, so figures and training groups need to know of nothing else. Only one row is in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from typing import Any

from msgspec import Struct

from ..config.types import JobConfig, JobDataset
from .dataset import Dataset, Measure, Row, Stamp

DATASET = "_ng_dataset"
"""A field of a row of a job that has several datasets: which of them it is of."""


class Task(Struct, frozen=True):
    """One number of the job: a row, who plays it, and how often."""

    number: int
    agent: str
    repeats: int
    data: dict[str, Any]
    fault: str | None


class Plan:
    """The tasks of a job, in order.

    Args:
        agents: those that there are; a row that names another one cannot be run. None: whoever is named is there.
    """

    def __init__(self, job: JobConfig, agents: Collection[str] | None = None) -> None:
        self._parts = job.parts()
        self._agents = agents
        self._named = len(self._parts) > 1
        self.asked = 0
        """Rollouts in all, once it was measured."""
        self._measures: dict[tuple[str, int | None], tuple[Stamp | None, Measure]] = {}

    def measure(self) -> dict[str, Any]:
        """What makes this plan the same one when it is resumed: one pass over each file."""
        identity: dict[str, Any] = {}
        self.asked = 0
        for part in self._parts:
            key = (part.input, part.limit)
            if key not in self._measures:
                dataset = self._dataset(part)
                self._measures[key] = dataset.stamp(), dataset.measure()
            _, found = self._measures[key]
            self.asked += self._asked_of(part, found)
            identity |= self._identity(part) | self._under(part, {"dataset_sha256": found.sha256, "rows": found.rows})
        return identity

    def _asked_of(self, part: JobDataset, measure: Measure) -> int:
        if part.agent is None and isinstance(part.repeats, dict):  # each row has to be asked who plays it
            return sum(self._task(part, row, None, 0).repeats for row in self._dataset(part))
        own = sum(measure.own_repeats.values())
        asked = sum(repeats * rows for repeats, rows in measure.own_repeats.items())
        return sum(asked + (measure.rows - own) * _repeats_of(part, agent) for agent in _agents_of(part))

    def changed(self) -> list[str]:
        """Files that are not what they were when they were measured: some rollouts may be of other rows."""
        found = []
        for (path, limit), (stamp, measure) in self._measures.items():
            dataset = Dataset(path, limit)
            if (now := dataset.stamp()) is None or (now != stamp and dataset.measure().sha256 != measure.sha256):
                found.append(path)
        return list(dict.fromkeys(found))

    def identity(self) -> dict[str, Any]:
        """What of it the config says by itself."""
        return {name: value for part in self._parts for name, value in self._identity(part).items()}

    def faults(self) -> list[tuple[str, str]]:
        """(key, words) for each dataset that is none, judged by its first rows."""
        found = []
        for place, part in enumerate(self._parts):
            key = "job.input" if not self._named else f"job.datasets.{place}.input"
            dataset = self._dataset(part)
            if (fault := unwritable(part.input)) is not None:
                found.append((key, fault))
                continue
            if not dataset.path.is_file():
                found.append((key, f"expected a JSONL file, there is none at {dataset.path}"))
                continue
            try:
                first = dataset.first()
            except OSError as error:
                found.append((key, f"{dataset.path} cannot be read: {error.strerror}"))
                continue
            fault = "it has no rows" if first is None else first.fault
            if fault is not None:
                found.append((key, f"expected rows of a dataset: {fault}"))
            elif part.agent is None and first is not None and _agent_ref(first.data) is None:
                key = key.replace("input", "agent")
                found.append((key, "is required: the first row has no agent_ref that names who plays it"))
        return found

    def __iter__(self) -> Iterator[Task]:
        numbers = count()
        for part in self._parts:
            for row in self._dataset(part):
                for agent in _agents_of(part):
                    yield self._task(part, row, agent, next(numbers))

    def _task(self, part: JobDataset, row: Row, agent: str | None, number: int) -> Task:
        fault = row.fault
        if agent is None and fault is None:
            agent = _agent_ref(row.data)
            fault = "agent_ref: the job names no agent, and neither does the row" if agent is None else None
        if fault is None and self._agents is not None and agent not in self._agents:
            fault = f"agent_ref: there is no agent {agent!r}"
        data = row.data | {DATASET: part.name} if self._named else row.data
        repeats = row.repeats or _repeats_of(part, agent)
        return Task(number, agent or "", repeats, data, fault)

    def _dataset(self, part: JobDataset) -> Dataset:
        return Dataset(part.input, part.limit, part.responses_create_params)

    def _identity(self, part: JobDataset) -> dict[str, Any]:
        fields = ("agent", "limit", "repeats", "responses_create_params")
        return self._under(part, {name: getattr(part, name) for name in fields})

    def _under(self, part: JobDataset, fields: dict[str, Any]) -> dict[str, Any]:
        return {f"{part.name}.{name}": value for name, value in fields.items()} if self._named else fields


def unwritable(path: str) -> str | None:
    """Why a path cannot be written down: where a name is no text, no manifest could say which file it was."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return f"expected a path in UTF-8, got {path!r}"
    return None


def _agents_of(part: JobDataset) -> list[str | None]:
    if isinstance(part.agent, list):
        return list(part.agent)
    return [part.agent]


def _repeats_of(part: JobDataset, agent: str | None) -> int:
    if isinstance(part.repeats, dict):
        return part.repeats.get(agent or "", 1)
    return part.repeats or 1


def _agent_ref(row: dict[str, Any]) -> str | None:
    ref = row.get("agent_ref")
    name = ref.get("name") if isinstance(ref, dict) else None
    return name if isinstance(name, str) and name else None
