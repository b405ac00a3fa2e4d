"""One self-contained file of rows: an Arrow IPC stream, appended to by one thread, whole up to its last batch.

Each batch bears, on its first row, the digest of all that the file holds before it (`chain`), and the last row
of a sealed shard is of kind `end`. So nothing can be taken out or changed unnoticed, and a file without an end
was not closed: its writer lives, or died.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from .columns import to_message
from .schema import SCHEMA, VERSION, Row, row_digest

SUFFIX = ".arrows"
"""Of a shard that is written, a stream."""
SEALED = ".arrow"
"""Of a sealed one, a file."""
MAGIC = b"ARROW1\0\0"
Durability = Literal["fsync", "flush", "none"]
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class File:
    """What a shard asks of the operating system; whole writes or an OSError."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with contextlib.suppress(OSError):  # where there are no locks, only `repair` misses it
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # says that its writer lives

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def cut(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Shard:
    """An open shard. Only the writer's thread calls `append` and `seal` once it runs.

    Batches are appended in the order in which they were serialised, one after the other.

    Args:
        sync: whether what it begins with is durable at once, or with its first batch.
    """

    def __init__(self, path: Path, durability: Durability, open_file: type[File] = File, *, sync: bool = True) -> None:
        self.path = path
        self.size = self._empty = 0
        self._durability = durability
        self._chain = blake2b(digest_size=16)
        self._named = False
        """Whether its name is durable."""
        self._file = open_file(path)
        try:
            head = SCHEMA.serialize().to_pybytes()
            self._chain.update(head)
            self.append(head, sync=sync)
            self._empty = self.size
        except BaseException:
            self._file.close()
            path.unlink(missing_ok=True)
            raise

    @property
    def holds_any(self) -> bool:
        """Whether there is any batch."""
        return self.size > self._empty

    def serialised(self, rows: list[Row]) -> bytes:
        """The next batch. Raises as `to_message`, and then it is none."""
        return self.following(lambda chain: serialised(rows, chain))

    def following(self, batch_with: Callable[[bytes], bytes]) -> bytes:
        """The next batch, made with its `chain`."""
        batch = batch_with(self._chain.digest())
        self._chain.update(batch)
        return batch

    def append(self, data: bytes, *, sync: bool = True) -> None:
        """Returns when the batches are as durable as asked for. Raises OSError, and then the shard takes no more."""
        try:
            self._file.write(data)
            if sync:
                self._sync()
        except BaseException:
            with contextlib.suppress(OSError):
                self._file.cut(self.size)  # nobody will be told that this is recorded, so it is not
            raise
        self.size += len(data)

    def seal(self) -> None:
        """Writes the end; an empty shard is removed instead."""
        try:
            if self.holds_any:
                end: Row = {"kind": "end", "schema_version": VERSION}
                end["digest"] = row_digest(end)
                self.append(self.serialised([end]))
                self._file.write(END_OF_STREAM)
                self._sync()
        finally:
            self.leave()

    def leave(self) -> None:
        """Closes the file as it is."""
        self._file.close()
        if not self.holds_any:
            self.path.unlink(missing_ok=True)

    def _sync(self) -> None:
        if self._durability != "fsync":
            return
        self._file.sync()
        if not self._named:
            sync_directory(self.path.parent)
            self._named = True


def serialised(rows: list[Row], chain: bytes) -> bytes:
    """One batch as its bytes in the file."""
    rows[0]["chain"] = chain
    return to_message(rows)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
