"""One output item of a backend's stream, gathered from all that tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...exchange.parts import Part
from .. import codec
from .items import read_output, texts_of

_FIELDS = {
    "message": ("text", "refusal"),
    "reasoning": ("content", "summary"),
    "function_call": ("arguments",),
    "custom_tool_call": ("input",),
}
TYPES = {field: kind for kind, fields in _FIELDS.items() for field in fields}
_WRITTEN = {"text": ("output_text", "text"), "refusal": ("refusal", "refusal")}

Place = tuple[str, int]


class Gathered:
    def __init__(self) -> None:
        self.name = ""
        """Its id, as first told: what comes out of it bears that one."""
        self.announced = False
        self.done = False
        self.heard: dict[Place, str] = {}
        """What came in deltas."""
        self.told: dict[Place, str] = {}
        """What the events that end a text or a part say of it."""
        self.diverged = False
        self.waiting: list[Part] = []
        """What it says and did not go on yet."""
        self._half: dict[Place, str] = {}
        self._bodies: list[dict[str, Any]] = []
        """The item as it was added, done and at last listed."""

    def said(self) -> list[Part]:
        """What goes on now, once."""
        parts, self.waiting = self.waiting, []
        return parts

    @property
    def known(self) -> bool:
        return bool(self._bodies or self.heard or self.told)

    @property
    def streamed(self) -> bool:
        """Whether a text of it went out as it came."""
        return any(field in ("text", "refusal", "content", "summary") for field, _ in self.heard)

    @property
    def labelled(self) -> dict[str, Any] | None:
        """The item as it was told with its phase: a label that models expect back."""
        return next((body for body in self._bodies if body.get("phase") is not None), None)

    @property
    def kind(self) -> str | None:
        for body in self._bodies:
            if isinstance(body.get("type"), str):
                return str(body["type"])
        return next((TYPES[field] for field, _ in (*self.heard, *self.told)), None)

    def may_be(self, kind: Any) -> bool:
        return kind is None or self.kind is None or kind == self.kind

    def tell(self, body: Mapping[str, Any]) -> None:
        """The item as an event has it."""
        whole = codec.whole(body)
        self._bodies.append(whole)
        if not self.name and isinstance(whole.get("id"), str):
            self.name = whole["id"]

    def repeats(self, body: Mapping[str, Any]) -> bool:
        """Whether this is what was last told of it, once more."""
        return bool(self._bodies) and self._bodies[-1] == codec.whole(body)

    def check(self, body: Mapping[str, Any]) -> None:
        """A later word on what is done already."""
        if self.heard and _says(body):
            self._with(codec.whole(body), self.heard)

    def hear(self, field: str, index: int, delta: str) -> str:
        """What of a delta can go on; half a surrogate pair waits for the other (A13)."""
        place = (field, index)
        if TYPES[field] == "reasoning" and any(other != field for other, _ in self.heard):
            return ""  # the same thoughts told twice, as content and as summary
        # A second part of the same reasoning begins on a new line, as `read_reasoning` joins them.
        gap = "\n" if TYPES[field] == "reasoning" and place not in self.heard and self.heard else ""
        text = self._half.pop(place, "") + delta
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._half[place] = text[-1]
            text = text[:-1]
        if not text:
            return ""
        text = gap + codec.whole_text(text)
        self.heard[place] = self.heard.get(place, "") + text
        return text

    def body(self) -> dict[str, Any]:
        """The item, whole, under its first name."""
        whole: dict[str, Any] = {"type": self.kind}
        for body in self._bodies:
            whole |= {name: value for name, value in body.items() if value not in (None, "", []) or name not in whole}
        if self.name:
            whole["id"] = self.name
        said = self.heard or ({} if _says(whole) else self.told)
        return self._with(whole, said) if said else whole

    def _with(self, whole: dict[str, Any], said: dict[Place, str]) -> dict[str, Any]:
        """With the texts that were said; `whole` keeps its own where it says the same."""
        kind = whole["type"]
        if kind in ("function_call", "custom_tool_call"):
            text = "".join(said.values())
            field = _FIELDS[kind][0]
            self.diverged |= bool(whole.get(field)) and whole[field] != text
            return {**whole, field: text}
        ordered = [said[place] for place in sorted(said, key=lambda place: place[1])]
        text = "".join(ordered) if said is self.heard else "\n".join(ordered)
        if kind == "reasoning":
            field = next(iter(said))[0]
            own = texts_of(whole.get(field)) or whole.get("text") or ""
            if own != text:
                self.diverged |= said is self.heard and bool(own)
                whole = {**whole, field: [{"type": _reasoning_type(field), "text": text}]}
            other = "summary" if field == "content" else "content"
            return {**whole, "text": None, other: []}
        own = "".join(getattr(part, "text", "") for part in read_output([whole]))
        if own == "".join(ordered):
            return whole
        self.diverged |= bool(own)
        content = []
        for (field, _), one in sorted(said.items(), key=lambda entry: entry[0][1]):
            written, name = _WRITTEN[field]
            content.append({"type": written, name: one})
        return {"role": "assistant", **whole, "type": "message", "content": content}


def _says(body: Mapping[str, Any]) -> bool:
    """Whether an item as it was told has a text of its own."""
    kind = body.get("type")
    if kind in ("function_call", "custom_tool_call"):
        return bool(body.get(_FIELDS[kind][0]))
    if kind not in _FIELDS:
        return True
    own = (texts_of(body.get("content")), texts_of(body.get("summary")), body.get("text"))
    return any(own) or any(isinstance(part, dict) and part.get("refusal") for part in body.get("content") or ())


def _reasoning_type(field: str) -> str:
    return "reasoning_text" if field == "content" else "summary_text"
