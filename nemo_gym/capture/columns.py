"""Rows to a record batch and back, by the schema: what is read back equals the row that was written."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from .layout import Layout
from .schema import CHOICE, CHOICE_FIELDS, COLUMNS, FLOATS, INTS, SCHEMA, Row

_NAMES = tuple(SCHEMA.names)
_ROWS = Layout(SCHEMA, [*[column.name for column in COLUMNS if column.few], "index", "finish"])


def to_message(rows: Sequence[Row]) -> bytes:
    """The rows as one batch in a stream. Raises OverflowError or TypeError when a value does not fit its column."""
    if len(rows) == 1:
        return _ROWS.message_of_one(map(rows[0].get, _NAMES))
    return _ROWS.message(list(zip(*[map(row.get, _NAMES) for row in rows], strict=True)))


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
