"""Where in a shard a rollout's rows, a call and a content lie.

One sorted list of keys of sixteen bytes for all three, so that the sidecar of a sealed shard is mapped and searched,
never loaded: what it takes does not grow with the shard. A sidecar can always be made anew from its shard.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from .contents import digest
from .schema import DIGEST
from .shard import SEALED

INDEX = ".index"
INDEXED = ("kind", "rollout_id", "call_id", "new_contents")
"""The columns that an index is made of."""
Place = tuple[int, int]
"""(batch, row); of a content, the position among the batch's contents."""
_SCHEMA = pa.schema([("key", DIGEST), ("batch", pa.int32()), ("row", pa.int32())])


def rollout_key(rollout_id: str) -> bytes:
    return digest(b"rollout\0" + rollout_id.encode())


def call_key(call_id: str) -> bytes:
    return digest(b"call\0" + call_id.encode())


class Places(Protocol):
    def find(self, key: bytes) -> Iterator[Place]: ...


class _InMemory:
    def __init__(self) -> None:
        self._places: dict[bytes, list[Place]] = {}

    def add(self, key: bytes, place: Place) -> None:
        self._places.setdefault(key, []).append(place)

    def find(self, key: bytes) -> Iterator[Place]:
        return iter(self._places.get(key, ()))


class _Keys:
    def __init__(self, buffer: pa.Buffer, count: int) -> None:
        self._data = memoryview(buffer)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> bytes:
        return bytes(self._data[16 * number : 16 * number + 16])


class _Mapped:
    def __init__(self, batch: pa.RecordBatch) -> None:
        keys, self._batches, self._rows = (batch.column(name).buffers()[1] for name in _SCHEMA.names)
        self._keys = _Keys(keys, batch.num_rows)
        self._batches = memoryview(self._batches).cast("i")
        self._rows = memoryview(self._rows).cast("i")

    def find(self, key: bytes) -> Iterator[Place]:
        for number in range(bisect_left(self._keys, key), len(self._keys)):
            if self._keys[number] != key:
                break
            yield self._batches[number], self._rows[number]


def _entries(batches: Iterable[pa.RecordBatch]) -> Iterable[tuple[bytes, Place]]:
    rollouts: dict[str, bytes] = {}
    for number, batch in enumerate(batches):
        columns = [batch.column(name).to_pylist() for name in ("kind", "rollout_id", "call_id")]
        for row, (kind, rollout_id, call_id) in enumerate(zip(*columns, strict=True)):
            if kind == "call":
                yield call_key(call_id), (number, row)
            if rollout_id is not None:
                key = rollouts.get(rollout_id)
                if key is None:
                    key = rollouts[rollout_id] = rollout_key(rollout_id)
                yield key, (number, row)
        contents = batch.column("new_contents")
        if contents.null_count < len(contents):
            for position, key in enumerate(contents.values.field("digest").to_pylist()):
                yield key, (number, position)


def made_of(batches: Iterable[pa.RecordBatch]) -> Places:
    """The index of a shard, in memory."""
    places = _InMemory()
    for key, place in _entries(batches):
        places.add(key, place)
    return places


def _sorted(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    # As bytes from the beginning: a shard has half a million of them, and a server that seals it no memory to spare.
    keys, numbers, rows = bytearray(), array("i"), array("i")
    for key, (number, row) in _entries(batches):
        keys += key
        numbers.append(number)
        rows.append(row)
    columns = [
        pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(data)])
        for kind, data in zip(_SCHEMA.types, (keys, numbers, rows), strict=True)
    ]
    batch = pa.record_batch(columns, schema=_SCHEMA)
    return batch.take(pc.sort_indices(batch.column("key")))


def write(batches: Iterable[pa.RecordBatch], shard_size: int, path: Path) -> None:
    """The sidecar of a sealed shard, whole or not at all."""
    batch = _sorted(batches)
    temporary = path.with_name(path.name + ".tmp")
    schema = _SCHEMA.with_metadata({"nemo_gym.capture.index": str(shard_size)})
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    os.replace(temporary, path)


def lacks(shard: Path, key: bytes) -> bool:
    """Whether the sidecar of a sealed shard says that nothing has this key in it."""
    try:
        places = mapped(shard, shard.stat().st_size) if shard.suffix == SEALED else None
    except OSError:
        return False
    return places is not None and next(places.find(key), None) is None


def mapped(shard: Path, shard_size: int) -> Places | None:
    """The sidecar beside a sealed shard; None when there is none, or one of another file."""
    batch = _read(shard, shard_size)
    return None if batch is None else _Mapped(batch)


def holds(batches: Iterable[pa.RecordBatch], shard: Path, shard_size: int) -> bool:
    """Whether the sidecar says where these rows are. One that is not used, of another file, says nothing wrong."""
    batch = _read(shard, shard_size) if shard.suffix == SEALED else None
    return batch is None or bool(batch.equals(_sorted(batches)))


def _read(shard: Path, shard_size: int) -> pa.RecordBatch | None:
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(shard.with_suffix(INDEX))))
        if reader.schema.metadata != {b"nemo_gym.capture.index": str(shard_size).encode()}:
            return None
        batch = reader.get_batch(0)
        batch.validate()
        return batch if batch.schema.equals(_SCHEMA) else None
    except (OSError, ValueError, KeyError, IndexError, NotImplementedError):  # Arrow's own errors are among these
        return None
