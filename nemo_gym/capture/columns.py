"""Rows to a record batch and back, by the schema.

A batch of one row is as common as one of sixty, and then making Arrow's objects is most of what recording costs. So
the batch's memory is laid out here, column after column as Arrow's format says, and put behind a head that Arrow wrote
once for the schema: only its numbers (lengths, nulls, offsets) differ from batch to batch.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import pyarrow as pa

from .schema import CHOICE, CHOICE_FIELDS, FLOATS, INTS, SCHEMA, Row


class Memory:
    """A batch's arrays, flat and in the order of Arrow's format."""

    def __init__(self) -> None:
        self.nodes: list[int] = []
        """Of each array its length and its nulls."""
        self.buffers: list[Any] = []

    def add(self, values: Sequence[Any], *buffers: Any) -> None:
        """An array: its buffers, behind the validity that its values have."""
        nulls = values.count(None)
        self.nodes += (len(values), nulls)
        self.buffers.append(_valid(tuple([value is not None for value in values])) if nulls else b"")
        self.buffers += buffers


Build = Callable[[Sequence[Any], Memory], None]


class Layout:
    """The batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._builds = [_builder(field.type) for field in schema]
        made = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema).serialize()
        self._head = _Head(made.to_pybytes())

    def message(self, columns: Sequence[Sequence[Any]]) -> bytes:
        """A batch as it stands in a stream. Raises OverflowError or TypeError when a value does not fit its column."""
        memory = Memory()
        for build, values in zip(self._builds, columns, strict=True):
            build(values, memory)
        return self._head.message(len(columns[0]), memory)

    def batch(self, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(self.message(columns)), self.schema)


class _Head:
    """The head of a batch's message, in the format of flatbuffers.

    A table begins with how far before it its vtable lies, which says where in the table each field is; vectors and
    tables within it are found by how far behind the field they lie. All of it is the same for all batches of a schema.
    """

    def __init__(self, message: bytes) -> None:
        """Args: message: any batch of the schema, as Arrow writes it."""
        _, size = struct.unpack_from("<iI", message)
        self._bytes = bytearray(message[: 8 + size])
        root = self._behind(8)
        self._body = self._field(root, 3)
        batch = self._behind(self._field(root, 2))
        self._rows = self._field(batch, 0)
        self._nodes, self._buffers = (self._behind(self._field(batch, place)) for place in (1, 2))
        counts = (2 * struct.unpack_from("<I", self._bytes, at)[0] for at in (self._nodes, self._buffers))
        self._node_pack, self._buffer_pack = (struct.Struct(f"<{count}q").pack_into for count in counts)

    def message(self, rows: int, memory: Memory) -> bytes:
        places: list[int] = []
        pieces: list[Any] = [b""]
        end = 0
        for buffer in memory.buffers:
            size = len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes
            places += (end, size)
            if size:
                pieces += (buffer, _PADDING[-size % 8])
                end += size + -size % 8
        head = self._bytes
        struct.pack_into("<q", head, self._rows, rows)
        struct.pack_into("<q", head, self._body, end)
        self._node_pack(head, self._nodes + 4, *memory.nodes)
        self._buffer_pack(head, self._buffers + 4, *places)
        pieces[0] = head
        return b"".join(pieces)

    def _behind(self, place: int) -> int:
        return place + int(struct.unpack_from("<I", self._bytes, place)[0])

    def _field(self, table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", self._bytes, table)[0]
        return table + int(struct.unpack_from("<H", self._bytes, vtable + 4 + 2 * number)[0])


_PADDING = [bytes(count) for count in range(8)]


# ---- arrays


@lru_cache(maxsize=1024)
def _valid(present: tuple[bool, ...]) -> bytes:
    return _bits(present)


def _bits(values: Sequence[bool]) -> bytes:
    bits = sum([1 << position for position, value in enumerate(values) if value])
    return bits.to_bytes((len(values) + 7) // 8, "little")


def _builder(kind: pa.DataType) -> Build:
    """What lays out plain values as an array of this type."""
    build = _build_of(kind)

    @lru_cache(maxsize=256)
    def nulls(count: int) -> Memory:
        memory = Memory()
        build([None] * count, memory)
        return memory

    def built(values: Sequence[Any], memory: Memory) -> None:
        if values.count(None) == len(values):
            known = nulls(len(values))
            memory.nodes += known.nodes
            memory.buffers += known.buffers
        else:
            build(values, memory)

    return built


def _build_of(kind: pa.DataType) -> Build:
    if pa.types.is_list(kind):
        return _numbers(kind) if kind in (INTS, FLOATS) else _lists(kind)
    if pa.types.is_struct(kind):
        return _structs(kind)
    if pa.types.is_fixed_size_binary(kind):
        return _fixed(kind)
    if kind == pa.string() or kind == pa.binary():
        return _texts
    if kind in _TYPECODES:
        return _scalars(kind)
    if kind == pa.bool_():
        return lambda values, memory: memory.add(values, _bits(list(map(bool, values))))
    raise TypeError(f"no column is of type {kind}")


_TYPECODES = {pa.int16(): "h", pa.int32(): "i", pa.int64(): "q", pa.float32(): "f", pa.float64(): "d"}


def _offsets(lengths: Iterable[int]) -> array:
    return array("i", accumulate(lengths, initial=0))


@lru_cache(maxsize=256)
def _same(size: int, count: int) -> array:
    return _offsets([size] * count)


def _texts(values: Sequence[Any], memory: Memory) -> None:
    first = values[0] if values else None
    if type(first) is str and values.count(first) == len(values):
        data = first.encode()
        memory.add(values, _same(len(data), len(values)), data * len(values))
        return
    pieces = [value.encode() if type(value) is str else value or b"" for value in values]
    memory.add(values, _offsets(map(len, pieces)), b"".join(pieces))


def _fixed(kind: pa.DataType) -> Build:
    nothing = bytes(kind.byte_width)

    def build(values: Sequence[Any], memory: Memory) -> None:
        memory.add(values, b"".join([value or nothing for value in values]))

    return build


def _scalars(kind: pa.DataType) -> Build:
    typecode = _TYPECODES[kind]

    def build(values: Sequence[Any], memory: Memory) -> None:
        memory.add(values, array(typecode, [0 if value is None else value for value in values]))

    return build


def _numbers(kind: pa.DataType) -> Build:
    typecode = _TYPECODES[kind.value_type]
    nothing = array(typecode)

    def build(values: Sequence[Any], memory: Memory) -> None:
        pieces = [nothing if value is None else value for value in values]
        memory.add(values, _offsets(map(len, pieces)))
        data = pieces[0] if len(pieces) == 1 else array(typecode)
        if len(pieces) > 1:
            for piece in pieces:
                data.extend(piece)
        memory.nodes += (len(data), 0)
        memory.buffers += (b"", data)

    return build


def _lists(kind: pa.DataType) -> Build:
    inner = _builder(kind.value_type)

    def build(values: Sequence[Any], memory: Memory) -> None:
        memory.add(values, _offsets([len(value or ()) for value in values]))
        inner([one for value in values for one in value or ()], memory)

    return build


def _structs(kind: pa.DataType) -> Build:
    fields = [(field.name, _builder(field.type)) for field in kind]

    def build(values: Sequence[Any], memory: Memory) -> None:
        memory.add(values)
        for name, inner in fields:
            inner([None if value is None else value[name] for value in values], memory)

    return build


_ROWS = Layout(SCHEMA)


def to_message(rows: Sequence[Row]) -> bytes:
    """The rows as one batch in a stream. Raises OverflowError or TypeError when a value does not fit its column."""
    names = SCHEMA.names
    return _ROWS.message(list(zip(*[map(row.get, names) for row in rows], strict=True)))


def to_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(to_message(rows)), SCHEMA)


@lru_cache(maxsize=64)
def _layout_of(kind: pa.DataType) -> Layout:
    return Layout(pa.schema([("", kind)]))


def array_of(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """As `pyarrow.array`, which imports pandas where there is one: half a second."""
    return _layout_of(kind).batch([list(values)]).column(0)


def scalar(text: str) -> pa.Scalar:
    """As `pyarrow.scalar`, without pandas likewise."""
    return array_of(pa.string(), [text])[0]


# ---- Arrow to rows


def to_rows(batch: pa.RecordBatch, numbers: Sequence[int] | None = None) -> list[Row]:
    """The batch's rows, or those with the given numbers; nulls are left out."""
    if numbers is not None:
        batch = batch.take(array_of(pa.int64(), numbers))
    rows: list[Row] = [{} for _ in range(batch.num_rows)]
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count == len(column):
            continue
        for row, value in zip(rows, _values(column), strict=True):
            if value is not None:
                row[name] = value
    return rows


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if kind in (INTS, FLOATS):
        return _arrays(column, "i" if kind == INTS else "f")
    if pa.types.is_list(kind) and kind.value_type == CHOICE:
        fields = {name: _values(column.values.field(name)) for name in CHOICE_FIELDS}
        offsets = column.offsets.to_pylist()
        valid = column.is_valid().to_pylist()
        return [
            [{name: values[at] for name, values in fields.items()} for at in range(start, end)] if there else None
            for start, end, there in zip(offsets, offsets[1:], valid, strict=False)
        ]
    return column.to_pylist()


def _arrays(column: pa.Array, typecode: str) -> list[array | None]:
    offsets = column.offsets.to_pylist()
    valid = column.is_valid().to_pylist()
    numbers = column.values
    found: list[array | None] = []
    for start, end, there in zip(offsets, offsets[1:], valid, strict=False):
        if not there:
            found.append(None)
            continue
        value = array(typecode)
        piece = numbers.slice(start, end - start)
        buffer = piece.buffers()[1]
        if buffer is not None and len(piece):
            value.frombytes(memoryview(buffer)[4 * piece.offset : 4 * (piece.offset + len(piece))])
        found.append(value)
    return found
