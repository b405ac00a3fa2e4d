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
from .reply import read_reply, read_trace
from .request import NAME

_TEXTS = {"content": Text, "reasoning_content": Reasoning, "reasoning": Reasoning, "refusal": Refusal}


class _Choice:
    def __init__(self) -> None:
        self.message: dict[str, Any] = {"role": "assistant"}
        self.calls: dict[int, dict[str, Any]] = {}
        self.fields: dict[str, Any] = {}
        self.token_ids: list[int] | None = None
        self.logprobs: list[dict[str, Any]] | None = None
        self.half: dict[str, str] = {}
        """A surrogate's first half, waiting for the second (A13)."""

    def body(self, index: int) -> dict[str, Any]:
        message = dict(self.message)
        for field, half in self.half.items():
            message[field] = message.get(field, "") + codec.whole_text(half)
        if self.calls:
            message["tool_calls"] = [self.calls[place] for place in sorted(self.calls)]
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
        if data.strip() == "[DONE]":
            self._done = True
            return []
        if self._done:
            return []
        try:
            chunk = codec.decode(data, halves=True)
            if chunk.get("error"):
                raise _failure(chunk, data)
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
        index = body.get("index", 0)
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


def _failure(chunk: dict[str, Any], data: str) -> ModelError:
    error = chunk["error"]
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return failures.read_error(NAME, status, {}, data.encode())


def _delta(choice: _Choice, delta: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    for field, value in delta.items():
        if field in _TEXTS:
            if isinstance(value, str):
                text = _text(choice, field, value)
                choice.message[field] = choice.message.get(field, "") + text
                if text:
                    parts.append(_TEXTS[field](text))
        elif field == "tool_calls":
            for call in value or ():
                _add_call(choice.calls, call)
        elif field != "role" and value is not None:
            choice.message[field] = value
    return parts


def _text(choice: _Choice, field: str, value: str) -> str:
    value = choice.half.pop(field, "") + value
    if value and "\ud800" <= value[-1] <= "\udbff":
        choice.half[field] = value[-1]
        value = value[:-1]
    return codec.whole_text(value)


def _add_call(calls: dict[int, dict[str, Any]], delta: dict[str, Any]) -> None:
    """Fragments of one call by its index; a server that sends none sends whole calls."""
    place = delta.get("index")
    if place is None:
        place = len(calls)
    call = calls.setdefault(place, {"id": "", "type": "function"})
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


def stream_reader() -> ChatReader:
    return ChatReader()
