"""A reply as Responses events (R20-R30): one grammar, one sequence number.

Items open when there is something to say and close when the next begins. Tool calls, and what follows them, come with
`close`: an agent runs a tool at `output_item.done`, and nothing may act on what is not recorded (A8).
"""

from __future__ import annotations

from typing import Any

from ...exchange.errors import ModelError
from ...exchange.increments import Increment
from ...exchange.parts import Other, Part, Reasoning, Refusal, Text, ToolCall
from ...exchange.reply import ModelReply
from ...exchange.request import ModelRequest
from .. import codec
from ..dialect import Head, Progress
from ..sse import HOLE, Template, frame
from .errors import failure
from .ids import item_id
from .reply import Group, close_last, continues, frame_of, says, shown, write_content, write_item, write_reply


class ResponsesWriter:
    def __init__(self, request: ModelRequest, head: Head) -> None:
        self._request = request
        self._head = head
        self._response = frame_of(head.id, head.model, head.created, request, "in_progress")
        self._progress = Progress()
        self._items: list[dict[str, Any]] = []
        """Closed items, as they went out."""
        self._group: Group | None = None
        self._open = -1
        """The place of the part that the open item ends with."""
        self._template: Template | None = None
        """The deltas of the part that is open."""
        self._sequence = 0

    def open(self) -> bytes:
        return self._lifecycle("response.created", self._response) + self.keep_alive()

    def keep_alive(self) -> bytes:
        return self._lifecycle("response.in_progress", self._response)

    def feed(self, increment: Increment) -> bytes:
        if increment.choice != 0 or not self._progress.flows(increment.part):
            return b""
        return self._piece(increment.part)

    def close(self, reply: ModelReply) -> bytes:
        out = b""
        if reply.choices:
            for part in self._progress.rest(shown(reply.choices[0])):
                out += self._piece(part)
        cut = bool(reply.choices) and reply.choices[0].finish in ("length", "content_filter", "cancelled")
        out += self._end_item("incomplete" if cut else "completed")
        response = write_reply(reply, self._request)
        # What went out stands, also where a relayed stream and its reply should differ.
        response["output"] = self._items
        if reply.choices:
            close_last(self._items, reply.choices[0])
        kind = "response.completed" if response["status"] == "completed" else "response.incomplete"
        return out + self._lifecycle(kind, response)

    def fail(self, error: ModelError) -> bytes:
        """What is open is finished, then the cause and the end (R28)."""
        out = b"" if self._sequence else self.open()
        out += self._end_item("incomplete")
        out += self._event("error", code=error.code or error.kind, message=error.message, param=error.param)
        response = self._response | {"status": "failed", "error": failure(error), "output": self._items}
        return out + self._lifecycle("response.failed", response)

    # ---- pieces

    def _piece(self, piece: Part) -> bytes:
        if self._progress.add(piece) and self._group is not None and self._open == self._progress.count - 2:
            assert self._progress.before is not None
            self._group.parts[-1] = self._progress.before
        place = self._progress.count - 1
        if self._open == place:
            return self._delta(piece)
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
            self._group = Group(item_id(part, self._head.id, place), [part])
            out += self._added(self._opened(part))
        self._open, self._template = place, None
        return out + self._delta(part)

    def _whole(self, part: Part) -> bytes:
        """A call, which always comes whole, or an item that only this dialect knows."""
        group = self._group = Group(item_id(part, self._head.id, self._progress.count - 1), [part])
        out = self._added(self._opened(part))
        if isinstance(part, ToolCall):
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
        return out + self._done(write_item(group))

    def _opened(self, part: Part) -> dict[str, Any]:
        """An item as it is announced: empty."""
        assert self._group is not None
        item = write_item(self._group, "in_progress")
        for field, empty in (("content", []), ("summary", []), ("arguments", ""), ("input", "")):
            if field in item and not isinstance(part, Other):
                item[field] = empty
        return item

    def _begin_part(self, part: Part) -> bytes:
        if isinstance(part, Reasoning):
            empty = {"type": "summary_text", "text": ""}
            return self._event("response.reasoning_summary_part.added", **self._place(), summary_index=0, part=empty)
        blank = write_content(Refusal("") if isinstance(part, Refusal) else Text(""))
        return self._event("response.content_part.added", **self._place(), **self._content(), part=blank)

    def _delta(self, piece: Part) -> bytes:
        text = getattr(piece, "text", "")
        if not text:
            return b""
        out = b""
        if self._template is None:
            out, self._template = self._begin_part(piece), self._deltas(piece)
        self._sequence += 1
        return out + self._template.fill(self._sequence - 1, text)

    def _deltas(self, piece: Part) -> Template:
        fields: dict[str, Any] = {"sequence_number": HOLE, **self._place()}
        if isinstance(piece, Reasoning):
            kind = "response.reasoning_summary_text.delta"
            fields |= {"summary_index": 0, "delta": HOLE}
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
            place = {**self._place(), "summary_index": 0}
            whole = {"type": "summary_text", "text": part.text}
            return self._event("response.reasoning_summary_text.done", **place, text=part.text) + self._event(
                "response.reasoning_summary_part.done", **place, part=whole
            )
        place = {**self._place(), **self._content()}
        if isinstance(part, Refusal):
            out = self._event("response.refusal.done", **place, refusal=part.text)
        else:
            assert isinstance(part, Text)
            out = self._event("response.output_text.done", **place, text=part.text, logprobs=[])
        return out + self._event("response.content_part.done", **place, part=write_content(part))

    def _end_item(self, status: str = "completed") -> bytes:
        if self._group is None:
            return b""
        if self._open == self._progress.count - 1:
            whole = self._progress.part()
            assert whole is not None
            self._group.parts[-1] = whole
        return self._end_part(self._group) + self._done(write_item(self._group, status))

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

    def _lifecycle(self, kind: str, response: dict[str, Any]) -> bytes:
        return self._event(kind, response=response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = codec.encode({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return frame(data, kind)


def stream_writer(request: ModelRequest, head: Head) -> ResponsesWriter:
    return ResponsesWriter(request, head)
