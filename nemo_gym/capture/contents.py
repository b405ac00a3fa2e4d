"""What is said again is stored once: JSON values and long texts under the digest of their bytes, per shard.

An element of a body and the message read from it are one content, in two lines. A long text inside a value is a content
of its own, so the client's body and the reply that it replays share one copy; so does an image. In stored JSON,
`{"$content": "<digest>"}` stands for such a text; a key of a client's that looks like it gets one more `$`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ..exchange.parts import Part, Reasoning, Refusal, Text, ToolCall
from .recent import Recent
from .record import bare_part, bare_parts
from .redact import HIDDEN, Redactor
from .schema import Row

LONG = 512
"""Characters or bytes from which a text is a content of its own; each costs about 150 bytes, and a digest."""
_REFERENCE = "$content"
_LARGE = 8192
"""Bytes from which a digest of the whole costs more than it saves: the long texts in it get one each anyway."""
_MARK = b'$content"'
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")
Binary = Literal["keep", "reference"]
_ESCAPED = re.compile(r"\$+content")
_SAID: dict[type, str] = {Text: "text", Reasoning: "text", Refusal: "text", ToolCall: "arguments"}
"""Of a part that may be long, where."""
_PLACE = 128
"""Bytes that a part takes whose text is put away."""
_OUTLINES = 64
"""So many that were made are kept: most calls of a server ask for the same."""


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


_encoded = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """JSON; lone surrogates, which UTF-8 cannot say, are escaped."""
    try:
        return _encoded(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, str_keys=True), separators=(",", ":")).encode()


def decode(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


class Contents:
    """What one shard holds. New contents are pending until `take`, and forgotten by `drop`."""

    def __init__(self, redactor: Redactor, binary: Binary = "keep") -> None:
        self._redactor = redactor
        self._binary = binary
        self._held = Recent()
        """By the digest of what was put, that under which it is stored."""
        self._new: dict[bytes, Row] = {}
        self._new_held: dict[bytes, bytes] = {}
        self._texts: dict[int, tuple[bytes, bytes]] = {}
        """Long texts of the row in the making, by length, and their digests."""
        self._outlines: dict[bytes, bytes] = {}
        self.mark = object()
        """Stands at what is kept elsewhere of what was put; another one since some of that was dropped."""
        self.alike = not redactor.hides("content")
        """Whether an element's `content` is stored as what was read from it would be."""

    def put(self, value: Any, kind: str) -> bytes:
        """The digest under which this JSON value (or Struct) is held."""
        return self._put_json(encode(value), kind)

    def put_pair(self, element: Any, line: bytes) -> bytes:
        """The digest under which a body's element is held together with what stands of its message."""
        return self._put_json(encode(element) + b"\n" + line, "message")

    def put_said(self, element: dict[str, Any], name: str, line: bytes) -> bytes:
        """As `put_pair`, where a field of the element is the text of its message: however long, it is read once."""
        key = self._put_away(element[name])
        if key is None:
            return self.put_pair(element, line)
        data = encode({**element, name: {_REFERENCE: key.hex()}}) + b"\n" + line
        if data.count(_MARK) > 1 or self._redactor.concerns(data):
            return self.put_pair(element, line)
        return self._put(data, "message")

    def outline(self, value: Any) -> bytes:
        """This JSON value (or Struct) for a row, its long texts put away."""
        return self._stored(encode(value))

    def common_outline(self, value: Any) -> bytes:
        """As `outline`, of what most calls have in common."""
        data = encode(value)
        known = self._outlines.get(data)
        if known is None:
            known = self._stored(data)
            if len(data) < _LARGE and _MARK not in known:
                if len(self._outlines) >= _OUTLINES:
                    self._outlines.clear()
                self._outlines[data] = known
        return known

    def parts(self, parts: tuple[Part, ...]) -> bytes:
        """As `outline`, of these parts without their origins."""
        away = 0
        bare: list[Part] = []
        for part in parts:
            name = _SAID.get(type(part))
            key = self._put_away(getattr(part, name)) if name is not None else None
            part = bare_part(part)
            if name is not None and key is not None:
                away += 1
                part = replace(part, **{name: {_REFERENCE: key.hex()}})
            bare.append(part)
        data = encode(bare)
        if not away:
            return self._stored(data)
        if data.count(_MARK) > away or self._redactor.concerns(data) or len(data) >= LONG + _PLACE * away:
            return self.outline(bare_parts(parts))
        return data

    def take(self) -> list[Row]:
        self._texts.clear()
        if not self._new and not self._new_held:
            return []
        taken = list(self._new.values())
        self._held.update(self._new_held)
        self._new, self._new_held = {}, {}
        return taken

    def drop(self) -> None:
        self._texts.clear()
        self._new, self._new_held = {}, {}
        self.mark = object()

    def _put_json(self, data: bytes, kind: str) -> bytes:
        if len(data) >= _LARGE:
            return self._put(self._stored(data), kind)
        key = blake2b(data, digest_size=16).digest()
        known = self._new_held.get(key) or self._held.get(key)
        if known is None:
            stored = self._stored(data)
            known = self._put(stored, kind, key if stored is data else None)
            self._new_held[key] = known
        return known

    def _put_away(self, text: str) -> bytes | None:
        """The digest of a long text; None where it is short, or not to be stored as it is."""
        if len(text) < LONG or self._binary == "reference":
            return None
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return None
        return None if self._redactor.knows(data) else self._put(data, "text", self._text_key(data))

    def _stored(self, data: bytes) -> bytes:
        """This JSON as it is stored, in as many lines; the same object when it is as it should be."""
        if _MARK in data or self._redactor.concerns(data):
            return self._outlined(data)
        if len(data) < LONG:
            return data
        return self._outlined(data) if self._binary == "reference" else self._cut(data)

    def _outlined(self, data: bytes) -> bytes:
        return b"\n".join([encode(self._outline(decode(line))) for line in data.split(b"\n")])

    def _cut(self, data: bytes) -> bytes:
        """With its long texts put away, found in the bytes: there is nothing to hide or to unescape in their names."""
        pieces = _between_quotes(data) if b'\\"' in data else data.split(b'"')
        long = [i for i in range(1, len(pieces), 2) if len(pieces[i]) >= LONG and pieces[i + 1][:1] != b":"]
        stored: list[bytes] = []
        last = 0
        for i in long:
            text = pieces[i]
            if b"\\" in text:
                text = decode(b'"%b"' % text).encode("utf-8", "surrogatepass")
            key = self._put(text, "text", self._text_key(text))
            stored += (b'"'.join(pieces[last:i]), b'{"$content":"%b"}' % key.hex().encode())
            last = i + 1
        return b"".join((*stored, b'"'.join(pieces[last:]))) if long else data

    def _text_key(self, text: bytes) -> bytes:
        """The digest. A message says what the body's element said just before: comparing is faster than hashing."""
        known = self._texts.get(len(text))
        if known is None or known[0] != text:
            known = self._texts[len(text)] = text, digest(text)
        return known[1]

    def _put(self, body: bytes, kind: str, key: bytes | None = None) -> bytes:
        key = key or digest(body)
        if self._held.get(key) is None and key not in self._new:
            self._new[key] = {"digest": key, "kind": kind, "body": body}
            self._new_held[key] = key
        return key

    def _outline(self, value: Any) -> Any:
        if isinstance(value, str):
            text = self._redactor.text(value)
            if self._binary == "reference" and _DATA_URL.match(text) and len(text) >= LONG:
                return _referred(*text.split(",", 1))
            if len(text) < LONG:
                return text
            return {_REFERENCE: self._put(text.encode("utf-8", "surrogatepass"), "text").hex()}
        if isinstance(value, list):
            return [self._outline(one) for one in value]
        if not isinstance(value, dict):
            return value
        outlined = {}
        for name, one in value.items():
            if name == "data" and self._binary == "reference" and _is_binary(one, value):
                one = _referred("data:;base64", one)
            hidden = isinstance(one, str) and self._redactor.hides(name)
            outlined["$" + name if _ESCAPED.fullmatch(name) else name] = HIDDEN if hidden else self._outline(one)
        return outlined


def _is_binary(data: Any, beside: dict[str, Any]) -> bool:
    """Whether an object's `data` is base64, as what stands beside it says."""
    return isinstance(data, str) and len(data) >= LONG and ("media_type" in beside or "format" in beside)


def _referred(head: str, data: str) -> str:
    """What stands for a binary part that is left out."""
    return f"{head},omitted;blake2b={digest(data.encode('utf-8', 'replace')).hex()};base64_length={len(data)}"


def _between_quotes(data: bytes) -> list[bytes]:
    """What lies between the quotes of JSON: outside, inside, outside, and so on."""
    pieces: list[bytes] = []
    last = 0
    for found in _STRING.finditer(data):
        start, end = found.span()
        pieces += (data[last:start], data[start + 1 : end - 1])
        last = end
    return [*pieces, data[last:]]


def inline(data: bytes, content: Callable[[bytes], bytes]) -> Any:
    """The JSON value that was stored, its texts put back."""
    value = decode(data)
    return _inline(value, content) if _MARK in data else value


def _inline(value: Any, content: Callable[[bytes], bytes]) -> Any:
    if isinstance(value, list):
        return [_inline(one, content) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and _REFERENCE in value:
        return content(bytes.fromhex(value[_REFERENCE])).decode("utf-8", "surrogatepass")
    return {unescaped(name): _inline(one, content) for name, one in value.items()}


def unescaped(name: str) -> str:
    """The key that stands in stored JSON as this one."""
    return name[1:] if _ESCAPED.fullmatch(name) and name != _REFERENCE else name


def references(data: bytes) -> list[bytes]:
    """The digests that a stored JSON value refers to."""
    return [bytes.fromhex(found.decode()) for found in _REFERENCES.findall(data)] if _MARK in data else []


_REFERENCES = re.compile(rb'\{"\$content":"([0-9a-f]{32})"\}')
