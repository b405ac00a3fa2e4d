"""A closed shard becomes a sealed one: the same rows in large, compressed batches, with a sidecar index.

Nothing is lost at any moment: the stream is removed only when the sealed file is synced under its name, and a reader
that finds both takes the sealed one. A stream whose chain does not hold is left as it is, for `verify` to tell. However
large it is, a few of its batches are in memory at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from . import index
from .columns import array_of
from .index import INDEX, INDEXED
from .reader import ShardReader
from .schema import DIGEST, SCHEMA
from .shard import MAGIC, SEALED, sync_directory

log = logging.getLogger("nemo_gym.capture")

_ROWS = 4096
_BYTES = 8 << 20
"""Of a batch, before compression: small enough that a rollout is opened in a moment."""
_TOGETHER = 64
"""So many batches of a stream are one before the next are read."""
_CODEC = "zstd"
_HEAD = MAGIC + SCHEMA.serialize().to_pybytes()


def seal(path: Path) -> Path | None:
    """The sealed file of a closed shard, which it replaces; None when it has to be left as it is."""
    with _alone(path) as mine:
        return _sealed(path) if mine else None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether nobody writes this file, or seals it."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield path.exists()


def is_written(path: Path) -> bool:
    """Whether a living process has it open to write."""
    with _alone(path) as mine:
        return not mine


def _sealed(path: Path) -> Path | None:
    if path.stat().st_size == 0:
        return None
    last, holds, digests = "", True, blake2b()
    for batch, chain in _streamed(path):
        last = batch.column("kind")[-1].as_py()
        holds = holds and batch.column("chain")[0].as_py() == chain
        _add_digests(digests, batch)
    if not holds or last != "end":
        return None
    target = path.with_suffix(SEALED)
    temporary = target.with_name(target.name + ".tmp")
    with temporary.open("wb") as file:
        write_sealed(_gathered(batch for batch, _ in _streamed(path)), file)
        file.flush()
        os.fsync(file.fileno())
    written = ShardReader(temporary)
    if not _holds(written) or _digests(written) != digests.digest():
        raise OSError(f"{temporary.name} does not read back as it was written")
    index.write(written.batches(INDEXED), written.size, path.with_suffix(INDEX))
    os.replace(temporary, target)
    sync_directory(path.parent)
    path.unlink()
    return target


def _holds(shard: ShardReader) -> bool:
    """Whether the file is as its chain says."""
    pairs = zip(shard.batches(("chain",)), shard.chains(), strict=True)
    return all(batch.column("chain")[0].as_py() == chain for batch, chain in pairs)


def _digests(shard: ShardReader) -> bytes:
    found = blake2b()
    for batch in shard.batches(("digest",)):
        _add_digests(found, batch)
    return found.digest()


def _add_digests(found: blake2b, batch: pa.RecordBatch) -> None:
    for digest in batch.column("digest").to_pylist():
        found.update(digest or b"-")


def _streamed(path: Path) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Each whole batch of a stream, and what its chain has to be."""
    chain, schema, start = blake2b(digest_size=16), None, 0
    with pa.OSFile(str(path), "rb") as source, path.open("rb") as file:  # what is mapped would count as this process's
        while True:
            try:
                message = pa.ipc.read_message(source)
                if schema is None:
                    schema = pa.ipc.read_schema(message)
                else:
                    yield pa.ipc.read_record_batch(message, schema), chain.digest()
            except (EOFError, OSError, pa.ArrowInvalid):
                return  # the end, or a tear
            end = source.tell()
            chain.update(file.read(end - start))
            start = end


class _Hashing:
    """A file, and the digest of what was written to it."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.chain = blake2b(digest_size=16)

    def write(self, data: bytes) -> int:
        self.chain.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        pass

    def tell(self) -> int:
        return self._file.tell()

    def writable(self) -> bool:
        return True


def write_sealed(batches: Iterable[pa.RecordBatch], file: BinaryIO) -> None:
    """These batches as a sealed file, compressed, each with its chain."""
    sink = _Hashing(file)
    options = pa.ipc.IpcWriteOptions(compression=_CODEC, use_threads=False)
    with pa.ipc.new_file(pa.PythonFile(sink, "w"), SCHEMA, options=options) as writer:
        for number, batch in enumerate(batches):
            before = sink.chain if number else blake2b(_HEAD, digest_size=16)  # the head is written with the first
            chain = array_of(DIGEST, [before.digest(), *[None] * (batch.num_rows - 1)])
            writer.write_batch(batch.set_column(batch.schema.get_field_index("chain"), "chain", chain))


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    group: list[pa.RecordBatch] = []
    rows = size = few = 0
    for batch in batches:
        if group and (rows + batch.num_rows > _ROWS or size + batch.nbytes > _BYTES):
            yield pa.concat_batches(group)
            group, rows, size, few = [], 0, 0, 0
        group.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if len(group) > few + _TOGETHER:  # a batch of a few rows is small, but each of its many columns is not
            group[few:] = [pa.concat_batches(group[few:])]
            few += 1
    if group:
        yield pa.concat_batches(group)


class Sealer:
    """Seals shards one after another, on a thread of its own that begins with the first."""

    def __init__(self, then: Callable[[Path], object] | None = None) -> None:
        self._then = then
        self._paths: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, path: Path) -> None:
        self._paths.put(path)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="capture-sealer", daemon=True)
            self._thread.start()

    def close(self, wait_s: float) -> None:
        """What is not sealed by then stays a stream, whole; `repair` seals it."""
        if self._thread is not None:
            self._paths.put(None)
            self._thread.join(wait_s)

    def _run(self) -> None:
        while (path := self._paths.get()) is not None:
            try:
                sealed = seal(path)
                if sealed is not None and self._then is not None:
                    self._then(sealed)
            except Exception as error:
                log.warning("captures: %s was not sealed, and stays as it is: %s", path.name, error)
            pa.default_memory_pool().release_unused()  # it would keep some forty megabytes for the next one
