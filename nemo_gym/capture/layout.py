"""The batches of one schema, as they stand in a stream.

A batch of one row is as common as one of sixty, and then making Arrow's objects is most of what recording costs. So
the arrays are put behind a head that Arrow wrote once for the schema: only its numbers (lengths, nulls, offsets) differ
from batch to batch. A column that says the same in each row of a batch (nothing, or what most calls of a server have in
common) is laid out once for all such batches: its memory stands first, its numbers in a copy of the head. Kept true:
what Arrow reads is what it would have made of these rows itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
from msgspec import Struct

from .arrays import PADDING, Build, Memory, builder, builder_of_one, offsets

_TEMPLATES = 256
_TEMPLATE_BYTES = 1 << 16
"""So many are kept, of at most so many bytes each."""
_VARIES, _ONE = object(), object()
_ONE_EACH = {1}
_Varying = tuple[Callable[[Any, Memory], None], Any]
"""What lays out, and what of."""


class Layout:
    """The batches of one schema.

    Args:
        few: the columns that say the same in most rows.
    """

    def __init__(self, schema: pa.Schema, few: Iterable[str] = ()) -> None:
        self.schema = schema
        made = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema).serialize()
        self._head = _Head(made.to_pybytes())
        self._columns: list[_Column] = []
        few, nodes, places = frozenset(few), self._head.nodes, self._head.places
        for field in schema:
            column = _column(field, few, nodes, places)
            self._columns.append(column)
            nodes, places = column.nodes.end, column.places.end
        self._templates: dict[tuple[Any, ...], _Template] = {}

    def message(self, columns: Sequence[Sequence[Any]]) -> bytes:
        """A batch as it stands in a stream. Raises OverflowError or TypeError when a value does not fit its column."""
        common: list[Any] = [len(columns[0])]
        varying: list[_Varying] = []
        _divide(self._columns, columns, common[0], common, varying)
        return self._template(tuple(common)).message(varying)

    def message_of_one(self, row: Iterable[Any]) -> bytes:
        """As `message`, of one row: with calls that come one at a time every batch is such a one."""
        common: list[Any] = [1]
        varying: list[_Varying] = []
        _divide_one(self._columns, row, common, varying)
        return self._template(tuple(common)).message(varying)

    def batch(self, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(self.message(columns)), self.schema)

    def _template(self, key: tuple[Any, ...]) -> _Template:
        template = self._templates.get(key)
        if template is not None:
            return template
        template = _Template(self._head, self._columns, key)
        if len(template.body) <= _TEMPLATE_BYTES:
            if len(self._templates) >= _TEMPLATES:
                self._templates.clear()
            self._templates[key] = template
        return template


class _Head:
    """The head of a batch's message, in the format of flatbuffers, and where its numbers stand.

    A table begins with how far before it its vtable lies, which says where in the table each field is; vectors and
    tables within it are found by how far behind the field they lie. All of it is the same for all batches of a schema.
    """

    def __init__(self, message: bytes) -> None:
        """Args: message: any batch of the schema, as Arrow writes it."""
        _, size = struct.unpack_from("<iI", message)
        self.bytes = message[: 8 + size]
        root = self._behind(8)
        self.body = self._field(root, 3)
        """The body's size."""
        batch = self._behind(self._field(root, 2))
        self.rows = self._field(batch, 0)
        self.nodes, self.places = (self._behind(self._field(batch, number)) + 4 for number in (1, 2))

    def _behind(self, place: int) -> int:
        return place + int(struct.unpack_from("<I", self.bytes, place)[0])

    def _field(self, table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", self.bytes, table)[0]
        return table + int(struct.unpack_from("<H", self.bytes, vtable + 4 + 2 * number)[0])


class _Span(Struct, frozen=True):
    """So many numbers of a head, from there on."""

    at: int
    count: int

    @property
    def end(self) -> int:
        return self.at + 8 * self.count

    @property
    def packer(self) -> Callable[..., None]:
        return struct.Struct(f"<{self.count}q").pack_into


class _Column(Struct, frozen=True):
    name: str
    build: Build
    build_one: Callable[[Any, Memory], None]
    few: bool
    nodes: _Span
    places: _Span
    fields: tuple[_Column, ...] = ()
    """Of a list of structs: taken for columns of their own where each row has one."""


def _divide(
    columns: Iterable[_Column], of_each: Iterable[Sequence[Any]], rows: int, common: list[Any], varying: list[_Varying]
) -> None:
    """Adds to `common` what all rows say in each column, or that they differ; and to `varying` what is built then."""
    for column, values in zip(columns, of_each, strict=True):
        first = values[0] if rows else None
        if (first is None or column.few) and values.count(first) == rows:
            common.append(first)
        elif column.fields and None not in values and set(map(len, values)) == _ONE_EACH:
            common.append(_ONE)
            inner = [[one[field.name] for (one,) in values] for field in column.fields]
            _divide(column.fields, inner, rows, common, varying)
        else:
            common.append(_VARIES)
            varying.append((column.build, values))


def _divide_one(columns: Iterable[_Column], values: Iterable[Any], common: list[Any], varying: list[_Varying]) -> None:
    """As `_divide`, of one row."""
    for column, value in zip(columns, values, strict=True):
        if value is None or column.few:
            common.append(value)
        elif column.fields and len(value) == 1:
            common.append(_ONE)
            _divide_one(column.fields, [value[0][field.name] for field in column.fields], common, varying)
        else:
            common.append(_VARIES)
            varying.append((column.build_one, value))


def _column(field: pa.Field, few: frozenset[str], nodes: int, places: int) -> _Column:
    """A column whose numbers stand in the head from `nodes` and `places` on."""
    build, memory = builder(field.type), Memory()
    build([None], memory)
    fields: list[_Column] = []
    if pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
        at, to = nodes + 32, places + 48  # behind the list's own, with its offsets, and the struct's
        for inner in field.type.value_type:
            fields.append(_column(inner, few, at, to))
            at, to = fields[-1].nodes.end, fields[-1].places.end
    spans = _Span(nodes, len(memory.nodes)), _Span(places, 2 * len(memory.buffers))
    return _Column(field.name, build, builder_of_one(field.type), field.name in few, *spans, tuple(fields))


class _Template:
    """The batches of so many rows that have this in common, as `_divide` says it.

    Arrow asks of a buffer only where it is: what is all zeros, as nulls are, lies in the same place for all columns.
    """

    def __init__(self, head: _Head, columns: Sequence[_Column], common: Sequence[Any]) -> None:
        self._rows, *values = common
        self._head = bytearray(head.bytes)
        self._body_at = head.body
        struct.pack_into("<q", self._head, head.rows, self._rows)
        self._pieces = [bytes(max(16 * self._rows, 8))]
        self._end = len(self._pieces[0])
        varying: list[_Column] = []
        left = iter(values)
        for column in columns:
            self._put(column, left, varying)
        self.body = b"".join(self._pieces)
        self._nodes = _packs([column.nodes for column in varying])
        self._places = _packs([column.places for column in varying])

    def _put(self, column: _Column, left: Iterator[Any], varying: list[_Column]) -> None:
        value = next(left)
        if value is _VARIES:
            varying.append(column)
        elif value is _ONE:
            memory = Memory()
            memory.add([()] * self._rows, 0, offsets([1] * self._rows))
            memory.add([()] * self._rows, 0)
            self._fix(column, memory)
            for field in column.fields:
                self._put(field, left, varying)
        else:
            memory = Memory()
            column.build([value] * self._rows, memory)
            self._fix(column, memory)

    def _fix(self, column: _Column, memory: Memory) -> None:
        """Puts these arrays into the body, and their numbers into the head, from where the column's begin."""
        places: list[int] = []
        for buffer in memory.buffers:
            size = len(buffer)
            if size <= len(self._pieces[0]) and not any(buffer):
                places += (0, size)
                continue
            places += (self._end, size)
            self._pieces += (buffer, PADDING[-size & 7])
            self._end += size + (-size & 7)
        _Span(column.nodes.at, len(memory.nodes)).packer(self._head, column.nodes.at, *memory.nodes)
        _Span(column.places.at, len(places)).packer(self._head, column.places.at, *places)

    def message(self, varying: Iterable[_Varying]) -> bytes:
        memory = Memory()
        for build, values in varying:
            build(values, memory)
        places, pieces, end = memory.laid_out(self._end)
        head = self._head.copy()  # a shard's end is written on another thread
        struct.pack_into("<q", head, self._body_at, end)
        for pack, at, which in self._nodes:
            pack(head, at, *memory.nodes[which])
        for pack, at, which in self._places:
            pack(head, at, *places[which])
        return b"".join((head, self.body, *pieces))


def _packs(spans: Iterable[_Span]) -> list[tuple[Callable[..., None], int, slice]]:
    """How to write numbers into these spans, one span after the other: what writes, where, and which of them."""
    joined: list[_Span] = []
    for span in spans:
        if joined and joined[-1].end == span.at:
            span = _Span(joined[-1].at, joined.pop().count + span.count)
        joined.append(span)
    ends = list(accumulate([span.count for span in joined]))
    return [(span.packer, span.at, slice(end - span.count, end)) for span, end in zip(joined, ends, strict=True)]
