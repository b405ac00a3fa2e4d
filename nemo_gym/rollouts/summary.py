"""What a job came to: the figures of `metrics.json`, and the same for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from .entries import Entries, Entry
from .profile import powers
from .statistics import Interval, mean_interval, pass_at, pass_hat


class Summary(Struct, frozen=True):
    rollouts: int
    asked: int
    masked: int
    reward: Interval | None
    passes: dict[int, float]
    """k -> pass@k, over the tasks that have k rollouts."""
    passes_all: dict[int, float]
    """k -> pass^k, over the same."""
    prompt_tokens: int
    output_tokens: int
    calls: int | None
    """Model calls recorded; None where capture is off, or no rollout was finished."""
    rollout_s: dict[str, float]
    seconds: float
    """Wall time of this start."""
    failures: dict[str, int]
    incomplete: dict[str, int]


def summarise(
    entries: Sequence[Entry] | Entries, failures: Counter[str], *, asked: int, repeats: int, seconds: float
) -> Summary:
    groups: dict[int, list[float]] = {}
    for entry in entries:
        if not entry.masked:
            groups.setdefault(entry.task, []).append(entry.reward)
    known = [entry.calls for entry in entries if entry.calls is not None]
    times = sorted(entry.seconds for entry in entries)
    passes = {k: pass_at(groups.values(), k) for k in powers(repeats)}
    all_pass = {k: pass_hat(groups.values(), k) for k in powers(repeats)}
    return Summary(
        rollouts=len(entries),
        asked=asked,
        masked=sum(entry.masked for entry in entries),
        reward=mean_interval(groups.values()),
        passes={k: value for k, value in passes.items() if value is not None},
        passes_all={k: value for k, value in all_pass.items() if value is not None},
        prompt_tokens=sum(entry.prompt_tokens for entry in entries),
        output_tokens=sum(entry.output_tokens for entry in entries),
        calls=sum(known) if known else None,
        rollout_s={name: times[int(share * (len(times) - 1))] for name, share in _SHARES.items()} if times else {},
        seconds=seconds,
        failures=dict(failures),
        incomplete=dict(Counter(entry.incomplete for entry in entries if entry.incomplete)),
    )


_SHARES = {"p50": 0.5, "p95": 0.95, "max": 1.0}


def metrics(summary: Summary, run_id: str) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(summary)
    passes, all_pass = fields.pop("passes"), fields.pop("passes_all")
    figures = {f"pass@{k}": value for k, value in passes.items()} | {f"pass^{k}": v for k, v in all_pass.items()}
    return {"run_id": run_id} | fields | figures


def lines(summary: Summary, output: str) -> list[str]:
    """The figures, aligned, for a person."""
    reward = summary.reward
    rows: list[tuple[str, str]] = []
    if reward is not None:
        spread = "" if reward.low is None else f"   95 % interval {reward.low:.3f} to {reward.high:.3f}"
        rows.append(("mean reward", f"{reward.mean:.3f}{spread}   {reward.rollouts} rollouts of {reward.tasks} tasks"))
    rows += [(f"pass@{k}", f"{value:.3f}") for k, value in summary.passes.items()]
    rows += [
        (f"pass^{k}", f"{value:.3f}") for k, value in summary.passes_all.items() if k == max(summary.passes_all) > 1
    ]
    done = f"{summary.rollouts} of {summary.asked}"
    rows.append(("rollouts", done + (f"   {summary.masked} masked" if summary.masked else "")))
    if summary.failures:
        rows.append(("failed", _counted(summary.failures)))
    if summary.incomplete:
        rows.append(("records not whole", _counted(summary.incomplete)))
    rows.append(("tokens", f"{summary.prompt_tokens:,} in, {summary.output_tokens:,} out"))
    if summary.calls is not None:
        rows.append(("model calls", f"{summary.calls:,}"))
    elif summary.rollouts:
        rows.append(("model calls", "not recorded: capture is off"))
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in summary.rollout_s.items())
    rows.append(("wall time", f"{_duration(summary.seconds)}" + (f"   a rollout, s: {seconds}" if seconds else "")))
    rows.append(("results", output))
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
