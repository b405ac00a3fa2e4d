"""Rows of a JSONL file, streamed: a dataset of any size costs the memory of one row.

A line that cannot be run is one failed task, numbered like any other, so the rest keep their numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from .outcome import shortened

REPEATS = "num_repeats"
"""A row's own number of repeats."""
_SAYS_REPEATS = re.compile(rb'"num_repeats"\s*:')
_MOST_REPEATS = 1_000_000
_FEW = 20
Stamp = tuple[int, int, int, int]


class Row(Struct, frozen=True):
    """One task. `fault` says why it cannot be run; then `data` is what could be read of it."""

    task: int
    data: dict[str, Any]
    fault: str | None = None
    repeats: int | None = None
    """Its own, where it says so."""


class Measure(Struct, frozen=True):
    rows: int
    """Within the limit."""
    sha256: str
    """Of the whole file."""
    own_repeats: dict[int, int]
    """How many rows ask for so many repeats of their own."""


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

    def stamp(self) -> Stamp | None:
        """What shows at a glance that the file may have changed; None when it is gone."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def measure(self) -> Measure:
        """One pass over the file, in which a line is read only where it says something of its repeats."""
        digest = hashlib.sha256()
        rows = 0
        own: Counter[int] = Counter()
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                digest.update(line)
                if not line.strip() or (self.limit is not None and rows >= self.limit):
                    continue
                if _SAYS_REPEATS.search(line) and (said := self._row(rows, number, line).repeats) is not None:
                    own[said] += 1
                rows += 1
        return Measure(rows, digest.hexdigest(), dict(own))

    def first(self) -> Row | None:
        """Of the first few rows one that can be run, else the very first: a file without any such is no dataset."""
        first: Row | None = None
        for row in islice(self, _FEW):
            if row.fault is None:
                return row
            first = first or row
        return first

    def _row(self, task: int, number: int, line: bytes) -> Row:
        where = f"{self.path}:{number}"
        try:
            data = json.loads(line.decode("utf-8-sig", "surrogatepass"))
        except UnicodeDecodeError:
            return Row(task, {}, f"{where}: not JSON in UTF-8")
        except (ValueError, RecursionError) as error:
            return Row(task, {}, f"{where}: not JSON: {shortened(str(error))}")
        if not isinstance(data, dict):
            return Row(task, {}, f"{where}: a row must be a JSON object, not {type(data).__name__}")
        params = data.get("responses_create_params")
        if not isinstance(params, dict) or not isinstance(params.get("input"), str | list):
            return Row(task, data, f"{where}: responses_create_params.input: expected a list of messages or a string")
        if self._params:
            data["responses_create_params"] = params | self._params
        said = data.get(REPEATS)
        if said is not None and (type(said) is not int or not 1 <= said <= _MOST_REPEATS):
            return Row(
                task, data, f"{where}: {REPEATS}: expected a whole number from 1 on, got {shortened(repr(said))}"
            )
        return Row(task, data, repeats=said)
