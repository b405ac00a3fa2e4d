"""What a message is made of. Equal parts compare equal whatever wire they came from.

Values of a call are trees, made of what is there already, so there is nothing in them for the garbage collector to look
for (`gc=False`).

A part never holds anything of its transport except `origin`, which is provenance: it is
kept so that a writer of the same dialect can give back what we do not model, and it never
makes two values differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

_T = TypeVar("_T")


class Origin(Struct, frozen=True, gc=False, eq=False):
    """The wire object that a value was read from.

    Set it to None (`msgspec.structs.replace(value, origin=None)`) whenever the meaning changes.
    """

    dialect: str
    body: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, Origin)

    __hash__ = None  # type: ignore[assignment]  # bodies are dicts; digests are the keys, not hashes


class Element(dict[str, Any]):
    """An element of a body's list, one object in all the bodies that have it: agents send their history every time.

    Never changed. What the rooms make of it is kept with it, so that history costs little more than being sent.
    """

    __slots__ = ("known", "read", "stored", "turn", "written")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.known = True
        self.read: tuple[Callable[[Any], Any], Any] | None = None
        """By which function, and what it made of it."""
        self.stored: tuple[object, bytes, bytes | None] | None = None
        """Where it is put away, and under which digests it and the message read from it are."""
        self.turn: bytes | None = None
        """Digest of the message read from it, in normal form."""
        self.written: tuple[object, Any] | None = None
        """Under what else, and as what, it was written for a backend."""

    def forget(self) -> None:
        """Nothing is kept with it from now on: what was read from it refers to it, and such a circle would stay."""
        self.known = False
        self.read = self.stored = self.turn = self.written = None


def read_once(element: Any, read: Callable[[Any], _T]) -> _T:
    """What `read` makes of an element; made only once of one that bodies share."""
    if type(element) is not Element or not element.known:
        return read(element)
    if element.read is None or element.read[0] is not read:
        element.read, element.written = (read, read(element)), None
    found: _T = element.read[1]
    return found


def unread(elements: Any, read: Callable[[Any], Any]) -> Any:
    """Those of a list that `read` has not made anything of yet, at least the last; the others were found valid then."""
    if type(elements) is not list:
        return elements
    new = [one for one in elements if type(one) is not Element or one.read is None or one.read[0] is not read]
    return new or elements[-1:]


class Text(Struct, frozen=True, gc=False, tag=True):
    """`id` is the item's; two neighbours with one id are one part in two pieces."""

    text: str
    id: str = ""
    origin: Origin | None = None


class Reasoning(Struct, frozen=True, gc=False, tag=True):
    """`payload`: encrypted content, signature or redacted data; opaque, only its provider can read it."""

    text: str
    id: str = ""
    payload: str | None = None
    origin: Origin | None = None


class Refusal(Struct, frozen=True, gc=False, tag=True):
    text: str
    id: str = ""


class ToolCall(Struct, frozen=True, gc=False, tag=True):
    """`arguments` is the model's own string, never re-serialised; raw input when `custom`."""

    name: str
    arguments: str
    call_id: str = ""
    id: str = ""
    namespace: str | None = None
    custom: bool = False
    origin: Origin | None = None


class ToolResult(Struct, frozen=True, gc=False, tag=True):
    call_id: str
    parts: tuple[Part, ...]
    is_error: bool = False
    origin: Origin | None = None


class Media(Struct, frozen=True, gc=False, tag=True):
    """`source` is a URL or a data: URL."""

    kind: Literal["image", "audio", "document"]
    source: str
    origin: Origin | None = None


class Other(Struct, frozen=True, gc=False, tag=True):
    """A part that only its dialect understands (web_search_call, compaction, ...).

    Its body is its meaning, so it is compared.
    """

    dialect: str
    body: Mapping[str, Any]


Part = Text | Reasoning | Refusal | ToolCall | ToolResult | Media | Other


class Message(Struct, frozen=True, gc=False):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    parts: tuple[Part, ...]
    origin: Origin | None = None


def element_of(value: Any) -> Element | None:
    """The shared element that a message or a tool was read from, if it was from one and from nothing else."""
    if value.origin is None or type(value.origin.body) is not Element:
        return None
    element: Element = value.origin.body
    return element if element.read is not None and element.read[1] is value else None


def joined(first: Part, second: Part) -> Part | None:
    """The part whose two pieces these are, or None if they are two parts.

    The only merging rule there is: neighbours of one kind and one id are one part; an empty id on
    the second piece continues the first. A tool call is always whole.
    """
    if type(first) is not type(second):
        return None
    if isinstance(first, Text | Refusal) and isinstance(second, Text | Refusal) and second.id in ("", first.id):
        return replace(first, text=first.text + second.text)
    if isinstance(first, Reasoning) and isinstance(second, Reasoning) and _continues(first, second):
        payload = first.payload if second.payload is None else second.payload
        return replace(first, text=first.text + second.text, payload=payload)
    return None


def _continues(first: Reasoning, second: Reasoning) -> bool:
    if first.id and second.id == first.id:
        return True
    return second.id == "" and first.payload is None  # a payload closes an item that has no id


def merged(pieces: Iterable[Part]) -> Iterator[Part]:
    """Neighbouring pieces joined into whole parts."""
    held: Part | None = None
    for piece in pieces:
        whole = None if held is None else joined(held, piece)
        if whole is not None:
            held = whole
            continue
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held


def plain_text(parts: Iterable[Part]) -> str:
    """The text of the Text parts, concatenated."""
    return "".join(part.text for part in parts if isinstance(part, Text))
