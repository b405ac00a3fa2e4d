"""What a format is given, and the files it writes: parts of a bounded size, one series a split.

A format makes rows of a rollout; where they go, in which split and file, is the same for all of them.
"""

from __future__ import annotations

import io
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Protocol

import orjson
from msgspec import Struct

from ..captured import CapturedCall
from ..conversations import Conversation, Dialogue, Untold, conversations, dialogue
from ..ledger import Entry
from ..options import Branches, Options
from ..sequences import Sequence as Tokens

_FILE_BYTES = 256 << 20


class Rollout:
    """One rollout, whole.

    Args:
        sequences: of token ids; none where the backend gave no ids.
        complete: every call is in the capture, with its token ids, and its result holds.
    """

    def __init__(
        self, entry: Entry, calls: list[CapturedCall], sequences: list[Tokens], branches: Branches, complete: bool
    ) -> None:
        self.entry = entry
        self.calls = calls
        self.sequences = sequences
        self.complete = complete
        self._branches: Branches = branches

    @property
    def run_id(self) -> str:
        return self.calls[-1].run_id

    @property
    def group_id(self) -> str:
        """The repeats of one task in one run."""
        task = self.entry.task
        return f"{self.run_id}-{self.entry.task_id if task is None else task}"

    @cached_property
    def _conversations(self) -> list[tuple[Conversation, Dialogue | Untold]]:
        return [(one, _told(one)) for one in conversations(self.calls, self._branches)]

    def dialogues(self, skipped: Counter[str]) -> Iterator[tuple[Conversation, Dialogue]]:
        """Its conversations; those that cannot be told as messages are counted."""
        for conversation, said in self._conversations:
            if isinstance(said, Untold):
                skipped[str(said)] += 1
                continue
            further = len(conversation.last.choices) - 1
            if further > 0:
                skipped["further_choices"] += further
            yield conversation, said

    def named(self) -> dict[str, Any]:
        """What every row of it says of it."""
        entry = self.entry
        return {
            "reward": entry.reward,
            "task_id": entry.task_id,
            "group_id": self.group_id,
            "rollout_id": entry.rollout_id,
            "run_id": self.run_id,
            "agent": entry.agent,
        }


def _told(conversation: Conversation) -> Dialogue | Untold:
    try:
        return dialogue(conversation)
    except Untold as untold:
        return untold


class Written(Struct):
    """One file, for the manifest."""

    path: str
    rows: int
    bytes: int
    sha256: str


class Made(Struct):
    """What a format made of one rollout. It may have been made in another process."""

    rows: list[Any]
    skipped: Counter[str]
    """Rows that could not be made, by reason."""


class Format(Protocol):
    """Rollouts in, files out: rows are made of each rollout by itself, and taken in the order of the export."""

    name: ClassVar[str]
    card: ClassVar[str]
    """What the columns are, for the dataset's reader."""
    suffix: ClassVar[str]
    needs_tokens: ClassVar[bool]
    skipped: Counter[str]
    """Rows that could not be made, by reason."""

    @property
    def written(self) -> list[Written]: ...
    def __init__(self, folder: Path, options: Options) -> None: ...
    def wants(self, entry: Entry) -> bool:
        """Whether anything that is made of this rollout would be taken."""
        ...

    def made(self, rollout: Rollout) -> Made:
        """Changes nothing here."""
        ...

    def take(self, made: Made, entry: Entry) -> int:
        """How many rows it took."""
        ...

    def close(self) -> None: ...


class Parts:
    """The files of one split, one after the other, each finished before the next is begun."""

    def __init__(self, folder: Path, split: str | None, suffix: str, options: Options) -> None:
        self._stem = "part" if split is None else split
        self._folder = folder
        self._suffix = suffix
        self._limit = options.rows_per_file
        self._path: Path | None = None
        self._rows = 0
        self._count = 0
        self.written: list[Written] = []

    def room(self, wanted: int, size: int = 0) -> int:
        """How many of the wanted rows still go into the file that is open; 0 when none is."""
        if self._path is None or size >= _FILE_BYTES:
            return 0
        return wanted if self._limit is None else min(wanted, self._limit - self._rows)

    def begin(self) -> Path:
        self._path = self._folder / f"{self._stem}-{self._count:05d}{self._suffix}"
        self._count += 1
        self._rows = 0
        return self._path

    def add(self, rows: int) -> None:
        self._rows += rows

    def end(self, digest: str | None = None) -> None:
        if self._path is None:
            return
        if digest is None:
            with self._path.open("rb") as file:
                digest = _sha256(file)
        self.written.append(Written(self._path.name, self._rows, self._path.stat().st_size, digest))
        self._path = None


def _sha256(file: io.BufferedReader) -> str:
    digest = sha256()
    while data := file.read(1 << 20):
        digest.update(data)
    return digest.hexdigest()


class _File(Protocol):
    parts: Parts

    def __init__(self, parts: Parts) -> None: ...
    def add(self, row: Any) -> None: ...
    def close(self) -> None: ...


class Files:
    """A format of rows, with a series of files for each split. A subclass says which rows a rollout makes."""

    suffix: ClassVar[str]
    file: ClassVar[type[_File]]
    """Writes rows into the parts of one split."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.options = options
        self.skipped: Counter[str] = Counter()
        self._files: dict[str | None, _File] = {}
        for split in options.split_names:
            self._files[split] = self.file(Parts(folder, split, self.suffix, options))

    def wants(self, entry: Entry) -> bool:
        return True

    def take(self, made: Made, entry: Entry) -> int:
        self.skipped.update(made.skipped)
        file = self._files[entry.split]
        for row in made.rows:
            file.add(row)
        return len(made.rows)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    @property
    def written(self) -> list[Written]:
        return [one for file in self._files.values() for one in file.parts.written]


class _Lines:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._file: io.BufferedWriter | None = None
        self._digest = sha256()
        self._size = 0

    def add(self, line: bytes) -> None:
        if self._file is None or not self.parts.room(1, self._size):
            self._end()
            self._file = self.parts.begin().open("wb")
            self._digest, self._size = sha256(), 0
        self._file.write(line)
        self._digest.update(line)
        self._size += len(line)
        self.parts.add(1)

    def close(self) -> None:
        if self._file is None and not self.parts.written:
            self._file = self.parts.begin().open("wb")  # an export without rows is a readable file all the same
        self._end()

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self.parts.end(self._digest.hexdigest())
            self._file = None


class JsonLines(Files):
    """A format whose rows are JSON objects, one a line."""

    name: ClassVar[str]
    card: ClassVar[str]
    suffix: ClassVar[str] = ".jsonl"
    needs_tokens: ClassVar[bool] = False
    file = _Lines

    def rows(self, rollout: Rollout, skipped: Counter[str]) -> Iterator[Mapping[str, Any]]:
        """Those that cannot be made are counted."""
        raise NotImplementedError

    def made(self, rollout: Rollout) -> Made:
        skipped: Counter[str] = Counter()
        return Made([line(row) for row in self.rows(rollout, skipped)], skipped)


def line(row: Mapping[str, Any]) -> bytes:
    return orjson.dumps(row, default=_plain) + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(f"no row holds a {type(value).__name__}")


def ints(data: bytes) -> array:
    values = array("i")
    values.frombytes(data)
    return values


def floats(data: bytes) -> array:
    values = array("f")
    values.frombytes(data)
    return values
