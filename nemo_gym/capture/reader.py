"""Shards as they are read: every whole batch of a file, torn or still being written.

An open shard is a stream of small batches; a sealed one is a file of large, compressed ones, of which only the columns
asked for are unpacked. Where contents, parents and rollouts lie is found in the sidecar of a sealed shard, or by
reading the shard once. Only a few batches are held at a time, of either.
"""

from __future__ import annotations

import weakref
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from .columns import array_of, scalar, to_rows
from .contents import digest, references
from .decoding import Decoder, declared
from .index import INDEXED, Places, call_key, made_of, mapped, rollout_key
from .record import CallRecord
from .schema import READ, SCHEMA, VERSION, Row, row_digest
from .shard import END_OF_STREAM, MAGIC

_HELD = 8
"""Batches of a shard that are held."""


class ShardReader:
    """One file.

    Raises:
        ValueError: it is no shard, or one of a version that this program does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.torn = 0
        """Bytes after the last whole batch."""
        self.count = 0
        """Of batches."""
        self._file: _File | None = None
        self._stream: _Stream | None = None
        with path.open("rb") as file:
            self._head = len(MAGIC) if file.read(len(MAGIC)) == MAGIC else 0
        if self._head:
            self._file = _opened(path)
        if self._file is not None:
            self.size = path.stat().st_size
            self.count = self._file.count
        else:
            self.refresh()
        me = weakref.proxy(self)  # no circle: what is mapped is let go at once
        self.decoder = Decoder(lambda call_id: me.row_of(call_id), lambda key: me.content(key))

    @property
    def writer(self) -> str:
        """Which process's: a server that was started anew is another writer."""
        return str(self.path.with_name(self.path.stem.rsplit("-", 1)[0]))

    @property
    def packed(self) -> bool:
        """Whether it is a file with its footer."""
        return self._file is not None

    @property
    def known(self) -> bool:
        """Whether it has a shard's beginning: what was cut there, and what is no shard at all, have none."""
        return self.packed or len(self.ends) > 0

    @property
    def sealed(self) -> bool:
        return self._file is not None or (self._stream is not None and self._stream.sealed)

    # ---- the stream

    def refresh(self) -> None:
        """Reads what an open shard has got since."""
        self.size = self.path.stat().st_size
        if self.size == 0:
            return
        self.__dict__.pop("places", None)
        if self._stream is None:
            self._stream = _Stream(self.path, self._head)
        self.torn = self._stream.refresh(self.size)
        self.count = self._stream.count

    @property
    def ends(self) -> Sequence[int]:
        """Where the head and each batch end in the file."""
        if self._file is not None:
            return self._file.ends
        return () if self._stream is None else self._stream.ends

    def chains(self) -> Iterator[bytes]:
        """What each batch's `chain` has to be."""
        chain = blake2b(digest_size=16)
        with self.path.open("rb") as file:
            start = 0
            for end in self.ends[:-1]:
                chain.update(file.read(end - start))
                start = end
                yield chain.digest()

    # ---- batches

    def batch(self, number: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """With these columns at least."""
        if self._file is not None:
            return self._file.batch(number, columns)
        assert self._stream is not None
        return self._stream.batch(number)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        return (self.batch(number, columns) for number in range(self.count))

    # ---- rows

    def rows(self, kind: str, rollout_id: str | None = None, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """Rows of one kind, of one rollout or of all; of the given columns at least."""
        if columns is not None:
            columns = (*columns, *(name for name in ("kind", "rollout_id") if name not in columns))
        for number, wanted in self.of_rollout(rollout_id):
            batch = self.batch(number, columns)
            numbers = _numbers(batch, kind, rollout_id, wanted)
            if numbers:
                yield from to_rows(batch, numbers)

    def of_rollout(self, rollout_id: str | None) -> Iterator[tuple[int, list[int] | None]]:
        """The batches in which rows of a rollout lie, and which rows; all for None."""
        if rollout_id is None:
            yield from ((number, None) for number in range(self.count))
            return
        found: dict[int, list[int]] = {}
        for number, row in self.places.find(rollout_key(rollout_id)):
            found.setdefault(number, []).append(row)
        yield from sorted((number, sorted(rows)) for number, rows in found.items() if number < self.count)

    def records(self, rollout_id: str | None = None) -> Iterator[CallRecord]:
        for row in self.rows("call", rollout_id):
            yield self.decoder.record(row)

    def row_of(self, call_id: str) -> Row | None:
        """The row of a call, None if this shard has none."""
        for number, position in self.places.find(call_key(call_id)):
            row = to_rows(self.batch(number), [position])[0]
            if row.get("call_id") == call_id:
                return row
        return None

    def content(self, key: bytes) -> bytes:
        """A content's body by its digest; raises KeyError."""
        for number, position in self.places.find(key):
            contents = self.batch(number, ("new_contents",)).column("new_contents").values
            body: bytes = contents.field("body")[position].as_py()
            return body
        raise KeyError(f"content {key.hex()}")

    def holds(self, key: bytes) -> bool:
        return next(self.places.find(key), None) is not None

    def referred(self, row: Row) -> list[bytes]:
        """The contents that a call's row refers to. Raises KeyError or ValueError where it cannot be joined."""
        found = declared(row) + [key for digests in self.decoder.kept(row).lists.values() for key in digests]
        stored = [row.get("request_fields"), row.get("sent_fields"), row.get("usage_raw")]
        stored += [choice["parts"] for choice in row.get("choices", ())]
        stored += [content["body"] for content in row.get("new_contents", ()) if content["kind"] != "text"]
        return found + [key for data in stored if data for key in references(data)]

    @cached_property
    def places(self) -> Places:
        sidecar = mapped(self.path, self.size) if self._file is not None else None
        return sidecar or made_of(self.batches(INDEXED))


class _Held:
    """The last few batches."""

    def __init__(self) -> None:
        self._batches: OrderedDict[object, pa.RecordBatch] = OrderedDict()

    def get(self, key: object) -> pa.RecordBatch | None:
        return self._batches.get(key)

    def put(self, key: object, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._batches[key] = batch
        if len(self._batches) > _HELD:
            self._batches.popitem(last=False)
        return batch


class _Stream:
    """An open shard, or a torn one. It is kept open: when it is sealed meanwhile, its name is gone and it is not.

    It is read and never mapped: a writer may cut what it could not write, and a map does not survive that.
    """

    def __init__(self, path: Path, head: int) -> None:
        self._path = path
        self._source = pa.OSFile(str(path), "rb")
        self._head = head
        self._schema: pa.Schema | None = None
        self._held = _Held()
        self.ends = array("q")
        self.sealed = False

    @property
    def count(self) -> int:
        return max(len(self.ends) - 1, 0)

    def refresh(self, size: int) -> int:
        """Finds what has come since; gives how many bytes there are after the last whole batch."""
        source, known, last = self._source, self.count, None
        source.seek(self.ends[-1] if self.ends else self._head)
        try:
            while True:
                message = pa.ipc.read_message(source)
                if self._schema is None:
                    self._schema = _checked(pa.ipc.read_schema(message), self._path)
                else:
                    last = pa.ipc.read_record_batch(message, self._schema)
                self.ends.append(source.tell())
        except (EOFError, OSError, pa.ArrowInvalid):
            pass  # the end, or a tear
        if last is not None and self.count > known:
            self.sealed = last.column("kind")[-1].as_py() == "end"
            if not self.sealed and not _sound(last):
                self.ends.pop()  # after a power cut the last batch may have its length and not its bytes
        whole = self.ends[-1] if self.ends else 0
        source.seek(whole)
        closed = self.sealed and source.read(len(END_OF_STREAM) + 1) == END_OF_STREAM
        return 0 if closed else size - whole

    def batch(self, number: int) -> pa.RecordBatch:
        batch = self._held.get(number)
        if batch is None:
            self._source.seek(self.ends[number])
            batch = self._held.put(number, _unpacked(self._path, self._next))
        return batch

    def _next(self) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.ipc.read_message(self._source), self._schema)


class _File:
    """A sealed shard."""

    def __init__(self, path: Path) -> None:
        self._source = pa.memory_map(str(path))
        everything = pa.ipc.open_file(self._source)
        self.schema: pa.Schema = everything.schema
        self.count: int = everything.num_record_batches
        self._path = path
        self._readers: dict[tuple[str, ...] | None, pa.RecordBatchFileReader] = {None: everything}
        self._held = _Held()

    def batch(self, number: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        key = (number, None if columns is None else tuple(sorted(set(columns))))
        batch = self._held.get((number, None))
        if batch is None:
            batch = self._held.get(key)
        if batch is None:
            reader = self._reader(key[1])
            batch = self._held.put(key, _unpacked(self._path, lambda: reader.get_batch(number)))
        return batch

    @property
    def head(self) -> pa.Schema | None:
        """The schema as it stands before the batches; None when it was changed."""
        self._source.seek(len(MAGIC))
        try:
            return pa.ipc.read_schema(self._source)
        except (OSError, ValueError, NotImplementedError):
            return None

    @cached_property
    def ends(self) -> Sequence[int]:
        ends = array("q")
        with pa.memory_map(str(self._path)) as source:
            source.seek(len(MAGIC))
            for _ in range(self.count + 1):
                pa.ipc.read_message(source)
                ends.append(source.tell())
        return ends

    def _reader(self, columns: tuple[str, ...] | None) -> pa.RecordBatchFileReader:
        reader = self._readers.get(columns)
        if reader is None:
            fields = [self.schema.get_field_index(name) for name in columns or ()]
            options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
            reader = self._readers[columns] = pa.ipc.open_file(self._source, options=options)
        return reader


def _unpacked(path: Path, read: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
    """Raises OSError that names the file. What was changed may point anywhere, and Arrow would follow it."""
    try:
        batch = read()
        batch.validate(full=True)
    except (OSError, ValueError, NotImplementedError, MemoryError) as error:  # Arrow's own errors are among these
        raise OSError(f"{path}: cannot be unpacked: {error}") from error
    return batch


def _opened(path: Path) -> _File | None:
    """None when its footer is not there, or not as it was: then it is read as a stream, up to the tear."""
    try:
        file = _File(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, NotImplementedError):  # Arrow's own errors are among these
        return None
    if not file.schema.equals(SCHEMA, check_metadata=True) and file.head not in (None, file.schema):
        return None
    _checked(file.schema, path)
    return file


def _numbers(batch: pa.RecordBatch, kind: str, rollout_id: str | None, among: list[int] | None) -> list[int]:
    if among is not None:
        places = array_of(pa.int64(), among)
        found = zip(
            among,
            batch.column("kind").take(places).to_pylist(),
            batch.column("rollout_id").take(places).to_pylist(),
            strict=True,
        )
        return [number for number, its_kind, its_rollout in found if its_kind == kind and its_rollout == rollout_id]
    wanted = pc.equal(batch.column("kind"), scalar(kind))
    if rollout_id is not None:
        wanted = pc.and_(wanted, pc.fill_null(pc.equal(batch.column("rollout_id"), scalar(rollout_id)), False))
    numbers: list[int] = pc.indices_nonzero(wanted).to_pylist()
    return numbers


def _checked(schema: pa.Schema, path: Path) -> pa.Schema:
    version = (schema.metadata or {}).get(b"nemo_gym.capture")
    if version is None:
        raise ValueError(f"{path}: not a capture shard")
    if version not in {str(one).encode() for one in READ}:
        raise ValueError(f"{path}: schema version {version.decode()}; this program reads 1 to {VERSION}")
    return schema


def _sound(batch: pa.RecordBatch) -> bool:
    try:
        batch.validate(full=True)
        return not unsound(batch)
    except (pa.ArrowInvalid, ValueError, UnicodeDecodeError):
        return False


def unsound(batch: pa.RecordBatch) -> list[str]:
    """The rows and contents of a batch that are not what their digests say."""
    found = []
    for row in to_rows(batch):
        if row.get("kind") != "seal" and row.get("digest") != row_digest(row):
            found.append(f"{row.get('kind')} {row.get('call_id', '')}".strip())
        for content in row.get("new_contents", ()):
            if digest(content["body"]) != content["digest"]:
                found.append(f"content {content['digest'].hex()} of {row.get('call_id')}")
    return found
