"""A reply as Responses events (R20-R30): one grammar, one sequence number.

Items open when there is something to say and close when the next begins. Tool calls, and what follows them, come with
`close`: an agent runs a tool at `output_item.done`, and nothing may act on what is not recorded (A8).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ...exchange.errors import ModelError
from ...exchange.increments import Increment, cuts
from ...exchange.parts import Other, Part, Reasoning, Refusal, Text, ToolCall, merged
from ...exchange.reply import ModelReply
from ...exchange.request import ModelRequest
from .. import codec, failures
from ..dialect import Head, Progress
from ..sse import HOLE, Template, frame
from . import hosted
from .errors import failure
from .ids import item_id
from .logprobs import write_logprobs
from .reply import (
    Group,
    Shape,
    close_last,
    continues,
    end_of,
    frame_of,
    says,
    shown,
    write_content,
    write_item,
    write_thought,
)


class ResponsesWriter:
    def __init__(self, request: ModelRequest, head: Head, reasoning: str = "summary") -> None:
        self._head = head
        self._request = request
        self._logprobs: list[dict[str, Any]] = []
        """Of the first text, once they are known."""
        self._spoke = False
        """Whether that text has ended."""
        self._shape = Shape.of(request, reasoning)
        self._response = frame_of(head.id, head.model, head.created, request)
        self._begun = msgspec.Raw(codec.encode(self._response))
        self._progress = Progress()
        self._items: list[dict[str, Any]] = []
        """Closed items, as they went out."""
        self._group: Group | None = None
        self._open = -1
        """The place of the part that the open item ends with."""
        self._finished: list[Part] = []
        """The reply's parts, once they are known."""
        self._thoughts = "reasoning_text" if self._shape.content else "reasoning_summary_text"
        self._template: Template | None = None
        """The deltas of the part that is open."""
        self._sequence = 0

    def open(self) -> bytes:
        return self._lifecycle("response.created", self._begun) + self.keep_alive()

    def keep_alive(self) -> bytes:
        return self._lifecycle("response.in_progress", self._begun)

    def feed(self, increment: Increment) -> bytes:
        if increment.choice != 0 or not self._progress.flows(increment.part):
            return b""
        return self._piece(increment.part)

    def feed_reply(self, reply: ModelReply) -> Iterator[bytes]:
        """`feed` of all its increments at once (see `fed`)."""
        for choice in reply.choices:
            if choice.index == 0:
                self._logprobs = write_logprobs(choice, self._request)
            for part in choice.parts if choice.index == 0 else ():
                if not self._progress.flows(part):
                    return
                text = getattr(part, "text", "")
                yield self._piece(part, cuts(text, choice) if text else None)

    def close(self, reply: ModelReply) -> bytes:
        out = b""
        if reply.choices:
            self._logprobs = self._logprobs or write_logprobs(reply.choices[0], self._request)
            parts = shown(reply.choices[0])
            self._finished = list(merged(parts))
            for part in self._progress.rest(parts):
                out += self._piece(part)
        cut = bool(reply.choices) and reply.choices[0].finish in ("length", "content_filter", "cancelled")
        out += self._end_item("incomplete" if cut else "completed")
        # What went out stands, also where a relayed stream and its reply should differ.
        if reply.choices:
            close_last(self._items, reply.choices[0])
        response = end_of(self._response, reply, self._items)
        kind = "response.completed" if response["status"] == "completed" else "response.incomplete"
        return out + self._lifecycle(kind, response)

    def fail(self, error: ModelError) -> bytes:
        """What is open is finished, then the cause and the end (R28)."""
        out = b"" if self._sequence else self.open()
        out += self._end_item("incomplete")
        # Flat as the provider's SDK reads it, and in an object as the Open Responses specification has it.
        said = {"code": error.code or error.kind, "message": error.message, "param": error.param}
        out += self._event("error", **said, error={"type": failures.error_type(error), **said})
        response = self._response | {"status": "failed", "error": failure(error), "output": self._items}
        return out + self._lifecycle("response.failed", response)

    # ---- pieces

    def _piece(self, piece: Part, texts: list[str] | None = None) -> bytes:
        """`texts` are the piece's, cut smaller."""
        if self._progress.add(piece) and self._group is not None and self._open == self._progress.count - 2:
            assert self._progress.before is not None
            self._group.parts[-1] = self._progress.before
        place = self._progress.count - 1
        if self._open == place:
            return self._delta(piece, texts)
        part = self._progress.part()
        if part is None or not says(part):
            return b""
        if isinstance(part, ToolCall | Other):
            return self._end_item() + self._whole(part)
        out = b""
        if self._group is not None and continues(self._group, part):
            out += self._end_part(self._group)
            self._group.parts.append(part)
        else:
            out += self._end_item()
            self._group = Group(item_id(part, self._head.id, place, self._shape.tools), [part])
            out += self._added(self._opened(part))
        self._open, self._template = place, None
        return out + self._delta(part, texts)

    def _whole(self, part: Part) -> bytes:
        """A call, which always comes whole, or an item that only this dialect knows."""
        place, tools = self._progress.count - 1, self._shape.tools
        group = self._group = Group(item_id(part, self._head.id, place, tools), [part])
        out = self._added(self._opened(part))
        if isinstance(part, ToolCall) and (part.custom or part.namespace is not None or part.name not in tools):
            kind, field = (
                ("response.custom_tool_call_input", "input")
                if part.custom
                else ("response.function_call_arguments", "arguments")
            )
            out += self._event(f"{kind}.delta", **self._place(), delta=part.arguments) if part.arguments else b""
            done: dict[str, Any] = {field: part.arguments}
            if not part.custom:
                done["name"] = part.name
            out += self._event(f"{kind}.done", **self._place(), **done)
        return out + self._done(write_item(group, self._shape))

    def _opened(self, part: Part) -> dict[str, Any]:
        """An item as it is announced: empty."""
        assert self._group is not None
        item = write_item(self._group, self._shape, "in_progress")
        if isinstance(part, Reasoning):
            item.pop("encrypted_content", None)  # it comes with the last piece
        for field, empty in (("content", []), ("summary", []), ("arguments", ""), ("input", "")):
            if field in item and not isinstance(part, Other) and item["type"] not in hosted.CALLS:
                item[field] = empty
        return item

    def _begin_part(self, part: Part) -> bytes:
        if isinstance(part, Reasoning):
            kind, index = self._thought("added")
            return self._event(kind, **self._place(), **index, part=write_thought("", self._shape))
        blank = write_content(Refusal("") if isinstance(part, Refusal) else Text(""))
        return self._event("response.content_part.added", **self._place(), **self._content(), part=blank)

    def _thought(self, what: str) -> tuple[str, dict[str, Any]]:
        if self._shape.content:
            return f"response.content_part.{what}", {"content_index": 0}
        return f"response.reasoning_summary_part.{what}", {"summary_index": 0}

    def _delta(self, piece: Part, texts: list[str] | None) -> bytes:
        text = getattr(piece, "text", "")
        if not text:
            return b""
        out = b""
        if self._template is None:
            out, self._template = self._begin_part(piece), self._deltas(piece)
        texts = texts or [text]
        self._sequence += len(texts)
        return out + self._template.run(self._sequence - len(texts), texts)

    def _deltas(self, piece: Part) -> Template:
        fields: dict[str, Any] = {"sequence_number": HOLE, **self._place()}
        if isinstance(piece, Reasoning):
            kind = f"response.{self._thoughts}.delta"
            fields |= {**self._thought("")[1], "delta": HOLE}
        elif isinstance(piece, Refusal):
            kind = "response.refusal.delta"
            fields |= {**self._content(), "delta": HOLE}
        else:
            kind = "response.output_text.delta"
            fields |= {**self._content(), "delta": HOLE, "logprobs": []}
        return Template({"type": kind, **fields}, kind)

    def _end_part(self, group: Group) -> bytes:
        part = group.parts[-1]
        if isinstance(part, Reasoning):
            if not part.text:
                return b""
            kind, index = self._thought("done")
            place = {**self._place(), **index}
            out = self._event(f"response.{self._thoughts}.done", **place, text=part.text)
            return out + self._event(kind, **place, part=write_thought(part.text, self._shape))
        place = {**self._place(), **self._content()}
        if isinstance(part, Refusal):
            out = self._event("response.refusal.done", **place, refusal=part.text)
        else:
            assert isinstance(part, Text)
            said = [] if self._spoke else self._logprobs
            group.logprobs, self._spoke = group.logprobs or said, True
            out = self._event("response.output_text.done", **place, text=part.text, logprobs=said)
            return out + self._event(
                "response.content_part.done", **place, part={**write_content(part), "logprobs": said}
            )
        return out + self._event("response.content_part.done", **place, part=write_content(part))

    def _end_item(self, status: str = "completed") -> bytes:
        if self._group is None:
            return b""
        if self._open == self._progress.count - 1:
            whole = self._progress.part()
            assert whole is not None
            known = self._finished[self._open] if self._open < len(self._finished) else None
            # The same but for what only the finished reply says beside a text: its annotations.
            self._group.parts[-1] = known if isinstance(known, Text) and known == whole else whole
        return self._end_part(self._group) + self._done(write_item(self._group, self._shape, status))

    # ---- events

    def _place(self) -> dict[str, Any]:
        assert self._group is not None
        return {"item_id": self._group.id, "output_index": len(self._items)}

    def _content(self) -> dict[str, Any]:
        assert self._group is not None
        return {"content_index": len(self._group.parts) - 1}

    def _added(self, item: dict[str, Any]) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._items), item=item)

    def _done(self, item: dict[str, Any]) -> bytes:
        out = self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._group = None
        return out

    def _lifecycle(self, kind: str, response: Any) -> bytes:
        return self._event(kind, response=response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = codec.encode({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return frame(data, kind)


def stream_writer(request: ModelRequest, head: Head, reasoning: str = "summary") -> ResponsesWriter:
    """`reasoning` as in `write_reply`."""
    return ResponsesWriter(request, head, reasoning)
