"""Files by custom: what in an agent's folder is no work of it, and what lies beside a file of rollouts."""

from __future__ import annotations

from pathlib import Path

_HISTORIES = ("history.json", "history.pkl", "inprogress_history.json", "log.txt", "metadata.json")
IGNORE_FILES = frozenset((*_HISTORIES, "finish_params.json", "reference_files"))
"""What a harness keeps in the folder for itself, or was given with the task."""


def is_deliverable(path: Path) -> bool:
    """Whether it is a file that the agent made."""
    return path.name not in IGNORE_FILES and path.is_file()


def failures_path_for(output_fpath: Path) -> Path:
    return _beside(output_fpath, "failures.jsonl")


def materialized_path_for(output_fpath: Path) -> Path:
    return _beside(output_fpath, "materialized_inputs.jsonl")


def aggregate_metrics_path_for(output_fpath: Path) -> Path:
    return _beside(output_fpath, "aggregate_metrics.json")


def _beside(rollouts: Path, what: str) -> Path:
    return rollouts.with_name(f"{rollouts.stem}_{what}")
