"""A reply as Messages events (M2).

A block opens when there is something to say and closes when the next begins; a thinking block is signed as it closes,
since only then its text is whole. Tool calls, and what follows them, come with `close`: an agent runs a tool at
`content_block_stop`, and nothing may act on what is not recorded (A8).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ...exchange.errors import ModelError
from ...exchange.increments import Increment, cuts
from ...exchange.parts import Other, Part, Reasoning, Text, ToolCall
from ...exchange.reply import Choice, ModelReply
from ...exchange.request import ModelRequest
from .. import codec
from ..dialect import Head, Progress
from ..signature import is_redacted
from ..sse import HOLE, Template, frame
from .blocks import read_input
from .errors import write_error
from .reply import (
    envelope,
    says,
    shown,
    shows_thinking,
    write_account,
    write_block,
    write_stop,
    write_usage,
)

_PING = frame(b'{"type":"ping"}', "ping")
_STOP = frame(b'{"type":"message_stop"}', "message_stop")
_INPUTS = frozenset({"tool_use", "server_tool_use"})


class MessagesWriter:
    def __init__(self, request: ModelRequest, head: Head) -> None:
        self._thinking = shows_thinking(request)
        self._head = head
        self._progress = Progress()
        self._index = 0
        """Of the block that is open or comes next."""
        self._open = False
        self._deltas: Template | None = None
        """Those of the block that is open."""
        self._cited: list[Any] = []
        """What its text cites."""

    def open(self) -> bytes:
        head = self._head
        message = {
            "id": head.id,
            "type": "message",
            "role": "assistant",
            "model": head.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": write_account(head.usage, head.origin) | {"output_tokens": 0},
            **envelope(head.origin),
        }
        return _event("message_start", message=message) + _PING

    def keep_alive(self) -> bytes:
        return _PING

    def feed(self, increment: Increment) -> bytes:
        if increment.choice != 0 or not self._progress.flows(increment.part):
            return b""
        return self._piece(increment.part)

    def feed_reply(self, reply: ModelReply) -> Iterator[bytes]:
        """`feed` of all its increments at once (see `fed`)."""
        for choice in reply.choices:
            for part in choice.parts if choice.index == 0 else ():
                if not self._progress.flows(part):
                    return
                text = getattr(part, "text", "")
                yield self._piece(part, cuts(text, choice) if text else None)

    def close(self, reply: ModelReply) -> bytes:
        choice = reply.choices[0] if reply.choices else Choice(0, (), "stop")
        out = b"".join([self._piece(part) for part in self._progress.rest(shown(choice))])
        out += self._end(self._progress.part())
        usage = write_usage(reply.usage, reply.origin)
        begun, late = envelope(self._head.origin), envelope(reply.origin)
        delta = write_stop(choice) | {"container": late.pop("container")}
        late = {key: value for key, value in late.items() if key not in begun}
        return out + _event("message_delta", delta=delta, usage=usage, **late) + _STOP

    def fail(self, error: ModelError) -> bytes:
        return frame(codec.encode(write_error(error)), "error")

    # ---- pieces

    def _piece(self, piece: Part, texts: list[str] | None = None) -> bytes:
        """`texts` are the piece's, cut smaller."""
        out = b""
        if self._progress.add(piece):
            out = self._end(self._progress.before)
        if isinstance(piece, Text) and piece.origin is not None:
            self._cited = write_block(piece)["citations"] or self._cited
        if self._open:
            return out + self._delta(piece, texts)
        part = self._progress.part()
        if part is None or not says(part):
            return out
        if isinstance(part, ToolCall | Other):
            return out + self._whole(part)
        return out + self._begin(part) + self._delta(part, texts)

    def _begin(self, part: Part) -> bytes:
        self._open = True
        if isinstance(part, Reasoning) and is_redacted(part):
            return _event("content_block_start", index=self._index, content_block=write_block(part))
        begun, self._deltas = _texts("thinking" if isinstance(part, Reasoning) else "text", self._index)
        return begun

    def _delta(self, piece: Part, texts: list[str] | None) -> bytes:
        text: str = getattr(piece, "text", "")
        if not text or self._deltas is None or (isinstance(piece, Reasoning) and not self._thinking):
            return b""
        return self._deltas.each(texts) if texts else self._deltas.fill(text)

    def _whole(self, part: Part) -> bytes:
        """A call, which always comes whole, or a block that only this dialect knows."""
        block = write_block(part)
        out = b""
        if block["type"] in _INPUTS:
            text = read_input(part)[1] if isinstance(part, ToolCall) else codec.encode(block["input"]).decode()
            out = self._change({"type": "input_json_delta", "partial_json": text})
            block["input"] = {}
        started = _event("content_block_start", index=self._index, content_block=block)
        return started + out + self._stop()

    def _end(self, part: Part | None) -> bytes:
        """Closes the open block, which is this part's, now that it is whole."""
        if not self._open:
            return b""
        out = b""
        if isinstance(part, Reasoning) and not is_redacted(part):
            out = self._change({"type": "signature_delta", "signature": write_block(part, self._thinking)["signature"]})
        for citation in self._cited:
            out += self._change({"type": "citations_delta", "citation": citation})
        self._open, self._cited, self._deltas = False, [], None
        return out + self._stop()

    def _change(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> bytes:
        self._index += 1
        return _block_stop(self._index - 1)


@lru_cache(512)
def _texts(field: str, index: int) -> tuple[bytes, Template]:
    """How a block of this text begins, and its deltas: they differ in nothing but their place."""
    block = {"type": field, field: ""} | ({"signature": ""} if field == "thinking" else {"citations": None})
    delta = {"type": f"{field}_delta", field: HOLE}
    event = {"type": "content_block_delta", "index": index, "delta": delta}
    begun = _event("content_block_start", index=index, content_block=block)
    return begun, Template(event, "content_block_delta")


@lru_cache(512)
def _block_stop(index: int) -> bytes:
    return _event("content_block_stop", index=index)


def _event(kind: str, **fields: Any) -> bytes:
    return frame(codec.encode({"type": kind, **fields}), kind)


def stream_writer(request: ModelRequest, head: Head) -> MessagesWriter:
    return MessagesWriter(request, head)
