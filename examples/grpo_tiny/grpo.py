"""Reinforcement: play tasks, export what was captured, one step on it, the new weights to the engine; and again."""

from __future__ import annotations

import asyncio
import shutil
import time
from itertools import islice
from pathlib import Path

from msgspec import Struct

from nemo_gym.export.exporter import ExportSummary, Options

from . import policy, tasks
from .measure import Line, Say
from .policy import BASE, Policy
from .servers import Batch, Servers

OLDEST = 2
"""Versions by which a token may be older than the policy that learns from it."""


class Plan(Struct, frozen=True):
    steps: int = 16
    prompts: int = 16
    samples: int = 8
    learning_rate: float = 3e-4
    ahead: bool = False
    """The next batch is played while the policy learns from this one, and so by older weights."""


async def learn(servers: Servers, plan: Plan, seed: int, folder: Path, say: Say) -> list[Line]:
    learner, drawn = Policy(BASE, plan.learning_rate), tasks.training(seed)
    curve: list[Line] = []

    def play(step: int) -> asyncio.Task[Batch]:
        rows = list(islice(drawn, plan.prompts))
        return asyncio.create_task(servers.play(rows, plan.samples, folder / f"step-{step:03d}"))

    playing = play(0)
    try:
        for step in range(plan.steps):
            clock = _Clock()
            batch = await playing
            clock.lap("play")
            more = step + 1 < plan.steps
            if plan.ahead and more:
                playing = play(step + 1)
            version = servers.version
            exported = await asyncio.to_thread(_exported, servers, batch)
            clock.lap("export")
            made = await asyncio.to_thread(learner.step, policy.read(batch.folder / "exports" / "token_rows"))
            clock.lap("learn")
            await servers.load(learner.save(folder / "weights" / f"{step:03d}"))
            shutil.rmtree(folder / "weights" / f"{step - 1:03d}", ignore_errors=True)  # nothing asks for it any more
            clock.lap("load")
            curve.append(Line(step, batch.mean, batch.mixed, exported.policy_versions, version, made, clock.seconds))
            say(_in_words(curve[-1]))
            if more and not plan.ahead:
                playing = play(step + 1)
    finally:
        playing.cancel()
        await asyncio.wait([playing])
    return curve


def _exported(servers: Servers, batch: Batch) -> ExportSummary:
    options = Options(shared=True, advantage="grpo", max_staleness=OLDEST, policy_version=servers.version)
    return servers.export(batch, ["token_rows"], options)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = round(now - self._last, 3)
        self._last = now


def _in_words(line: Line) -> str:
    took = ", ".join(f"{name} {seconds:.1f}" for name, seconds in line.seconds.items())
    (oldest, newest), (lowest, highest) = line.versions, line.made.ratio
    return (
        f"step {line.step:3}  reward {line.reward:.3f}  mixed {line.mixed:.2f}  ratio {lowest:.4f} to {highest:.4f}  "
        f"versions {oldest}-{newest} at {line.version}  ({took} s)"
    )
