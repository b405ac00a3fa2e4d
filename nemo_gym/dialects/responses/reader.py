"""Responses events of a backend -> increments, and at the end the reply (R25).

Each item is gathered from whatever event tells of it; a text is taken once, however often it is repeated. Where the
last snapshot contradicts the deltas, the deltas win: a client may have seen them. `divergences` counts those.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from ...exchange.errors import ModelError
from ...exchange.increments import Increment
from ...exchange.parts import Part, Reasoning, Refusal, Text
from ...exchange.reply import ModelReply
from .. import codec, failures
from ..sse import Decoder
from .items import NAME, read_output
from .reply import failed, read_reply

_DELTAS: dict[str, tuple[type[Text] | type[Refusal] | type[Reasoning], str]] = {
    "response.output_text.delta": (Text, "text"),
    "response.refusal.delta": (Refusal, "refusal"),
    "response.reasoning_text.delta": (Reasoning, "content"),
    "response.reasoning_summary_text.delta": (Reasoning, "summary"),
}
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class _Item:
    """One output item: what it is, and the text that went out of it."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {}
        self.said: dict[tuple[str, int], str] = {}
        self.half: dict[tuple[str, int], str] = {}
        self.done = False

    def spoken(self) -> str:
        return "".join(self.said[key] for key in sorted(self.said, key=lambda key: key[1]))


class ResponsesReader:
    def __init__(self) -> None:
        self.divergences = 0
        self._decoder = Decoder()
        self._items: dict[int, _Item] = {}
        self._response: dict[str, Any] | None = None
        self._ended = False

    def feed(self, data: bytes) -> list[Increment]:
        try:
            events = self._decoder.feed(data)
        except ValueError:
            raise ModelError(502, "backend", "The backend's stream is malformed.") from None
        return [Increment(part) for event in events for part in self._event(event.data)]

    def finish(self) -> ModelReply:
        for event in self._decoder.finish():
            self._event(event.data)
        if self._response is None or not self._ended:
            raise ModelError(502, "backend", "The backend's stream ended before its last event.")
        if self._response.get("status") == "failed":
            raise failed(self._response)
        return read_reply({**self._response, "output": self._output(self._response.get("output") or [])})

    def _event(self, data: str) -> list[Part]:
        if self._ended or data.strip() == "[DONE]":
            return []
        try:
            event = codec.decode(data, halves=True)
            return self._read(event.get("type", ""), event)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            raise ModelError(502, "backend", "The backend's stream is malformed.") from None

    def _read(self, kind: str, event: dict[str, Any]) -> list[Part]:
        if kind in _TERMINAL:
            self._response, self._ended = event["response"], True
        elif kind == "error":
            error = {key: event.get(key) for key in ("message", "code", "param")}
            raise failures.read_error(NAME, 502, {}, codec.encode({"error": event.get("error") or error}))
        elif kind in _DELTAS:
            return self._delta(kind, event)
        elif kind == "response.output_item.added":
            self._item(event).body = event["item"]
        elif kind == "response.output_item.done":
            item = self._item(event)
            item.body, item.done = event["item"], True
            return self._finished(item)
        return []

    def _item(self, event: dict[str, Any]) -> _Item:
        return self._items.setdefault(event.get("output_index", 0), _Item())

    def _delta(self, kind: str, event: dict[str, Any]) -> list[Part]:
        part, field = _DELTAS[kind]
        item = self._item(event)
        if part is Reasoning and any(said != field for said, _ in item.said):
            return []  # the same thoughts told twice, as content and as summary
        index = event.get("summary_index" if field == "summary" else "content_index", 0)
        # A second part of the same reasoning begins on a new line, as `read_reasoning` joins them.
        gap = "\n" if part is Reasoning and (field, index) not in item.said and item.said else ""
        text = item.half.pop((field, index), "") + event["delta"]
        if text and "\ud800" <= text[-1] <= "\udbff":
            item.half[field, index] = text[-1]
            text = text[:-1]
        text = codec.whole_text(text)
        item.said[field, index] = item.said.get((field, index), gap) + text
        if not text:
            return []
        return [part(gap + text, event.get("item_id") or item.body.get("id") or "")]

    def _finished(self, item: _Item) -> list[Part]:
        """What the finished item says beyond its deltas: a call, a payload, a text that came without any."""
        parts = list(read_output([codec.whole(item.body)]))
        if not item.said:
            return parts
        return [replace(part, text="") for part in parts if isinstance(part, Reasoning) and part.payload is not None]

    def _output(self, snapshot: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The items in their order; a streamed text stands against any other."""
        output = []
        for index in range(max([len(snapshot), *(place + 1 for place in self._items)])):
            item = self._items.get(index, _Item())
            body = item.body if item.done or index >= len(snapshot) else snapshot[index]
            if body:
                output.append(self._checked(item, codec.whole(body)))
        return output

    def _checked(self, item: _Item, body: dict[str, Any]) -> dict[str, Any]:
        if not item.said:
            return body
        if body.get("type") == "reasoning" and ("summary", 0) in item.said:
            body = {**body, "content": None}
        parts = list(read_output([body]))
        text = "".join(part.text for part in parts if isinstance(part, Text | Refusal | Reasoning))
        if text == item.spoken():
            return body
        self.divergences += 1
        if body.get("type") == "reasoning":
            return {**body, "content": None, "summary": [{"type": "summary_text", "text": item.spoken()}]}
        said = [
            {"type": "refusal", "refusal": text} if field == "refusal" else {"type": "output_text", "text": text}
            for (field, _), text in sorted(item.said.items(), key=lambda entry: entry[0][1])
        ]
        return {**body, "content": said}


def stream_reader() -> ResponsesReader:
    return ResponsesReader()
