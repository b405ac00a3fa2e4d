"""Files of another machine, brought here as they grow: a server's log and its capture's shards.

The far side (`pieces`) is asked for what lies beyond what is here already; the near side (`Mirror`) appends it. So what
is here is at every moment a beginning of what is there, which readers of logs and of open shards take as it is. A file
that is made whole at once (a sealed shard, an index) is shown here once it is whole, and the stream that it replaces
goes then. No name of one machine can meet that of another: the near side gives each a folder of its own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

GROWING = (".log", ".arrows")
WHOLE = (".index", ".arrow")
"""In this order: an index is there before the shard that it belongs to."""
_PART = ".part"
PIECE_BYTES = 8 << 20
"""Of all that one question is answered with."""


class Piece(msgspec.Struct, frozen=True):
    """Bytes of one file from `start` on; `size` is all that it has."""

    name: str
    start: int
    size: int
    data: bytes


def pieces(folder: Path, have: Mapping[str, int], most: int = PIECE_BYTES) -> list[Piece]:
    """What is in `folder` beyond `have`; what has become shorter is told by a piece without bytes."""
    found: list[Piece] = []
    for path in _files(folder):
        name = path.name
        known = have.get(name)
        try:
            size = path.stat().st_size
            if known is not None and size <= known and (size == known or name.endswith(WHOLE)):
                continue
            start = min(known or 0, size)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read(min(most, size - start))
        except OSError:
            continue  # packed or pruned meanwhile
        found.append(Piece(name, start, size, data))
        most -= len(data)
        if most <= 0:
            break
    return found


def names(folder: Path) -> list[str]:
    return [path.name for path in _files(folder)]


def _files(folder: Path) -> list[Path]:
    order = {suffix: place for place, suffix in enumerate((*GROWING, *WHOLE))}
    return sorted(
        (path for path in folder.iterdir() if path.suffix in order) if folder.is_dir() else (),
        key=lambda path: (order[path.suffix], path.name),
    )


class Mirror:
    """The near side of one folder. `put` is safe to repeat: a piece goes where it belongs. A log goes on from where
    an earlier one of its name ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.have: dict[str, int] = {}
        """Bytes of each file that are here."""
        self._began: dict[str, int] = {}

    def only(self, names: Collection[str]) -> None:
        """What is no more there goes here too: a shard that nothing was written to."""
        for name in [name for name in self.have if name not in names and name.endswith(".arrows")]:
            (self.folder / name).unlink(missing_ok=True)
            del self.have[name]

    def put(self, piece: Piece) -> None:
        """Raises OSError when it cannot be written here."""
        path = self.folder / piece.name
        self.folder.mkdir(parents=True, exist_ok=True)
        whole = path.suffix in WHOLE
        if piece.name not in self._began:
            self._began[piece.name] = path.stat().st_size if path.suffix == ".log" and path.exists() else 0
        start = self._began[piece.name] + piece.start
        target = path.with_name(path.name + _PART) if whole else path
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.truncate(start)
            file.seek(start)
            file.write(piece.data)
            here = piece.start + len(piece.data)
            if whole and here >= piece.size:
                file.flush()
                os.fsync(file.fileno())
        if whole and here >= piece.size:
            os.replace(target, path)
            if path.suffix == ".arrow":
                path.with_suffix(".arrows").unlink(missing_ok=True)
        self.have[piece.name] = here
