"""How much was learnt: the held-out tasks before and after, and whether the gain is more than chance."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct

from nemo_gym.rollouts.statistics import mean_interval

from . import tasks
from .policy import BASE, Step
from .servers import Batch, Servers

REPEATS = 4
Say = Callable[[str], None]


class Line(Struct, frozen=True):
    """One step of the curve."""

    step: int
    reward: float
    """Mean of the batch that the step was made of."""
    mixed: float
    versions: tuple[int | None, int | None]
    """The oldest and the newest that sampled its tokens."""
    version: int
    """Of the policy that took the step."""
    made: Step
    seconds: dict[str, float]


class Result(Struct, frozen=True):
    """`low` and `high` are the 95 % interval of the gain, paired by task."""

    method: str
    seed: int
    before: float
    after: float
    gain: float
    low: float | None
    high: float | None
    tasks: int
    seconds: float
    curve: list[Line]


async def measured(
    servers: Servers, learn: Callable[[], Awaitable[list[Line]]], folder: Path, held_out: int, method: str, seed: int
) -> Result:
    """Starts from the embedded model as it is; `learn` leaves its weights in the engine and gives its curve."""
    began = time.monotonic()
    if servers.version:
        await servers.load(BASE)
    before = await servers.play(tasks.held_out(held_out), REPEATS, folder / "before")
    curve = await learn()
    after = await servers.play(tasks.held_out(held_out), REPEATS, folder / "after")
    low, high, gain = _gain(before, after)
    seconds = time.monotonic() - began
    return Result(method, seed, before.mean, after.mean, gain, low, high, held_out, seconds, curve)


def _gain(before: Batch, after: Batch) -> tuple[float | None, float | None, float]:
    gains = [_mean(new) - _mean(old) for old, new in zip(before.rewards, after.rewards, strict=True)]
    interval = mean_interval([gain] for gain in gains)
    assert interval is not None
    return interval.low, interval.high, interval.mean


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def in_words(result: Result) -> str:
    spread = "" if result.low is None else f", 95 % interval {result.low:.3f} to {result.high:.3f}"
    return (
        f"{result.method}, seed {result.seed}: {result.before:.3f} before, {result.after:.3f} after, "
        f"gain {result.gain:.3f}{spread} ({result.tasks} held-out tasks, {result.seconds:.0f} s)"
    )
