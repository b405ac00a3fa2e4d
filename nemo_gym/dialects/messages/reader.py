"""Messages events of a backend -> increments, and at the end the reply.

Text and thinking come out as they arrive, a call when its block is whole. The reply is folded into the object that the
backend would have sent unstreamed and read by the one reader of that, so the two cannot differ.
"""

from __future__ import annotations

import json
from typing import Any

from ...exchange.errors import ModelError
from ...exchange.increments import Increment
from ...exchange.parts import Origin, Part, Reasoning, Text, ToolCall
from ...exchange.reply import ModelReply
from .. import codec
from ..sse import Decoder
from .blocks import NAME, read_block
from .errors import instead
from .reply import alike, apart, read_folded

_TEXTS: dict[str, tuple[str, type[Text] | type[Reasoning]]] = {
    "text_delta": ("text", Text),
    "thinking_delta": ("thinking", Reasoning),
}


class _Block:
    def __init__(self, body: dict[str, Any]) -> None:
        self.body = dict(body)
        self.input = ""
        self.half = ""
        """A surrogate's first half, waiting for the second (A13)."""
        self.id = ""
        """Of the part, where it stands beside another of its kind."""
        self.done = False


class MessagesReader:
    def __init__(self) -> None:
        self._decoder = Decoder()
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, _Block] = {}
        self._ended = False

    def feed(self, data: bytes) -> list[Increment]:
        try:
            events = self._decoder.feed(data)
        except ValueError:
            raise ModelError(502, "backend", "The backend's stream is malformed.") from None
        return [Increment(part) for event in events for part in self._event(event.data)]

    @property
    def begun(self) -> ModelReply | None:
        """What the first event says of the reply; no choices."""
        body = self._message
        if body is None:
            return None
        return ModelReply(str(body["id"]), str(body.get("model") or ""), 0, (), origin=Origin(NAME, dict(body)))

    def finish(self) -> ModelReply:
        for event in self._decoder.finish():
            self._event(event.data)
        if self._message is None or not (self._ended or self._message.get("stop_reason")):
            raise ModelError(502, "backend", "The backend's stream ended before its last event.")
        places = sorted(self._blocks)
        blocks = [self._finished(self._blocks[place]) for place in places]
        said = {n: self._blocks[place].input for n, place in enumerate(places) if self._blocks[place].input}
        return read_folded({**self._message, "content": blocks}, said)

    def _event(self, data: str) -> list[Part]:
        if self._ended or data.strip() in ("", "[DONE]"):
            return []
        try:
            event = codec.decode(data, halves=True)
            told = instead(event)
            if told is not None:
                raise told
            return self._read(event.get("type"), event)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            raise ModelError(502, "backend", "The backend's stream is malformed.") from None

    def _read(self, kind: str, event: dict[str, Any]) -> list[Part]:
        if kind == "message_start":
            message = codec.whole(event["message"])
            if not isinstance(message["id"], str):
                raise ValueError("a message has an id")
            self._message = message
        elif kind == "content_block_start":
            return self._start(event["index"], codec.whole(event["content_block"]))
        elif kind == "content_block_delta":
            return self._delta(self._blocks[event["index"]], event["delta"])
        elif kind == "content_block_stop":
            return self._stop(event["index"])
        elif kind == "message_delta":
            self._end(codec.whole(event))
            return self._stop_all()
        elif kind == "message_stop":
            self._ended = True
            return self._stop_all()
        return []

    def _start(self, place: int, body: dict[str, Any]) -> list[Part]:
        if self._message is None:
            raise ValueError("a block comes after the message's start")
        # Blocks follow one another, so the next one ends those that nothing ended, as the message's end does.
        parts = self._stop_all()
        block = self._blocks[place] = _Block(body)
        before = self._blocks.get(place - 1)
        if before is not None and alike(before.body, body):
            block.id = f"{self._message['id']}_{place}"
        said = {"text": Text, "thinking": Reasoning}.get(body["type"])
        text = body.get(body["type"])
        if said is not None and isinstance(text, str) and text:
            parts.append(said(text, block.id))
        return parts

    def _delta(self, block: _Block, delta: dict[str, Any]) -> list[Part]:
        kind = delta["type"]
        if kind in _TEXTS:
            field, part = _TEXTS[kind]
            text = _joined(block, delta[field])
            block.body[field] = block.body.get(field, "") + text
            return [part(text, block.id)] if text else []
        if kind == "input_json_delta":
            block.input += delta["partial_json"]
        elif kind == "signature_delta":
            block.body["signature"] = delta["signature"]
        elif kind == "citations_delta":
            block.body["citations"] = [*(block.body.get("citations") or ()), codec.whole(delta["citation"])]
        return []

    def _stop_all(self) -> list[Part]:
        return [part for place in sorted(self._blocks) for part in self._stop(place)]

    def _stop(self, place: int) -> list[Part]:
        """What the whole block says beyond its deltas: a call, a payload, citations, a block of another kind."""
        assert self._message is not None
        block = self._blocks[place]
        if block.done:
            return []
        parts: list[Part] = []
        said: list[Part] = []
        read_block(self._finished(block), said)
        for part in said:
            if isinstance(part, Text) and part.origin is not None and part.origin.body.get("citations"):
                parts.append(Text("", block.id, part.origin))
            elif isinstance(part, Reasoning) and part.payload is not None:
                parts.append(Reasoning("", block.id, part.payload, part.origin))
            elif isinstance(part, ToolCall):
                parts.append(ToolCall(part.name, block.input or part.arguments, part.call_id, origin=part.origin))
            elif not isinstance(part, Text | Reasoning):
                parts.append(apart(part, self._message["id"], place))
        return parts

    def _finished(self, block: _Block) -> dict[str, Any]:
        """The block as it would have come unstreamed."""
        if not block.done:
            block.done = True
            if block.half:
                field = block.body["type"]
                block.body[field] = block.body.get(field, "") + codec.whole_text(block.half)
            if block.input:
                block.input = codec.whole_text(block.input)
                block.body["input"] = _read_object(block.input)
        return block.body

    def _end(self, event: dict[str, Any]) -> None:
        """Counts are totals: a later one stands for an earlier one, and what is left out stands as it was."""
        assert self._message is not None
        usage = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
        self._message["usage"] = {**(self._message.get("usage") or {}), **usage}
        self._message |= {key: value for key, value in (event.get("delta") or {}).items() if value is not None}
        rest = {key: value for key, value in event.items() if key not in ("type", "delta", "usage")}
        self._message |= {key: value for key, value in rest.items() if value is not None}


def _joined(block: _Block, text: str) -> str:
    text, block.half = block.half + text, ""
    if text and "\ud800" <= text[-1] <= "\udbff":
        block.half, text = text[-1], text[:-1]
    return codec.whole_text(text)


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = codec.decode(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def stream_reader() -> MessagesReader:
    return MessagesReader()
