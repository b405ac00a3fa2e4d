"""A body's long lists, of which most was there in the call before: what is known by its bytes is not decoded again.

Which elements are known never changes what a body means: the same bytes give equal values, shared ones here.
Memory is bounded: elements that were not sent for the longest are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ..exchange.parts import Element, element_of
from . import codec

_T = TypeVar("_T")
_LISTS = frozenset({"messages", "input", "tools"})
_WORTH = 256
"""A shorter body is decoded as fast as it is looked up."""
_FORMS = 5
"""As often its bytes are there at most: they themselves, the texts in them and in what was read of it (beyond ASCII in
two encodings), and those that it is sent on as."""
_OVERHEAD = 2048
"""Bytes that an element takes besides, with what is kept with it."""
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Elements:
    """Those of recent bodies."""

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        self._known: OrderedDict[bytes, Element] = OrderedDict()
        self._bytes = 0
        self._max_bytes = max_bytes

    def decode(self, data: bytes) -> Any:
        """As `codec.decode_body`."""
        if len(data) < _WORTH:
            return codec.decode_body(data)
        try:
            fields = _fields(data)
            return {name: self._value(name, raw) for name, raw in fields.items()}
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return codec.decode_body(data)

    def _value(self, name: str, raw: msgspec.Raw) -> Any:
        view = memoryview(raw)
        if name not in _LISTS or view[:1] != b"[":
            return codec.strict(view)
        return [self._element(bytes(one)) for one in _elements(view)]

    def _element(self, data: bytes) -> Any:
        known = self._known
        element = known.get(data)
        if element is not None:
            known.move_to_end(data)
            return element
        value = codec.strict(data)
        if type(value) is not dict:
            return value
        element = known[data] = Element(value)
        self._bytes += _size(data)
        while self._bytes > self._max_bytes:
            forgotten, oldest = known.popitem(last=False)
            self._bytes -= _size(forgotten)
            oldest.forget()
        return element


def _size(data: bytes) -> int:
    return _FORMS * len(data) + _OVERHEAD


def write_once(value: _T, under: object, write: Callable[[_T], Any]) -> Any:
    """What `write` makes of a message or a tool. Of one that bodies share it is made only once, and kept as JSON, for
    as long as `under`, all that it depends on besides, is one object."""
    element = element_of(value)
    if element is None:
        return write(value)
    if element.written is None or element.written[0] is not under:
        made = write(value)
        # A copy: the encoder's own bytes take half as much again.
        told = None if made is None else msgspec.Raw(memoryview(codec.encode(made)).tobytes())
        element.written = under, told
    return element.written[1]
