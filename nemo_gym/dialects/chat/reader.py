"""Chat Completions chunks of a backend -> increments, and at the end the reply.

Text and reasoning come out as they arrive; a tool call when it is whole. The reply is folded into the object that the
backend would have sent unstreamed and read by the one reader of that, so the two cannot differ.
"""

from __future__ import annotations

import json
from typing import Any

from ...exchange.errors import ModelError
from ...exchange.increments import Increment
from ...exchange.parts import Origin, Part, Reasoning, Refusal, Text
from ...exchange.reply import ModelReply
from .. import codec, failures
from ..sse import Decoder
from .details import gathered
from .messages import NAME, read_part
from .reply import read_reply, read_trace

_TEXTS: dict[str, type[Text] | type[Reasoning] | type[Refusal]] = {
    "content": Text,
    "reasoning_content": Reasoning,
    "reasoning": Reasoning,
    "refusal": Refusal,
}
_OTHER_NAME = {"reasoning_content": "reasoning", "reasoning": "reasoning_content"}


class _Choice:
    def __init__(self) -> None:
        self.message: dict[str, Any] = {"role": "assistant"}
        self.calls = _Calls()
        self.fields: dict[str, Any] = {}
        self.token_ids: list[int] | None = None
        self.logprobs: list[dict[str, Any]] | None = None
        self.half: dict[str, str] = {}
        """A surrogate's first half, waiting for the second (A13)."""

    def body(self, index: int) -> dict[str, Any]:
        message = dict(self.message)
        for field, half in self.half.items():
            message[field] = message.get(field, "") + codec.whole_text(half)
        if calls := self.calls.whole():
            message["tool_calls"] = calls
        body = {**self.fields, "index": index, "message": message}
        if self.token_ids is not None:
            body["token_ids"] = self.token_ids
        if self.logprobs is not None:
            body["logprobs"] = {"content": self.logprobs}
        return body


class ChatReader:
    def __init__(self) -> None:
        self._decoder = Decoder()
        self._body: dict[str, Any] | None = None
        self._choices: dict[int, _Choice] = {}
        self._done = False

    def feed(self, data: bytes) -> list[Increment]:
        try:
            events = self._decoder.feed(data)
        except ValueError:
            raise ModelError(502, "backend", "The backend's stream is malformed.") from None
        return [increment for event in events for increment in self._event(event.data)]

    @property
    def begun(self) -> ModelReply | None:
        """What the first chunk says of the reply; no choices."""
        body = self._body
        if body is None:
            return None
        created = body.get("created")
        return ModelReply(
            id=body.get("id") or "",
            model=body.get("model") or "",
            created=created if isinstance(created, int) else 0,
            choices=(),
            origin=Origin(NAME, dict(body)),
        )

    def finish(self) -> ModelReply:
        for event in self._decoder.finish():
            self._event(event.data)
        ended = self._done or (
            bool(self._choices) and all(choice.fields.get("finish_reason") for choice in self._choices.values())
        )
        if self._body is None or not ended:
            raise ModelError(502, "backend", "The backend's stream ended before its last event.")
        choices = [self._choices[index].body(index) for index in sorted(self._choices)]
        return read_reply({**self._body, "object": "chat.completion", "choices": choices})

    def _event(self, data: str) -> list[Increment]:
        said = data.strip()
        self._done |= said == "[DONE]"
        if self._done or not said:
            return []
        try:
            chunk = codec.decode(data, halves=True)
            told = failures.instead(NAME, chunk)
            if told is not None:
                raise told
            return self._chunk(chunk)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            raise ModelError(502, "backend", "The backend's stream is malformed.") from None

    def _chunk(self, chunk: dict[str, Any]) -> list[Increment]:
        body = self._body = self._body or {}
        for field, value in chunk.items():
            if field not in ("choices", "object") and (value is not None or field not in body):
                body[field] = value
        increments = []
        for choice in chunk.get("choices") or ():
            increments += self._choice(choice)
        return increments

    def _choice(self, body: dict[str, Any]) -> list[Increment]:
        index = _index(body.get("index", 0))
        choice = self._choices.setdefault(index, _Choice())
        for field in ("finish_reason", "stop_reason", "meta_info", "weight_versions"):
            if body.get(field) is not None:
                choice.fields[field] = body[field]
        if body.get("prompt_token_ids") is not None:
            assert self._body is not None
            self._body.setdefault("prompt_token_ids", body["prompt_token_ids"])
        if body.get("token_ids") is not None:
            choice.token_ids = [*(choice.token_ids or ()), *body["token_ids"]]
        logprobs = (body.get("logprobs") or {}).get("content")
        if logprobs:
            choice.logprobs = [*(choice.logprobs or ()), *logprobs]
        parts = _delta(choice, body.get("delta") or {})
        trace = read_trace(body.get("token_ids"), logprobs)
        # The tokens of a delta ride on its first piece.
        return [Increment(part, index, trace if place == 0 else None) for place, part in enumerate(parts)]


def _delta(choice: _Choice, delta: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    for field, value in delta.items():
        if field in _TEXTS:
            parts += [part for piece in _pieces(field, value) if (part := _hear(choice, *piece)) is not None]
        elif field == "tool_calls":
            for call in value or ():
                choice.calls.add(call)
        elif field == "reasoning_details" and value is not None:
            choice.message[field] = gathered(choice.message.get(field, []), value)
        elif field != "role" and value is not None:
            choice.message[field] = value
    return parts


def _pieces(field: str, value: Any) -> list[tuple[str, str]]:
    """What a delta says, by field; some servers tell their thoughts as parts of the content."""
    if isinstance(value, str):
        return [(field, value)]
    said = [read_part(part) for part in value] if isinstance(value, list) else []
    named = {Text: "content", Reasoning: "reasoning_content", Refusal: "refusal"}
    return [(named[type(one)], one.text) for one in said if isinstance(one, Text | Reasoning | Refusal)]


def _hear(choice: _Choice, field: str, value: str) -> Part | None:
    """What of a text can go on. Of thoughts told twice, under both names that they have, the first are heard."""
    other = _OTHER_NAME.get(field)
    if other is not None and choice.message.get(other):
        return None
    text = _text(choice, field, value)
    choice.message[field] = choice.message.get(field, "") + text
    return _TEXTS[field](text) if text else None


def _text(choice: _Choice, field: str, value: str) -> str:
    value = choice.half.pop(field, "") + value
    if value and "\ud800" <= value[-1] <= "\udbff":
        choice.half[field] = value[-1]
        value = value[:-1]
    return codec.whole_text(value)


class _Calls:
    """Calls gathered from their fragments, by index; a server that sends none sends whole calls."""

    def __init__(self) -> None:
        self._told: list[tuple[int, dict[str, Any]]] = []
        self._last: dict[int, dict[str, Any]] = {}
        """By index, the call that the next fragment is of."""

    def whole(self) -> list[dict[str, Any]]:
        return [call for _, call in sorted(self._told, key=lambda one: one[0])]

    def add(self, delta: dict[str, Any]) -> None:
        index = len(self._told) if delta.get("index") is None else _index(delta["index"])
        call = self._last.get(index)
        if call is None or _is_another(call, delta):
            call = self._last[index] = {"id": "", "type": "function"}
            self._told.append((index, call))
        for field, value in delta.items():
            if field in ("function", "custom"):
                body = call.setdefault(field, {})
                for name, piece in (value or {}).items():
                    # The name comes once; some servers repeat it in every fragment.
                    if name != "name" and isinstance(piece, str):
                        body[name] = body.get(name, "") + piece
                    elif piece:
                        body[name] = piece
            elif field != "index" and value:
                call[field] = value


def _is_another(call: dict[str, Any], delta: dict[str, Any]) -> bool:
    """Whether a fragment begins a call of its own, at the index of one before: some servers number each call 0."""
    named = (delta.get("function") or delta.get("custom") or {}).get("name")
    return bool(named and delta.get("id") and call["id"] and delta["id"] != call["id"])


def _index(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("an index is a whole number")
    return value


def stream_reader() -> ChatReader:
    return ChatReader()
