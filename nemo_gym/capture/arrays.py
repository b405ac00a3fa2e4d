"""Plain values as the memory of an Arrow array, by its type.

Nothing of Arrow's is made: only the bytes that its format says, and how many values and nulls they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import pyarrow as pa

from .schema import FLOATS, INTS


class Memory:
    """Arrays, flat and in the order of Arrow's format."""

    def __init__(self) -> None:
        self.nodes: list[int] = []
        """Of each array its length and its nulls."""
        self.buffers: list[bytes] = []

    def add(self, values: Sequence[Any], nulls: int, *buffers: bytes) -> None:
        """An array: its buffers, behind the validity that its values have."""
        self.nodes += (len(values), nulls)
        self.buffers.append(_valid(tuple([value is not None for value in values])) if nulls else b"")
        self.buffers += buffers

    def laid_out(self, start: int) -> tuple[list[int], list[bytes], int]:
        """Where each buffer begins, from `start` on, and its size; all their bytes; and their end."""
        sizes = list(map(len, self.buffers))
        ends = list(accumulate([size + (-size & 7) for size in sizes], initial=start))
        places = [0] * (2 * len(sizes))
        places[::2], places[1::2] = ends[:-1], sizes
        pieces: list[bytes] = []
        for buffer, size in zip(self.buffers, sizes, strict=True):
            if size:
                pieces += (buffer, PADDING[-size & 7])
        return places, pieces, ends[-1]


PADDING = [bytes(count) for count in range(8)]
Build = Callable[[Sequence[Any], Memory], None]


@lru_cache(maxsize=1024)
def _valid(present: tuple[bool, ...]) -> bytes:
    return _bits(present)


def _bits(values: Sequence[bool]) -> bytes:
    bits = sum([1 << position for position, value in enumerate(values) if value])
    return bits.to_bytes((len(values) + 7) // 8, "little")


def builder(kind: pa.DataType) -> Build:
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


def builder_of_one(kind: pa.DataType) -> Callable[[Any, Memory], None]:
    """As `builder`, for one value that is not null."""
    if kind in _TYPECODES:
        typecode = _TYPECODES[kind]
        return lambda value, memory: _one(memory, array(typecode, (value,)).tobytes())
    if kind == pa.string():
        return _text
    if kind == pa.binary():
        return lambda value, memory: _one(memory, _until(len(value)), value)
    if pa.types.is_fixed_size_binary(kind):
        return lambda value, memory: _one(memory, value)
    build = _build_of(kind)
    return lambda value, memory: build((value,), memory)


def _one(memory: Memory, *buffers: bytes) -> None:
    memory.nodes += (1, 0)
    memory.buffers += (b"", *buffers)


def _text(value: str, memory: Memory) -> None:
    data = str.encode(value)
    _one(memory, _until(len(data)), data)


@lru_cache(maxsize=4096)
def _until(length: int) -> bytes:
    """The offsets of one value."""
    return offsets((length,))


def _build_of(kind: pa.DataType) -> Build:
    if pa.types.is_list(kind):
        return _numbers(kind) if kind in (INTS, FLOATS) else _lists(kind)
    if pa.types.is_struct(kind):
        return _structs(kind)
    if pa.types.is_fixed_size_binary(kind):
        return _fixed(kind)
    if kind == pa.string():
        return _texts
    if kind == pa.binary():
        return _bytes
    if kind in _TYPECODES:
        return _scalars(kind)
    if kind == pa.bool_():
        return lambda values, memory: memory.add(values, values.count(None), _bits(list(map(bool, values))))
    raise TypeError(f"no column is of type {kind}")


_TYPECODES = {pa.int16(): "h", pa.int32(): "i", pa.int64(): "q", pa.float32(): "f", pa.float64(): "d"}


def offsets(lengths: Iterable[int]) -> bytes:
    return array("i", list(accumulate(lengths, initial=0))).tobytes()


def _filled(values: Sequence[Any], nulls: int, nothing: Any) -> Sequence[Any]:
    """The values, with something in the place of each null."""
    return [nothing if value is None else value for value in values] if nulls else values


def _texts(values: Sequence[Any], memory: Memory) -> None:
    nulls = values.count(None)
    texts = _filled(values, nulls, "")
    together = "".join(texts)
    data = together.encode()
    ascii_only = len(data) == len(together)
    lengths = map(len, texts) if ascii_only else [len(text.encode()) for text in texts]
    memory.add(values, nulls, offsets(lengths), data)


def _bytes(values: Sequence[Any], memory: Memory) -> None:
    nulls = values.count(None)
    pieces = _filled(values, nulls, b"")
    memory.add(values, nulls, offsets(map(len, pieces)), b"".join(pieces))


def _fixed(kind: pa.DataType) -> Build:
    nothing = bytes(kind.byte_width)

    def build(values: Sequence[Any], memory: Memory) -> None:
        nulls = values.count(None)
        memory.add(values, nulls, b"".join(_filled(values, nulls, nothing)))

    return build


def _scalars(kind: pa.DataType) -> Build:
    typecode = _TYPECODES[kind]

    def build(values: Sequence[Any], memory: Memory) -> None:
        nulls = values.count(None)
        memory.add(values, nulls, array(typecode, _filled(values, nulls, 0)).tobytes())

    return build


def _numbers(kind: pa.DataType) -> Build:
    typecode = _TYPECODES[kind.value_type]
    nothing = array(typecode)

    def build(values: Sequence[Any], memory: Memory) -> None:
        nulls = values.count(None)
        pieces = _filled(values, nulls, nothing)
        if any(piece.typecode != typecode for piece in pieces):
            raise TypeError(f"a list of {kind.value_type} is an array of type {typecode!r}")
        lengths = list(map(len, pieces))
        memory.add(values, nulls, offsets(lengths))
        memory.nodes += (sum(lengths), 0)
        memory.buffers += (b"", b"".join(pieces))

    return build


def _lists(kind: pa.DataType) -> Build:
    inner = builder(kind.value_type)

    def build(values: Sequence[Any], memory: Memory) -> None:
        nulls = values.count(None)
        lists = _filled(values, nulls, ())
        memory.add(values, nulls, offsets(map(len, lists)))
        inner([one for values in lists for one in values], memory)

    return build


def _structs(kind: pa.DataType) -> Build:
    fields = [(field.name, builder(field.type)) for field in kind]

    def build(values: Sequence[Any], memory: Memory) -> None:
        nulls = values.count(None)
        memory.add(values, nulls)
        for name, inner in fields:
            inner([None if value is None else value[name] for value in values], memory)

    return build
