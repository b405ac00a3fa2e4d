"""The product, as the loop uses it: servers up, tasks played, what was captured exported, new weights taken.

One run of servers serves the whole loop. Every batch of rollouts is a job with a folder of its own; the captures of
all of them are in one place.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import Struct
from rich.console import Console

from nemo_gym.config.compose import compose
from nemo_gym.config.types import JobConfig
from nemo_gym.export.exporter import ExportSummary, Options, export
from nemo_gym.launch.launcher import Launcher
from nemo_gym.rollouts import journal
from nemo_gym.rollouts.job import run_job
from nemo_gym.web import client
from nemo_gym.web.peers import ServerClient

from . import tasks

CONFIG = Path(__file__).with_name("config.yaml")
MODEL_SERVER = "policy_model"
AGENT = "example_weather_and_sums_simple_agent"
CONCURRENCY = 64
LONGEST_ANSWER = 96


class Batch(Struct, frozen=True):
    """Tasks that were played, each as many times as was asked."""

    folder: Path
    rewards: list[list[float]]
    """By task."""

    @property
    def mean(self) -> float:
        return sum(map(sum, self.rewards)) / max(sum(map(len, self.rewards)), 1)

    @property
    def mixed(self) -> float:
        """The share of tasks whose rollouts did not all earn the same: the others teach nothing."""
        return sum(len(set(group)) > 1 for group in self.rewards) / max(len(self.rewards), 1)


class Servers:
    """`async with Servers(folder) as servers`: up, and down at any end."""

    def __init__(self, folder: Path, overrides: Iterable[str] = ()) -> None:
        self.captures = folder / "captures"
        self.version = 0
        """Of the weights that the engine has."""
        self._composed = compose([f"+config_paths=[{CONFIG}]", f"++capture.dir={self.captures}", *overrides])
        if self._composed.problems:
            raise ValueError("; ".join(problem.message for problem in self._composed.problems))
        self._run_id = f"grpo-tiny-{secrets.token_hex(3)}"
        self._launcher = Launcher(self._composed, self._run_id, folder / "logs")

    async def __aenter__(self) -> Servers:
        await self._launcher.up(Console(stderr=True))
        self._client = ServerClient(self._launcher.servers, self._launcher.kinds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await client.close()
        await self._launcher.down()

    async def play(self, rows: Iterable[tasks.Task], repeats: int, folder: Path) -> Batch:
        """Every task `repeats` times, at temperature 1 and without truncation: the log-probs are the policy's own."""
        tasks.write(rows, folder / "tasks.jsonl")
        job = JobConfig(
            agent=AGENT,
            input=str(folder / "tasks.jsonl"),
            output=str(folder),
            repeats=repeats,
            concurrency=CONCURRENCY,
            responses_create_params={"temperature": 1.0, "top_p": 1.0, "max_output_tokens": LONGEST_ANSWER},
        )
        result = await run_job(
            job,
            self._client,
            run_id=self._run_id,
            model_servers=[MODEL_SERVER],
            config_digest=self._composed.digest(),
            console=Console(quiet=True),
        )
        if result.problem is not None:
            raise RuntimeError(result.problem)
        return Batch(folder, _rewards(folder / "rollouts.jsonl"))

    def export(self, batch: Batch, formats: list[str], options: Options) -> ExportSummary:
        return export(batch.folder, formats, self.captures, options)

    async def load(self, weights: Path) -> None:
        """Every token that is sampled from now on is sampled by these weights, and says so."""
        version = self.version + 1
        answer = await self._client.post(
            MODEL_SERVER, "/weights", json={"path": str(weights), "policy_version": version}
        )
        said: dict[str, Any] = json.loads(await answer.read())
        if answer.status != 200:
            raise RuntimeError(f"the model server did not take the weights: {answer.status} {said}")
        self.version = version


def _rewards(path: Path) -> list[list[float]]:
    groups: dict[int, list[float]] = {}
    for row in journal.read(path):
        groups.setdefault(row[journal.TASK], []).append(row["reward"])
    return [groups[task] for task in sorted(groups)]
