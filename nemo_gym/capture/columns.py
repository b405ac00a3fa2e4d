"""Rows to a record batch and back, by the schema.

A batch of one row is as common as one of sixty, so arrays are made from their own memory: `pyarrow.array` costs
several times as much for a handful of values, and a hundred times as much for token ids.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import pyarrow as pa

from .schema import CHOICE, CHOICE_FIELDS, COLUMNS, FLOATS, INTS, SCHEMA, Row

Build = Callable[[list[Any]], pa.Array]


def to_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Raises OverflowError or TypeError when a value does not fit its column."""
    arrays = [build([row.get(name) for row in rows]) for name, build in _COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@lru_cache(maxsize=4096)
def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind)


def _builder(kind: pa.DataType) -> Build:
    """What makes an array of this type from plain values."""
    build = _build_of(kind)

    def built(values: list[Any]) -> pa.Array:
        return _nulls(kind, len(values)) if values.count(None) == len(values) else build(values)

    return built


def _build_of(kind: pa.DataType) -> Build:
    if pa.types.is_list(kind):
        return _numbers(kind) if kind in (INTS, FLOATS) else _lists(kind)
    if pa.types.is_struct(kind):
        return _structs(kind)
    if pa.types.is_fixed_size_binary(kind):
        return _fixed(kind)
    if kind == pa.string() or kind == pa.binary():
        return _texts(kind)
    if kind in _TYPECODES:
        return _scalars(kind)
    if kind == pa.bool_():
        return lambda values: _array(kind, values, [_bits(map(bool, values), len(values))])
    raise TypeError(f"no column is of type {kind}")


_TYPECODES = {pa.int16(): "h", pa.int32(): "i", pa.int64(): "q", pa.float32(): "f", pa.float64(): "d"}


def _array(
    kind: pa.DataType, values: list[Any], buffers: list[Any], children: list[pa.Array] | None = None
) -> pa.Array:
    """From the buffers behind the validity, which is made of the values."""
    nulls = values.count(None)
    validity = None
    if nulls:
        validity = pa.py_buffer(_bits((value is not None for value in values), len(values)))
    buffers = [validity, *(pa.py_buffer(one) for one in buffers)]
    return pa.Array.from_buffers(kind, len(values), buffers, nulls, children=children)


def _bits(values: Iterable[bool], count: int) -> bytes:
    bits = sum(1 << position for position, value in enumerate(values) if value)
    return bits.to_bytes(count // 8 + 1, "little")


def _offsets(lengths: list[int]) -> array:
    return array("i", accumulate(lengths, initial=0))


def _texts(kind: pa.DataType) -> Build:
    @lru_cache(maxsize=4096)
    def constant(value: str, count: int) -> pa.Array:
        return of([value] * count)

    def build(values: list[Any]) -> pa.Array:
        first = values[0]
        if type(first) is str and len(first) < 64 and values.count(first) == len(values):
            return constant(first, len(values))
        return of(values)

    def of(values: list[Any]) -> pa.Array:
        data = [value.encode() if type(value) is str else value or b"" for value in values]
        return _array(kind, values, [_offsets(list(map(len, data))), b"".join(data)])

    return build


def _fixed(kind: pa.DataType) -> Build:
    nothing = bytes(kind.byte_width)

    def build(values: list[Any]) -> pa.Array:
        return _array(kind, values, [b"".join([value or nothing for value in values])])

    return build


def _scalars(kind: pa.DataType) -> Build:
    typecode = _TYPECODES[kind]

    def build(values: list[Any]) -> pa.Array:
        return _array(kind, values, [array(typecode, [0 if value is None else value for value in values])])

    return build


def _numbers(kind: pa.DataType) -> Build:
    items = kind.value_type
    typecode = _TYPECODES[items]

    def build(values: list[Any]) -> pa.Array:
        data = values[0] if len(values) == 1 else array(typecode)
        if len(values) > 1:
            for value in values:
                data.extend(value or ())
        child = pa.Array.from_buffers(items, len(data), [None, pa.py_buffer(data)])
        return _array(kind, values, [_offsets([len(value or ()) for value in values])], [child])

    return build


def _lists(kind: pa.DataType) -> Build:
    inner = _builder(kind.value_type)

    def build(values: list[Any]) -> pa.Array:
        flat = [one for value in values for one in value or ()]
        return _array(kind, values, [_offsets([len(value or ()) for value in values])], [inner(flat)])

    return build


def _structs(kind: pa.DataType) -> Build:
    fields = [(field.name, _builder(field.type)) for field in kind]

    def build(values: list[Any]) -> pa.Array:
        children = [inner([None if value is None else value[name] for value in values]) for name, inner in fields]
        return _array(kind, values, [], children)

    return build


_COLUMNS = [(column.name, _builder(column.type)) for column in COLUMNS]


@lru_cache(maxsize=64)
def _builder_of(kind: pa.DataType) -> Build:
    return _builder(kind)


def array_of(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """As `pyarrow.array`, which imports pandas where there is one: half a second."""
    return _builder_of(kind)(list(values))


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
