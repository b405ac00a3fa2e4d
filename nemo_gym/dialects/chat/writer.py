"""A reply as Chat Completions chunks (B1-B6).

What `feed` let out and what `close` adds is together the reply, whoever fed how much.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...exchange.errors import ModelError
from ...exchange.increments import Increment, cuts
from ...exchange.parts import Part, Reasoning, Refusal, Text, ToolCall
from ...exchange.reply import Choice, ModelReply, TokenTrace
from ...exchange.request import ModelRequest
from .. import codec
from ..dialect import Head, Progress
from ..sse import DONE, HOLE, Template, frame
from .errors import write_error
from .reply import (
    call_extras,
    content_is_empty,
    everywhere,
    message_extras,
    wants_logprobs,
    write_finish,
    write_logprobs,
    write_usage,
)

_FIELDS: dict[type, str] = {Text: "content", Reasoning: "reasoning_content", Refusal: "refusal"}


class _Stream:
    """One choice: what it has said."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.calls = 0
        self.tokens = 0
        """Tokens whose log-probs are out."""


class ChatWriter:
    def __init__(self, request: ModelRequest, head: Head) -> None:
        self._request = request
        self._head: dict[str, Any] = {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            **everywhere(head.origin),
        }
        body = request.origin.body if request.origin is not None and request.origin.dialect == "chat" else {}
        self._usage = (body.get("stream_options") or {}).get("include_usage") is True
        self._choices = head.choices
        self._templates: dict[tuple[int, str], Template] = {}
        self._streams: dict[int, _Stream] = {}

    def open(self) -> bytes:
        """A role chunk; nothing for a reply that is known to have no choice (B3)."""
        return self._stream(0)[1] if self._choices else b""

    def keep_alive(self) -> bytes:
        """Data, not a comment: agents count only that (A7)."""
        return self._chunk(min(self._streams, default=0), {})

    def feed(self, increment: Increment) -> bytes:
        stream, opening = self._stream(increment.choice)
        if not stream.progress.flows(increment.part):
            return opening
        return opening + self._piece(increment.choice, increment.part, increment.tokens)

    def feed_reply(self, reply: ModelReply) -> Iterator[bytes]:
        """`feed` of all its increments at once (see `fed`)."""
        for choice in reply.choices:
            tokens = choice.tokens if choice.tokens is not None and choice.tokens.texts is not None else None
            for part in choice.parts:
                stream, opening = self._stream(choice.index)
                yield opening
                if not stream.progress.flows(part):
                    break
                field = _FIELDS.get(type(part))
                if field is not None and tokens is None and part.text:  # type: ignore[union-attr]
                    stream.progress.add(part)
                    yield self._template(choice.index, field).each(cuts(part.text, choice))  # type: ignore[union-attr]
                    continue
                yield self._piece(choice.index, part, tokens if field == "content" else None)
                tokens = None if field == "content" else tokens

    def close(self, reply: ModelReply) -> bytes:
        out = b"".join(self._end(choice) for choice in reply.choices)
        if self._usage:
            out += frame(codec.encode({**self._head, "choices": [], "usage": write_usage(reply)}))
        elif not self._streams:
            out += frame(codec.encode({**self._head, "choices": []}))  # a client makes its object of some chunk (B3)
        return out + DONE

    def fail(self, error: ModelError) -> bytes:
        return frame(codec.encode(write_error(error))) + DONE

    def _stream(self, index: int) -> tuple[_Stream, bytes]:
        """The choice's stream, and its role chunk if this is its first word.

        Choices open in the order of their index: the stock client numbers them as they appear.
        """
        if index in self._streams:
            return self._streams[index], b""
        opening = b""
        for number in (*range(min(index, self._request.sampling.n)), index):
            if number not in self._streams:
                self._streams[number] = _Stream()
                opening += self._chunk(number, {"role": "assistant"})
        return self._streams[index], opening

    def _piece(self, index: int, part: Part, tokens: TokenTrace | None = None) -> bytes:
        stream = self._streams[index]
        stream.progress.add(part)
        if isinstance(part, ToolCall):
            return self._call(index, part)
        logprobs = self._logprobs(stream, tokens)
        field = _FIELDS.get(type(part))
        if field is None or (field == "reasoning_content" and not part.text):  # type: ignore[union-attr]
            return self._chunk(index, {}, logprobs) if logprobs else b""
        text: str = part.text  # type: ignore[union-attr]
        return self._chunk(index, {field: text}, logprobs) if logprobs else self._template(index, field).fill(text)

    def _template(self, index: int, field: str) -> Template:
        template = self._templates.get((index, field))
        if template is None:
            template = self._templates[index, field] = Template(self._body(index, {field: HOLE}))
        return template

    def _call(self, index: int, call: ToolCall) -> bytes:
        """A header that announces the call once, then its string (B5)."""
        stream = self._streams[index]
        kind, body = ("custom", "input") if call.custom else ("function", "arguments")
        place = {"index": stream.calls}
        stream.calls += 1
        header = {**place, "id": call.call_id, "type": kind, kind: {"name": call.name, body: ""}, **call_extras(call)}
        out = self._chunk(index, {"tool_calls": [header]})
        if call.arguments:
            out += self._chunk(index, {"tool_calls": [{**place, kind: {body: call.arguments}}]})
        return out

    def _end(self, choice: Choice) -> bytes:
        stream, out = self._stream(choice.index)
        for part in stream.progress.rest(choice.parts):
            trace = choice.tokens if isinstance(part, Text) else None
            out += self._piece(choice.index, part, _after(trace, stream.tokens))
        last: dict[str, Any] = message_extras(choice)
        if content_is_empty(choice.parts):
            last["content"] = ""
        logprobs = self._logprobs(stream, _after(choice.tokens, stream.tokens))
        if last or logprobs:
            out += self._chunk(choice.index, last, logprobs)
        return out + self._chunk(choice.index, {}, finish=write_finish(choice, self._request))

    def _logprobs(self, stream: _Stream, trace: TokenTrace | None) -> dict[str, Any] | None:
        if trace is None or not wants_logprobs(self._request):
            return None
        written = write_logprobs(trace)
        stream.tokens += 0 if written is None else len(written["content"])
        return written

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> bytes:
        return frame(codec.encode(self._body(index, delta, logprobs, finish)))

    def _body(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head, "choices": [choice], **({"usage": None} if self._usage else {})}


def _after(trace: TokenTrace | None, count: int) -> TokenTrace | None:
    """The tokens from `count` on; None when there are none."""
    if trace is None or trace.texts is None or count >= len(trace.texts):
        return None
    return TokenTrace(
        logprobs=None if trace.logprobs is None else trace.logprobs[count:],
        texts=trace.texts[count:],
        top=None if trace.top is None else trace.top[count:],
    )


def stream_writer(request: ModelRequest, head: Head) -> ChatWriter:
    return ChatWriter(request, head)
