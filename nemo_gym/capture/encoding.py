"""A record as a row: what it shares with its parent's record is not written again.

Two things grow with every turn, the list of messages and the prompt's ids. Both are stored as how much of the
parent's they begin with, and what is new; the parent's record is then in the same shard. A body's own lists
(`messages`, `input`, `tools`) are kept alike, element by element.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter, is_
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..exchange.parts import Element, Message, Part, Text, element_of
from ..exchange.reply import Choice, ModelReply
from ..exchange.request import ModelRequest, Sampling
from ..exchange.tokens import shared_prefix
from ..exchange.tools import Tool
from .contents import Binary, Contents, encode
from .record import CallRecord, bare_parts
from .redact import Redactor
from .schema import VERSION, Row, encodable, row_digest

EMPTY = ModelRequest(())
_DEFAULT = Sampling()
SCALARS = ("tool_choice", "parallel_tool_calls", "sampling", "output_schema", "effort", "model", "previous")
PLAIN = (
    *("call_id", "run_id", "rollout_id", "attempt", "session_id", "parent_call_id", "relation", "server", "dialect"),
    *("backend_dialect", "streamed", "trainable", "status", "history", "logprobs_mode"),
)
_scalar_values = attrgetter(*SCALARS)
_plain = attrgetter(*PLAIN)
TIMES = ("received_at", "sent_at", "first_token_at", "replied_at")
_times = attrgetter("received", "sent", "first_token", "replied")


ITSELF = "="
"""The digest of the content that says so."""


class StoredMessage(Struct, omit_defaults=True):
    role: str
    parts: tuple[Part, ...] = ()
    dialect: str = ""
    origin: str = ""
    """Digest of the body's element that the message was read from."""
    origins: tuple[str, ...] = ()
    """The same for each part."""
    said: str = ""
    """The field of that element that is the message's one text; there are no parts then."""


class StoredTool(Struct, omit_defaults=True):
    tool: Tool
    dialect: str = ""
    origin: str = ""


class _Origins:
    """Which elements of a request's body its values were read from, and the messages already put away."""

    def __init__(self) -> None:
        self.dialect = ""
        self.lists: list[tuple[list[Any], list[bytes]]] = []
        """Of the body, and the digests of their elements."""
        self.messages: dict[int, bytes] = {}

    @cached_property
    def elements(self) -> dict[int, str]:
        return {id(one): key.hex() for values, keys in self.lists for one, key in zip(values, keys, strict=True)}

    def message(self, message: Message) -> StoredMessage:
        return _stored(message, self.dialect, self.elements)

    def tool(self, tool: Tool) -> StoredTool:
        origin = _origin(tool, self.elements)
        return StoredTool(replace(tool, origin=None), self.dialect if origin else "", origin)


def _stored(message: Message, dialect: str, elements: Mapping[int, str]) -> StoredMessage:
    stored = StoredMessage(message.role, bare_parts(message.parts))
    if elements:
        stored.origin = _origin(message, elements)
        origins = tuple([_origin(part, elements) for part in message.parts])
        stored.origins = origins if any(origins) else ()
        stored.dialect = dialect if stored.origin or stored.origins else ""
    return stored


def _origin(value: Any, elements: Mapping[int, str]) -> str:
    origin = getattr(value, "origin", None)
    return "" if origin is None else elements.get(id(origin.body), "")


_KEPT = 1024
"""Bytes that what is kept of a call takes beside its lists and ids."""


class Kept(Struct):
    """What a child's record may begin with."""

    prompt: array | None
    completions: list[array | None]
    lists: dict[str, list[bytes]]

    @property
    def size(self) -> int:
        size = _KEPT + 8 * sum(map(len, self.lists.values()))
        for ids in (self.prompt, *self.completions):
            if ids is not None:
                size += 4 * len(ids)
        return size

    def sequence(self, choice: int | None) -> array:
        """The prompt, with one choice's completion."""
        prompt = self.prompt if self.prompt is not None else array("i")
        completion = None if choice is None else self.completions[choice]
        return prompt if completion is None else prompt + completion


class Encoder:
    """Records into the rows of one shard, in order. Memory for parents is bounded; a forgotten one shares nothing."""

    def __init__(self, redactor: Redactor, binary: Binary = "keep", max_bytes: int = 256 << 20) -> None:
        self._redactor = redactor
        self._contents = Contents(redactor, binary)
        self._declared: tuple[tuple[Tool, ...], object, str] = ((), None, "")
        self._lines: dict[tuple[str, str], bytes] = {}
        """What stands of a message that is its element's text."""
        self._sampled: tuple[Sampling, str] = (_DEFAULT, "{}")
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0
        self._max_bytes = max_bytes

    def row(self, record: CallRecord) -> Row:
        """The row of a record, its digest included. Raises without having changed anything."""
        try:
            row, kept = self._row(record)
            try:
                row["digest"] = row_digest(row)
            except UnicodeEncodeError:
                row = encodable(row)
                row["digest"] = row_digest(row)
        except BaseException:
            self._contents.drop()
            raise
        row["new_contents"] = self._contents.take() or None
        if record.rollout_id is not None or record.session_id is not None:  # else no call can continue it
            self._keep(record.call_id, kept)
        return row

    def forget(self, call_id: str) -> None:
        """No call will continue this one."""
        kept = self._kept.pop(call_id, None)
        if kept is not None:
            self._bytes -= kept.size

    def _keep(self, call_id: str, kept: Kept) -> None:
        self._kept[call_id] = kept
        self._bytes += kept.size
        while self._bytes > self._max_bytes and self._kept:
            self.forget(next(iter(self._kept)))

    def _row(self, record: CallRecord) -> tuple[Row, Kept]:
        parent = self._kept.get(record.parent_call_id) if record.parent_call_id is not None else None
        if parent is not None and record.parent_call_id is not None:
            self._kept.move_to_end(record.parent_call_id)
        kept = Kept(None, [], {})
        row: Row = dict(zip(PLAIN, _plain(record)))  # noqa: B905  # both are of one length
        row["kind"], row["schema_version"] = "call", VERSION
        row["attempts"] = [
            {"replica": one.replica, "started": float(one.started), "ended": float(one.ended), "error": one.error}
            for one in record.attempts
        ]
        row["replica"] = record.attempts[-1].replica if record.attempts else None
        row.update(zip(TIMES, _times(record.times)))  # noqa: B905  # both are of one length
        if record.error is not None:
            row["error_status"], row["error_kind"] = record.error.status, record.error.kind
            row["error_message"] = self._redactor.text(record.error.message)
        if record.prefix_break is not None:
            row["prefix_break"] = {"position": record.prefix_break[0], "cause": record.prefix_break[1]}
        row["raw"] = None if record.raw is None else self._redactor.raw(record.raw)
        row["prompt_logprobs"] = _typed("f", record.prompt_logprobs)
        self._requests(record, row, kept, parent)
        if record.reply is not None:
            self._reply(record.reply, row, kept, parent)
        return row, kept

    # ---- requests

    def _requests(self, record: CallRecord, row: Row, kept: Kept, parent: Kept | None) -> None:
        received, sent = record.received, record.sent
        origins = _Origins()
        if received is not None:
            self._received(received, row, kept, parent, origins)
            row["model_asked"] = received.model
        if sent is not None:
            row["model_sent"] = sent.model
            row["sent_fields"] = self._sent(sent, received, kept, parent, origins)
        in_force = sent if sent is not None else received
        if in_force is not None:
            row["sampling"] = self._in_force(in_force.sampling)

    def _in_force(self, sampling: Sampling) -> str:
        """As JSON. Most calls of a shard ask for the same."""
        if self._sampled[0] is not sampling and self._sampled[0] != sampling:
            self._sampled = sampling, _sampling(sampling)
        return self._sampled[1]

    def _received(self, request: ModelRequest, row: Row, kept: Kept, parent: Kept | None, origins: _Origins) -> None:
        fields = _scalars(request, EMPTY)
        lists: dict[str, list[bytes]] = {}
        if request.origin is not None:
            origins.dialect = fields["dialect"] = request.origin.dialect
            body = fields["body"] = dict(request.origin.body)
            for name, value in body.items():
                if type(value) is list and any(isinstance(one, dict) for one in value):
                    lists[name] = self._elements(value)
                    origins.lists.append((value, lists[name]))
                    body[name] = None  # keeps its place among the fields
        messages = self._messages(request, origins)
        shared, new = _shared_and_new("messages", messages, kept, parent)
        row["request_prefix_len"], row["request_contents"] = shared, new
        if request.origin is not None:
            fields["lists"] = {name: self._list(name, one, kept, parent) for name, one in lists.items()}
        if request.tools:
            fields["tools"] = self._tools(request.tools, origins)
        row["request_fields"] = self._contents.common_outline(fields)

    def _list(self, name: str, digests: list[bytes], kept: Kept, parent: Kept | None) -> Any:
        """A body's list for a row; None where it is that of the messages."""
        if digests == kept.lists["messages"]:
            kept.lists[f"body.{name}"] = kept.lists["messages"]
            return None
        return _in_json(_shared_and_new(f"body.{name}", digests, kept, parent))

    def _sent(
        self, sent: ModelRequest, received: ModelRequest | None, kept: Kept, parent: Kept | None, origins: _Origins
    ) -> bytes:
        """What differs from what was received. A changed request's own origin says the old things; it is not kept."""
        base = received if received is not None else EMPTY
        same = sent is received or sent == received
        fields = {} if same else _scalars(sent, base)
        if not same and sent.messages != base.messages:
            fields["messages"] = _in_json(_shared_and_new("sent", self._messages(sent, origins), kept, parent))
        elif "messages" in kept.lists:
            kept.lists["sent"] = kept.lists["messages"]
        if not same and sent.tools != base.tools:
            fields["tools"] = self._tools(sent.tools, origins)
        return self._contents.outline(fields) if fields else b"{}"

    def _elements(self, values: list[Any]) -> list[bytes]:
        """The digests of a body's elements. Most were put away with an earlier call."""
        mark = self._contents.mark
        return [
            value.stored[1]
            if type(value) is Element and value.stored is not None and value.stored[0] is mark
            else self._element(value)
            for value in values
        ]

    def _element(self, value: Any) -> bytes:
        """Put away together with the message read from it, if it is a shared one."""
        if type(value) is not Element:
            return self._contents.put(value, "body")
        message = value.read[1] if value.read is not None else None
        if type(message) is Message and element_of(message) is value:
            key = self._pair(value, message)
        else:
            key, message = self._contents.put(value, "body"), None
        value.stored = self._contents.mark, key, None if message is None else key
        return key

    def _pair(self, element: Element, message: Message) -> bytes:
        assert message.origin is not None
        dialect, parts = message.origin.dialect, message.parts
        if self._contents.alike and len(parts) == 1 and type(parts[0]) is Text:
            text = parts[0]
            if text.text == element.get("content") and not text.id and _origin(text, {id(element): ITSELF}) == "":
                line = self._lines.get((message.role, dialect))
                if line is None:
                    line = encode(StoredMessage(message.role, dialect=dialect, said="content"))
                    self._lines[message.role, dialect] = line
                return self._contents.put_said(element, "content", line)
        stored = _stored(message, dialect, {id(element): ITSELF})
        return self._contents.put_pair(element, encode(stored))

    def _messages(self, request: ModelRequest, origins: _Origins) -> list[bytes]:
        return [self._message(message, origins) for message in request.messages]

    def _message(self, message: Message, origins: _Origins) -> bytes:
        element = element_of(message)
        if element is not None and (element.stored is None or element.stored[0] is not self._contents.mark):
            self._element(element)
        if element is not None and element.stored is not None and element.stored[2] is not None:
            return element.stored[2]
        known = origins.messages.get(id(message))
        if known is None:
            known = origins.messages[id(message)] = self._contents.put(origins.message(message), "message")
        return known

    def _tools(self, tools: tuple[Tool, ...], origins: _Origins) -> str:
        """Most calls of a shard declare the same."""
        known, mark, key = self._declared
        if mark is not self._contents.mark or len(known) != len(tools) or not all(map(is_, known, tools)):
            key = self._contents.put([origins.tool(tool) for tool in tools], "tools").hex()
            self._declared = tools, self._contents.mark, key
        return key

    # ---- the reply

    def _reply(self, reply: ModelReply, row: Row, kept: Kept, parent: Kept | None) -> None:
        row["reply_id"], row["model_reported"], row["reply_created"] = reply.id, reply.model, reply.created
        usage = reply.usage
        row["prompt_tokens"], row["completion_tokens"] = usage.prompt, usage.completion
        row["reasoning_tokens"], row["cached_tokens"] = usage.reasoning, usage.cached
        raw = None if reply.origin is None else reply.origin.body.get("usage")
        row["usage_raw"] = None if raw is None else self._contents.outline(raw)
        row["choices"] = [self._choice(choice) for choice in reply.choices]
        kept.completions = [one["token_ids"] for one in row["choices"]]
        if reply.choices and reply.choices[0].tokens is not None and reply.choices[0].tokens.versions:
            row["policy_version"] = reply.choices[0].tokens.versions[-1][1]
        prompt = kept.prompt = _typed("i", reply.prompt_ids)
        if prompt is not None:
            shared, choice = _continued(prompt, parent)
            row["prompt_prefix_len"], row["prompt_prefix_choice"] = shared, choice
            row["new_prompt_ids"] = prompt[shared:]

    def _choice(self, choice: Choice) -> Row:
        tokens = choice.tokens
        row: Row = {"index": choice.index, "finish": choice.finish, "stop_sequence": choice.stop_sequence}
        row["parts"] = self._contents.parts(choice.parts)
        row["token_ids"] = None if tokens is None else _typed("i", tokens.ids)
        row["logprobs"] = None if tokens is None else _typed("f", tokens.logprobs)
        row["versions"] = None if tokens is None else array("i", [number for run in tokens.versions for number in run])
        row["texts"] = None if tokens is None or tokens.texts is None else list(tokens.texts)
        row["top_logprobs"] = None
        if tokens is not None and tokens.top is not None:
            row["top_logprobs"] = [
                [{"token": token, "logprob": float(value)} for token, value in top.items()] for top in tokens.top
            ]
        return row


def _sampling(sampling: Sampling) -> str:
    fields = msgspec.structs.asdict(sampling)
    return encode({name: value for name, value in fields.items() if value is not None and value != ()}).decode()


_SCALARS_OF_EMPTY = _scalar_values(EMPTY)


def _scalars(request: ModelRequest, base: ModelRequest) -> dict[str, Any]:
    """The fields in which a request differs from another, but messages, tools and origin."""
    values, others = _scalar_values(request), _SCALARS_OF_EMPTY if base is EMPTY else _scalar_values(base)
    fields = {name: value for name, value, other in zip(SCALARS, values, others, strict=True) if value != other}
    if isinstance(fields.get("tool_choice"), Tool):
        fields["tool_choice"] = replace(fields["tool_choice"], origin=None)
    return fields


def _shared_and_new(name: str, digests: list[bytes], kept: Kept, parent: Kept | None) -> tuple[int, list[bytes]]:
    kept.lists[name] = digests
    before = parent.lists.get(name, []) if parent is not None else []
    shared = len(before)
    if digests[:shared] != before:
        shared = next(n for n, one in enumerate(before) if n == len(digests) or digests[n] != one)
    return shared, digests[shared:]


def _in_json(shared_and_new: tuple[int, list[bytes]]) -> tuple[int, list[str]]:
    shared, new = shared_and_new
    return shared, [key.hex() for key in new]


def _continued(prompt: array, parent: Kept | None) -> tuple[int, int | None]:
    """How many ids a prompt shares with the parent's sequence, and which of its choices that goes through."""
    if parent is None or parent.prompt is None:
        return 0, None
    shared = shared_prefix(parent.prompt, prompt)
    if shared < len(parent.prompt):
        return shared, None
    best, choice = 0, None
    for number, completion in enumerate(parent.completions):
        more = 0 if completion is None else shared_prefix(completion, prompt[shared:])
        if more > best:
            best, choice = more, number
    return shared + best, choice


def _typed(typecode: str, values: array | None) -> array | None:
    """The array itself, unless a backend made it of another type: its memory goes into the file as it is."""
    return values if values is None or values.typecode == typecode else array(typecode, values)
