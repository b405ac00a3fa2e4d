"""What a format is given, and what it does with it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msgspec import Struct

from ..sequences import Sequence


class Result(Struct, frozen=True):
    """What the job says of a rollout."""

    rollout_id: str
    task_id: str
    task: int
    agent: str
    reward: float
    masked: bool = False
    calls: int | None = None
    """How many calls the model servers sealed it with; None where none could say."""
    incomplete: str | None = None


class Row(Struct, frozen=True):
    sequence: Sequence
    result: Result
    run_id: str
    complete: bool


class Format(Protocol):
    """Rows in, files out. `rows` counts what was written; `card` tells a reader what the columns are."""

    card: str
    rows: int

    def __init__(self, folder: Path) -> None: ...
    def add(self, row: Row) -> None: ...
    def close(self) -> None: ...
