"""What is exported: a job's folder, or captures alone, such as those of `ng_serve`.

Captures alone say which rollouts there were and nothing of how good they are: rewards are unknown, each rollout is a
task of its own, and a call of no rollout belongs to its client's session, or stands by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from .options import ExportError, Options

CAPTURES, EXPORTS = "captures", "exports"
_RESULTS, _MANIFEST = "rollouts.jsonl", "manifest.json"
_OF_JOBS = ("nemo_rl", "verl", "preferences", "prompts")
"""Formats that rewards, or tasks, are a part of."""


class Source(Struct, frozen=True):
    captures: Path
    target: Path
    results: Path | None
    """The job's journal; None where there is no job."""


def found(output: Path, captures: str | Path | None, folder: str | Path | None) -> Source:
    """Raises ExportError.

    Args:
        output: the folder of a job, one with captures in it, or the captures themselves.
        captures: where they are, if not in the job's own folder.
        folder: where the formats' folders go, if not beside the captures.
    """
    results: Path | None = output / _RESULTS
    assert results is not None
    inner = Path(captures) if captures is not None else output / CAPTURES
    if results.is_file() or captures is not None or (output / _MANIFEST).is_file():
        source, beside = inner, output
    else:
        results, source = None, inner if inner.is_dir() else output
        beside = source.parent if source.name == CAPTURES else source
    if not source.is_dir() or (results is None and not _has_shards(source)):
        elsewhere = "; --captures says where they are" if results is not None and captures is None else ""
        raise ExportError(f"there are no captures at {inner if results is not None else output}{elsewhere}")
    return Source(source, Path(folder) if folder is not None else beside / EXPORTS, results)


def _has_shards(folder: Path) -> bool:
    return any(folder.rglob("*.arrow*"))


def check_alone(names: Sequence[str], options: Options) -> None:
    """Raises ExportError for what only a job's results can say."""
    needs = "needs a job's results, and these are captures alone"
    for name in names:
        if name in _OF_JOBS:
            raise ExportError(f"{name}: {needs}; there is token_rows, sft, openai, atif")
    asked = {"advantage": options.advantage, "min_reward": options.min_reward, "max_reward": options.max_reward}
    for option, value in (asked | {"agent": options.agents or None, "shared": options.shared or None}).items():
        if value is not None:
            raise ExportError(f"{option}: {needs}")


def of_none(call_id: str, session_id: str | None) -> str:
    """What stands for the rollout of a call that belongs to none; no rollout's id has a space."""
    return f"call {call_id}" if session_id is None else f"session {session_id}"
