"""Shards as they are read: every whole batch of a file, torn or still being written, mapped and not copied.

Contents and parents are found through indexes that are made when first needed, so a scan of a few columns
touches those columns only.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from .columns import to_rows
from .contents import digest
from .decoding import Decoder
from .record import CallRecord
from .schema import VERSION, Row, row_digest
from .shard import END_OF_STREAM


class ShardReader:
    """One file.

    Raises:
        ValueError: it is no shard, or one of a version that this program does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.batches: list[pa.RecordBatch] = []
        self.ends: list[int] = []
        """Where the head and each batch end in the file."""
        self.torn = 0
        """Bytes after the last whole batch."""
        if self.size:
            self._read()
        self.decoder = Decoder(self.row_of, self.content)

    @property
    def writer(self) -> str:
        """Which process's: a server that was started anew is another writer."""
        return str(self.path.with_name(self.path.stem.rsplit("-", 1)[0]))

    @property
    def sealed(self) -> bool:
        return bool(self.batches) and self.batches[-1].column("kind")[-1].as_py() == "end"

    def _read(self) -> None:
        with pa.memory_map(str(self.path)) as source:
            schema: pa.Schema | None = None
            try:
                while True:
                    message = pa.ipc.read_message(source)
                    if schema is None:
                        schema = _checked(pa.ipc.read_schema(message), self.path)
                    else:
                        self.batches.append(pa.ipc.read_record_batch(message, schema))
                    self.ends.append(source.tell())
            except (EOFError, OSError, pa.ArrowInvalid):
                pass  # the end, or a tear
            if not self.sealed:
                self._drop_unsound()
            whole = self.ends[-1] if self.ends else 0
            source.seek(whole)
            closed = self.sealed and source.read(len(END_OF_STREAM) + 1) == END_OF_STREAM
            self.torn = 0 if closed else self.size - whole

    def _drop_unsound(self) -> None:
        """After a power cut the last batch may have its length and not its bytes."""
        if self.batches and not _sound(self.batches[-1]):
            self.batches.pop()
            self.ends.pop()

    def chains(self) -> Iterator[bytes]:
        """What each batch's `chain` has to be."""
        chain = blake2b(digest_size=16)
        with self.path.open("rb") as file:
            start = 0
            for end in self.ends[:-1]:
                chain.update(file.read(end - start))
                start = end
                yield chain.digest()

    # ---- rows

    def rows(self, kind: str, rollout_id: str | None = None) -> Iterator[Row]:
        """Rows of one kind, of one rollout or of all."""
        for batch in self.batches:
            numbers = self._numbers(batch, kind, rollout_id)
            if numbers:
                yield from to_rows(batch, numbers)

    @staticmethod
    def _numbers(batch: pa.RecordBatch, kind: str, rollout_id: str | None) -> list[int]:
        wanted = pc.equal(batch.column("kind"), kind)
        if rollout_id is not None:
            wanted = pc.and_(wanted, pc.fill_null(pc.equal(batch.column("rollout_id"), rollout_id), False))
        numbers: list[int] = pc.indices_nonzero(wanted).to_pylist()
        return numbers

    def records(self, rollout_id: str | None = None) -> Iterator[CallRecord]:
        for row in self.rows("call", rollout_id):
            yield self.decoder.record(row)

    def row_of(self, call_id: str) -> Row | None:
        """The row of a call, None if this shard has none."""
        place = self._places.get(call_id)
        return None if place is None else to_rows(self.batches[place[0]], [place[1]])[0]

    def content(self, key: bytes) -> bytes:
        """A content's body by its digest; raises KeyError."""
        number, position = self._contents[key]
        contents = self.batches[number].column("new_contents").values
        body: bytes = contents.field("body")[position].as_py()
        return body

    def holds(self, key: bytes) -> bool:
        return key in self._contents

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        places = {}
        for number, batch in enumerate(self.batches):
            kinds = batch.column("kind").to_pylist()
            for position, call_id in enumerate(batch.column("call_id").to_pylist()):
                if kinds[position] == "call":
                    places[call_id] = (number, position)
        return places

    @cached_property
    def _contents(self) -> dict[bytes, tuple[int, int]]:
        contents = {}
        for number, batch in enumerate(self.batches):
            column = batch.column("new_contents")
            if column.null_count < len(column):
                for position, key in enumerate(column.values.field("digest").to_pylist()):
                    contents[key] = (number, position)
        return contents


def _checked(schema: pa.Schema, path: Path) -> pa.Schema:
    version = (schema.metadata or {}).get(b"nemo_gym.capture")
    if version is None:
        raise ValueError(f"{path}: not a capture shard")
    if version != str(VERSION).encode():
        raise ValueError(f"{path}: schema version {version.decode()}; this program reads {VERSION}")
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
