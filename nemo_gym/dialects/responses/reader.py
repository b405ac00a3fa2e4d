"""Responses events of a backend -> increments, and at the end the reply (R25).

Gateways differ in where they say what: in deltas, in the events that end a part, in the item as it is added or done, or
only in the last event's output; some number every item 0, some name an item anew in each event. Each item is gathered
from whatever tells of it, and what it says comes out exactly once, after all that the items before it say: one that
is not done yet, and may have a payload still, holds back those behind it. What was streamed stands: where a later word
contradicts it, `divergences` counts that.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from ...exchange.errors import ModelError
from ...exchange.increments import Increment
from ...exchange.parts import Origin, Part, Reasoning, Refusal, Text
from ...exchange.reply import ModelReply
from .. import codec, failures
from ..sse import Decoder
from .gathered import TYPES, Gathered
from .items import NAME, read_output
from .reply import failed, read_reply, says

_PARTS: dict[str, type[Text] | type[Refusal] | type[Reasoning]] = {
    "text": Text,
    "refusal": Refusal,
    "content": Reasoning,
    "summary": Reasoning,
}
_SAYS = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "content",
    "response.reasoning": "content",
    "response.reasoning_summary_text": "summary",
    "response.reasoning_summary": "summary",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}
"""What an event's text is a piece of, by the event's name without its last word."""
_PART_SAYS = {
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "reasoning_text": "content",
    "summary_text": "summary",
}
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class ResponsesReader:
    def __init__(self) -> None:
        self.divergences = 0
        self._decoder = Decoder()
        self._items: list[Gathered] = []
        """In the order in which they were first told of."""
        self._front = 0
        """The place of the first that is not done: what it says goes on at once."""
        self._places: dict[int, Gathered] = {}
        self._names: dict[str, Gathered] = {}
        self._created: dict[str, Any] | None = None
        self._response: dict[str, Any] | None = None

    def feed(self, data: bytes) -> list[Increment]:
        try:
            events = self._decoder.feed(data)
        except ValueError:
            raise _malformed() from None
        for event in events:
            self._event(event.data)
        return [Increment(part) for part in self._ready()]

    def _ready(self) -> list[Part]:
        """What the items say that may go on."""
        parts: list[Part] = []
        for item in self._items[self._front :]:
            parts += item.said()
            if not item.done:
                break
            self._front += 1
        return parts

    @property
    def begun(self) -> ModelReply | None:
        """What the first event says of the reply; no choices."""
        body = self._created
        if body is None:
            return None
        created = body.get("created_at")
        return ModelReply(
            id=_text(body.get("id")),
            model=_text(body.get("model")),
            created=int(created) if isinstance(created, int | float) else 0,
            choices=(),
            origin=Origin(NAME, body),
        )

    def finish(self) -> ModelReply:
        for event in self._decoder.finish():
            self._event(event.data)
        response = self._response
        if response is None:
            raise ModelError(502, "backend", "The backend's stream ended before its last event.")
        if response.get("status") == "failed":
            raise failed(response)
        try:
            output = self._output(response.get("output") or [])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _malformed() from None
        return read_reply({**(self._created or {}), **response, "output": output})

    def _event(self, data: str) -> None:
        if self._response is not None or data.strip() in ("", "[DONE]"):
            return
        try:
            event = codec.decode(data, halves=True)
            told = failures.instead(NAME, event)
            if told is not None:
                raise told
            self._read(event.get("type", ""), event)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            raise _malformed() from None

    def _read(self, kind: str, event: dict[str, Any]) -> None:
        if kind in _TERMINAL:
            self._response = {"status": kind.removeprefix("response."), **event["response"]}
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            self._created = self._created or codec.whole(event["response"])
        elif kind == "error":
            error = {key: event.get(key) for key in ("message", "code", "param")}
            raise failures.read_error(NAME, 502, {}, codec.encode({"error": error}))
        elif kind == "response.output_item.added":
            self._added(event)
        elif kind == "response.output_item.done":
            self._done(event)
        else:
            self._said(*kind.rpartition(".")[::2], event)

    # ---- whose event it is

    def _added(self, event: dict[str, Any]) -> None:
        place, body = event.get("output_index"), event["item"]
        item = self._places.get(place) if isinstance(place, int) else None
        if item is None or item.announced or item.done:
            item = self._new(place, body.get("id"))
        item.tell(body)
        item.announced = True

    def _done(self, event: dict[str, Any]) -> None:
        body = event["item"]
        before = self._places.get(event.get("output_index", -1))
        if before is not None and before.done and before.repeats(body):
            return
        item = self._item(event, body.get("id"), body.get("type"))
        if item.done:
            return
        item.done = True
        item.tell(body)
        item.waiting += self._finished(item)

    def _item(self, event: dict[str, Any], name: Any, kind: str | None = None) -> Gathered:
        """The item of an event: that of its name or place, unless that one is another, already finished."""
        place = event.get("output_index")
        named = self._names.get(name) if isinstance(name, str) else None
        item = named or (
            self._places.get(place) if isinstance(place, int) else self._items[-1] if self._items else None
        )
        if item is None or (item.done and item is not named) or not item.may_be(kind):
            return self._new(place, name)
        return item

    def _new(self, place: Any, name: Any) -> Gathered:
        item = Gathered()
        self._items.append(item)
        if isinstance(place, int):
            self._places[place] = item
        if isinstance(name, str) and name:
            self._names[name] = item
            item.name = name
        return item

    # ---- what it says

    def _said(self, name: str, last: str, event: dict[str, Any]) -> None:
        field = _SAYS.get(name)
        if field is None:
            if name in ("response.content_part", "response.reasoning_summary_part"):
                self._part(event, name == "response.reasoning_summary_part")
            return
        index = event.get("summary_index" if field == "summary" else "content_index") or 0
        item = self._item(event, event.get("item_id"), TYPES[field])
        if last == "delta":
            item.waiting += self._delta(item, field, index, event["delta"])
            return
        text = next((event[one] for one in ("text", "refusal", "arguments", "input") if one in event), None)
        if last == "done" and isinstance(text, str):
            item.told.setdefault((field, index), codec.whole_text(text))

    def _part(self, event: dict[str, Any], summary: bool) -> None:
        """The events around a part: heard only where nothing else told of it."""
        part = event.get("part") or {}
        field = "summary" if summary else _PART_SAYS.get(str(part.get("type")))
        text = part.get("refusal") if field == "refusal" else part.get("text")
        if field is not None and isinstance(text, str) and text:
            item = self._item(event, event.get("item_id"), TYPES[field])
            index = event.get("summary_index" if summary else "content_index") or 0
            item.told.setdefault((field, index), codec.whole_text(text))

    def _delta(self, item: Gathered, field: str, index: int, delta: str) -> list[Part]:
        text = item.hear(field, index, delta)
        kind = _PARTS.get(field)
        if not text or kind is None:
            return []
        labelled = item.labelled if kind is Text else None
        return [kind(text, item.name) if labelled is None else Text(text, item.name, Origin(NAME, labelled))]

    def _finished(self, item: Gathered) -> list[Part]:
        """What the finished item says beyond its deltas: a call, a payload, a text that came without any."""
        parts = [part for part in read_output([item.body()]) if says(part)]
        if not item.streamed:
            return parts
        return [replace(part, text="") for part in parts if isinstance(part, Reasoning) and part.payload is not None]

    # ---- the end

    def _output(self, snapshot: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The items, those of the last event among them; one that was not told of before keeps its place there, but
        none comes before what is out."""
        left = list(self._items)
        position, out = 0, self._front + any(item.streamed for item in self._items[self._front : self._front + 1])
        names = {name for body in snapshot if isinstance(name := body.get("id"), str)}
        for body in snapshot:
            item = _match(body, left, names)
            if item is None:
                item = Gathered()
                self.divergences += position < out
                self._items.insert(max(position, out), item)
            else:
                left.remove(item)
            position = self._items.index(item) + 1
            if item.done:
                item.check(body)
            else:
                item.tell(body)
        bodies = [item.body() for item in self._items if item.known]
        self.divergences += sum(item.diverged for item in self._items)
        return bodies


def _match(body: dict[str, Any], items: list[Gathered], names: set[str]) -> Gathered | None:
    """The item that a listed one is: by its name, else the next of its kind that no other of `names` is."""
    named = next((item for item in items if item.name and item.name == body.get("id")), None)
    return named or next((item for item in items if item.name not in names and item.may_be(body.get("type"))), None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _malformed() -> ModelError:
    return ModelError(502, "backend", "The backend's stream is malformed.")


def stream_reader() -> ResponsesReader:
    return ResponsesReader()
