"""A row as the record it was made of: contents, lists and prompt ids joined back through the parents' rows."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..exchange.call import Attempt
from ..exchange.parts import Message, Origin, Part, Text
from ..exchange.reply import Choice, ModelReply, TokenTrace, Usage
from ..exchange.request import ModelRequest
from ..exchange.tools import Tool
from .contents import decode, inline, unescaped
from .encoding import EMPTY, ITSELF, PLAIN, SCALARS, TIMES, Kept, StoredMessage, StoredTool
from .record import CallRecord, Failure, Times
from .schema import Row

T = TypeVar("T")
_HELD_BYTES = 8 << 20


class Decoder:
    """Rows of one shard into records.

    Args:
        row_of: the row of a call in this shard, None if it has none.
        content: the body of a content by its digest; raises KeyError.
    """

    def __init__(
        self, row_of: Callable[[str], Row | None], content: Callable[[bytes], bytes], max_calls: int = 256
    ) -> None:
        self._row_of = row_of
        self._content = content
        self._bodies: dict[bytes, bytes] = {}
        self._stored: dict[bytes, StoredMessage] = {}
        self._bytes = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._max_calls = max_calls

    def content(self, key: bytes) -> bytes:
        """A content's body. The last ones are held: each turn of a conversation has those of the turns before."""
        body = self._bodies.get(key)
        if body is None:
            body = self._content(key)
            self._bytes += len(body)
            if self._bytes > _HELD_BYTES:
                self._bodies, self._stored, self._bytes = {}, {}, len(body)
            self._bodies[key] = body
        return body

    def kept(self, row: Row) -> Kept:
        """A call's whole prompt, completions and lists. Raises KeyError when a parent is missing."""
        line: list[Row] = []
        before: Kept | None = None
        while True:
            line.append(row)
            parent_id = row.get("parent_call_id")
            if parent_id is None or not _shares(row) or len(line) > 1_000_000:
                break
            before = self._kept.get(parent_id)
            if before is not None:
                break
            parent = self._row_of(parent_id)
            if parent is None:
                raise KeyError(f"call {parent_id}, which call {row['call_id']} shares its beginning with")
            row = parent
        for one in reversed(line):
            before = self._joined(one, before)
            self._kept[one["call_id"]] = before
            if len(self._kept) > self._max_calls:
                self._kept.popitem(last=False)
        assert before is not None
        return before

    def _joined(self, row: Row, parent: Kept | None) -> Kept:
        lists: dict[str, list[bytes]] = {}
        for name, one in _lists(row).items():
            if one is None:
                lists[name] = lists["messages"]
                continue
            shared, new = one
            before = parent.lists.get(name, []) if parent is not None else []
            lists[name] = before[:shared] + [bytes.fromhex(one) if isinstance(one, str) else one for one in new]
        if "sent" not in lists and row.get("sent_fields") is not None and "messages" in lists:
            lists["sent"] = lists["messages"]
        prompt: array | None = row.get("new_prompt_ids")
        shared = row.get("prompt_prefix_len") or 0
        if prompt is not None and shared:
            before_ids = parent.sequence(row.get("prompt_prefix_choice")) if parent is not None else array("i")
            if len(before_ids) < shared:
                raise KeyError(f"{shared} prompt ids of the parent of call {row['call_id']}")
            prompt = before_ids[:shared] + prompt
        return Kept(prompt, [choice["token_ids"] for choice in row.get("choices") or ()], lists)

    def record(self, row: Row) -> CallRecord:
        kept = self.kept(row)
        received, elements = self._received(row, kept)
        error = None
        if "error_kind" in row:
            error = Failure(row["error_status"], row["error_kind"], row["error_message"])
        broken = row.get("prefix_break")
        times = [row.get(name) for name in TIMES]
        plain: dict[str, Any] = {name: row.get(name) for name in PLAIN}
        return CallRecord(
            **plain,
            times=Times(*times),  # type: ignore[arg-type]
            attempts=tuple(Attempt(**one) for one in row["attempts"]),
            received=received,
            sent=self._sent(row, received, kept, elements),
            reply=self._reply(row, kept),
            error=error,
            prefix_break=None if broken is None else (broken["position"], broken["cause"]),
            prompt_logprobs=row.get("prompt_logprobs"),
            raw=row.get("raw"),
        )

    def value(self, digest: bytes) -> Any:
        """A content as a JSON value; of an element and its message the element."""
        return inline(self.content(digest).partition(b"\n")[0], self.content)

    def message(self, digest: bytes) -> StoredMessage:
        """A content as a message; held as its body is, and not to be changed."""
        stored = self._stored.get(digest)
        if stored is None:
            stored = self._read(digest)
            self._stored[digest] = stored
        return stored

    def _read(self, digest: bytes) -> StoredMessage:
        element, _, line = self.content(digest).partition(b"\n")
        stored = msgspec.convert(inline(line or element, self.content), StoredMessage)
        if line:
            own = digest.hex()
            stored.origin = own if stored.origin == ITSELF or stored.said else ""
            stored.origins = tuple([own if one == ITSELF else one for one in stored.origins])
        if stored.said:
            stored.parts, stored.said = (Text(inline(element, self.content)[stored.said]),), ""
        return stored

    def body(self, row: Row, kept: Kept) -> dict[str, Any] | None:
        """The request's body as received, but for what was redacted."""
        fields = inline(row["request_fields"], self.content)
        if "body" not in fields:
            return None
        body: dict[str, Any] = fields["body"]
        for name in fields["lists"]:
            body[name] = [self.value(digest) for digest in kept.lists[f"body.{name}"]]
        return body

    def _received(self, row: Row, kept: Kept) -> tuple[ModelRequest | None, dict[str, Any]]:
        """The request, and the elements of its body by digest."""
        elements: dict[str, Any] = {}
        if "request_fields" not in row:
            return None, elements
        fields = inline(row["request_fields"], self.content)
        body = self.body(row, kept)
        for name in fields.get("lists", ()):
            digests = kept.lists[f"body.{name}"]
            elements.update((key.hex(), one) for key, one in zip(digests, body[name], strict=True))  # type: ignore[index]
        request = self._changed(EMPTY, fields, elements)
        origin = None if body is None else Origin(fields["dialect"], body)
        return replace(request, messages=self._messages(kept.lists["messages"], elements), origin=origin), elements

    def _sent(
        self, row: Row, received: ModelRequest | None, kept: Kept, elements: Mapping[str, Any]
    ) -> ModelRequest | None:
        if "sent_fields" not in row:
            return None
        fields = inline(row["sent_fields"], self.content)
        if not fields and received is not None:
            return received
        request = self._changed(replace(received or EMPTY, origin=None), fields, elements)
        if "messages" in fields:
            request = replace(request, messages=self._messages(kept.lists["sent"], elements))
        return request

    def _changed(self, request: ModelRequest, fields: Mapping[str, Any], elements: Mapping[str, Any]) -> ModelRequest:
        changes = {name: fields[name] for name in SCALARS if name in fields}
        if changes:
            typed = msgspec.convert({"messages": [], **changes}, ModelRequest, str_keys=True)
            request = replace(request, **{name: getattr(typed, name) for name in changes})
        if "tools" in fields:
            stored = msgspec.convert(self.value(bytes.fromhex(fields["tools"])), list[StoredTool])
            request = replace(request, tools=tuple(_tool(one, elements) for one in stored))
        return request

    def _messages(self, digests: list[bytes], elements: Mapping[str, Any]) -> tuple[Message, ...]:
        return tuple(_message(self.message(one), elements) for one in digests)

    def _reply(self, row: Row, kept: Kept) -> ModelReply | None:
        if "reply_id" not in row:
            return None
        usage = Usage(
            row.get("prompt_tokens"),
            row.get("completion_tokens"),
            row.get("reasoning_tokens"),
            row.get("cached_tokens"),
        )
        choices = tuple(self.choice(choice) for choice in row["choices"])
        return ModelReply(row["reply_id"], row["model_reported"], row["reply_created"], choices, usage, kept.prompt)

    def choice(self, row: Row) -> Choice:
        parts = msgspec.convert(inline(row["parts"], self.content), tuple[Part, ...])
        tokens = None
        if row["versions"] is not None:
            runs, top, texts = row["versions"], row["top_logprobs"], row["texts"]
            tokens = TokenTrace(
                ids=row["token_ids"],
                logprobs=row["logprobs"],
                versions=tuple(zip(runs[::2], runs[1::2], strict=True)),
                texts=None if texts is None else tuple(texts),
                top=None if top is None else tuple({one["token"]: one["logprob"] for one in step} for step in top),
            )
        return Choice(row["index"], parts, row["finish"], tokens, row["stop_sequence"])


def _lists(row: Row) -> dict[str, tuple[int, list[Any]] | None]:
    """Every list of a row that is stored by difference: how much of the parent's, and what is new.

    None: that of the messages, which comes before it.
    """
    lists: dict[str, tuple[int, list[Any]] | None] = {}
    if "request_fields" in row:
        lists["messages"] = row["request_prefix_len"], row["request_contents"]
        for name, one in _listed(row["request_fields"]).lists.items():
            lists[f"body.{unescaped(name)}"] = one
    if row.get("sent_fields") not in (None, b"{}"):
        sent = _listed(row["sent_fields"]).messages
        if sent is not None:
            lists["sent"] = sent
    return lists


def declared(row: Row) -> list[bytes]:
    """The contents that hold the tools of a call's requests."""
    stored = [data for data in (row.get("request_fields"), row.get("sent_fields")) if data and b'"tools":' in data]
    return [bytes.fromhex(tools) for data in stored if (tools := _listed(data).tools) is not None]


class _Lists(Struct):
    lists: dict[str, tuple[int, list[str]] | None] = {}
    messages: tuple[int, list[str]] | None = None
    tools: str | None = None


def _listed(data: bytes) -> _Lists:
    try:
        return msgspec.json.decode(data, type=_Lists)
    except msgspec.DecodeError:
        return msgspec.convert(decode(data), _Lists)


def _shares(row: Row) -> bool:
    return bool(row.get("prompt_prefix_len")) or any(one is not None and one[0] for one in _lists(row).values())


def _message(stored: StoredMessage, elements: Mapping[str, Any]) -> Message:
    parts = stored.parts
    if stored.origins:
        pairs = zip(parts, stored.origins, strict=True)
        parts = tuple(_with_origin(part, stored.dialect, key, elements) for part, key in pairs)
    message = Message(stored.role, parts)  # type: ignore[arg-type]
    return _with_origin(message, stored.dialect, stored.origin, elements)


def _tool(stored: StoredTool, elements: Mapping[str, Any]) -> Tool:
    return _with_origin(stored.tool, stored.dialect, stored.origin, elements)


def _with_origin(value: T, dialect: str, key: str, elements: Mapping[str, Any]) -> T:
    return replace(value, origin=Origin(dialect, elements[key])) if key in elements else value  # type: ignore[type-var]
