"""Rows of a JSONL file, streamed: a dataset of any size costs the memory of one row.

A line that cannot be run is one failed task, numbered like any other, so the rest keep their numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from .outcome import shortened

_BLOCK = 1 << 20


class Row(Struct, frozen=True):
    """One task. `fault` says why it cannot be run; then `data` is what could be read of it."""

    task: int
    data: dict[str, Any]
    fault: str | None = None


class Dataset:
    """A JSONL file of tasks.

    Args:
        limit: only the first so many rows.
        params: laid over each row's `responses_create_params`.
    """

    def __init__(self, path: str | Path, limit: int | None = None, params: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.limit = limit
        self._params = dict(params or {})

    def __iter__(self) -> Iterator[Row]:
        task = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if self.limit is not None and task >= self.limit:
                    return
                if line.strip():
                    yield self._row(task, number, line)
                    task += 1

    def measure(self) -> tuple[int, str]:
        """How many rows there are (within the limit), and the digest of the whole file."""
        digest = hashlib.sha256()
        rows = 0
        with self.path.open("rb") as file:
            for line in file:
                digest.update(line)
                rows += bool(line.strip())
        return rows if self.limit is None else min(rows, self.limit), digest.hexdigest()

    def first_fault(self) -> str | None:
        """Why this file is no dataset at all, judged by its first row."""
        first = next(iter(self), None)
        return "it has no rows" if first is None else first.fault

    def _row(self, task: int, number: int, line: bytes) -> Row:
        where = f"{self.path}:{number}"
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            return Row(task, {}, f"{where}: not JSON: {shortened(str(error))}")
        if not isinstance(data, dict):
            return Row(task, {}, f"{where}: a row must be a JSON object, not {type(data).__name__}")
        params = data.get("responses_create_params")
        if not isinstance(params, dict) or not isinstance(params.get("input"), str | list):
            return Row(task, data, f"{where}: responses_create_params.input: expected a list of messages or a string")
        if self._params:
            data["responses_create_params"] = params | self._params
        return Row(task, data)
