"""Responses by their id (R11): what `previous_response_id` continues and `GET /v1/responses/{id}` gives.

The captures are the store, so a response is found on any worker and after a restart. This process's own latest ones
are also held in memory, bounded by their bytes; what is not there is looked up on the disk, off the loop. A response
that was made with `store: false` is recorded, and found by nobody.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from ..capture.columns import scalar, to_rows
from ..capture.reader import ShardReader
from ..capture.record import CallRecord
from ..capture.store import CaptureStore
from ..dialects import codec, responses
from ..dialects.responses.reply import Shape, groups, shown
from ..exchange.errors import InvalidRequest
from ..exchange.parts import Message, Other, Part
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest

NOT_FOUND = "previous_response_not_found"
_FIELD = "previous_response_id"
_OURS = re.compile(r"resp_([0-9a-f]{12})7[0-9a-f]{19}\Z")
_MADE = re.compile(r"[a-z]+_(.+)_\d+\Z")
"""An item's id has that of its response in it (R26)."""
_SKEW_S = 3600.0
"""So far may the clocks of two machines that share a folder be apart."""
_READERS = 2
"""Look-ups on the disk at a time: one may read the whole shard that another process writes."""
_OVERHEAD = 4096
"""Bytes that a response takes in memory, however short it is."""
_KINDS = ("kind", "reply_id", "dialect", "status")


class Stored(Struct, frozen=True):
    """A response: what was asked, with all that it continued, and what came of it."""

    request: ModelRequest
    reply: ModelReply

    @property
    def conversation(self) -> tuple[Message, ...]:
        """What a next turn continues; instructions are not handed on."""
        messages = self.request.messages[_led(self.request) :]
        if not self.reply.choices:
            return messages
        parts = shown(self.reply.choices[0])
        return (*messages, Message("assistant", parts)) if parts else messages


class StoredResponses:
    """Used on the event loop.

    Args:
        directory: where the captures of all runs lie; None when capture is off.
        max_bytes: of the requests and replies held in memory.
    """

    def __init__(self, directory: str | None, max_bytes: int = 16 << 20) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._held: OrderedDict[str, tuple[Stored, int]] = OrderedDict()
        self._bytes = 0
        self._readers = asyncio.Semaphore(_READERS)

    def add(self, request: ModelRequest, reply: ModelReply, size: int) -> None:
        """A response whose record is durable; `size` is of the body that it was asked with."""
        if self._directory is None or not _kept(request):
            return
        self._hold(Stored(request, _told(reply, request)), size)

    def _hold(self, stored: Stored, size: int) -> None:
        parts = (part for choice in stored.reply.choices for part in choice.parts)
        size += _OVERHEAD + sum(len(getattr(part, "text", "")) for part in parts)
        self._drop(stored.reply.id)
        self._held[stored.reply.id] = stored, size
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._held)))

    def _drop(self, response_id: str) -> None:
        _, size = self._held.pop(response_id, (None, 0))
        self._bytes -= size

    async def find(self, response_id: str) -> Stored | None:
        found = self._held.get(response_id)
        if found is not None:
            self._held.move_to_end(response_id)
            return found[0]
        if self._directory is None or not response_id:
            return None
        async with self._readers:
            looked_up = await asyncio.to_thread(_look_up, self._directory, response_id)
        if looked_up is not None and looked_up.request.origin is not None:
            self._hold(looked_up, len(codec.encode(looked_up.request.origin.body)))
        return looked_up

    async def completed(self, request: ModelRequest) -> ModelRequest:
        """The request with all that it only names: the conversation that it continues, before its own input, and
        items of earlier responses in their places. Raises InvalidRequest."""
        messages = request.messages
        if any(map(_refers, messages)):
            messages = tuple([await self._with_items(message) for message in messages])
        if request.previous is not None:
            earlier = await self._needed(request.previous, _FIELD, request.previous)
            lead = _led(request)
            messages = (*messages[:lead], *earlier.conversation, *messages[lead:])
        return request if messages is request.messages else replace(request, messages=messages)

    async def _needed(self, response_id: str, field: str, named: str) -> Stored:
        if self._directory is None:
            words = f"{field}: responses are not stored here (capture is off): send the whole conversation as input"
            raise InvalidRequest(words, param=field)
        found = await self.find(response_id)
        if found is None:
            raise _missing(field, named)
        return found

    async def _with_items(self, message: Message) -> Message:
        parts: list[Part] = []
        for part in message.parts:
            item_id = _referred(part)
            parts += [part] if item_id is None else await self._item(item_id)
        return replace(message, parts=tuple(parts))

    async def _item(self, item_id: str) -> list[Part]:
        made = _MADE.match(item_id)
        response = await self._needed(made[1] if made else "", "input", item_id)
        for choice in response.reply.choices:
            for group in groups(shown(choice), response.reply.id, Shape()):
                if group.id == item_id:
                    return group.parts
        raise _missing("input", item_id)


def _told(reply: ModelReply, request: ModelRequest) -> ModelReply:
    """What is found by an id: without the backend's body, and of tokens only the log-probs that were asked for."""
    told = request.sampling.logprobs is not None
    choices = [replace(one, tokens=one.tokens if told else None, origin=None) for one in reply.choices[:1]]
    return replace(reply, choices=tuple(choices), prompt_ids=None, origin=None)


def _missing(field: str, named: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: there is no {named!r}", param=field, code=NOT_FOUND, status=404)


def _referred(part: Part) -> str | None:
    """The id of the item that a part refers to; None when it is a part itself."""
    if not isinstance(part, Other) or part.body.get("type") != "item_reference":
        return None
    return str(part.body.get("id"))


def _refers(message: Message) -> bool:
    return message.role == "assistant" and any(_referred(part) is not None for part in message.parts)


def _kept(request: ModelRequest) -> bool:
    origin = request.origin
    return origin is not None and origin.dialect == responses.name and origin.body.get("store") is not False


def _led(request: ModelRequest) -> int:
    """How many messages the request's `instructions` are."""
    return 1 if request.origin is not None and request.origin.body.get("instructions") else 0


# ---- on the disk


def _look_up(directory: str, response_id: str) -> Stored | None:
    try:
        store = CaptureStore(directory)
    except FileNotFoundError:
        return None
    for path in _newest_first(store.paths(), response_id):
        shard = store.shard(path)
        for record in () if shard is None else _records(shard, response_id):
            if record.received is not None and record.reply is not None and _kept(record.received):
                return Stored(record.received, _told(record.reply, record.received))
    return None


def _newest_first(paths: list[Path], response_id: str) -> list[Path]:
    """The shards that may hold the response: an id of ours says when it was made."""
    ours = _OURS.match(response_id)
    made = int(ours[1], 16) / 1000 - _SKEW_S if ours else 0.0
    written: dict[Path, float] = {}
    for path in paths:
        try:
            written[path] = path.stat().st_mtime
        except FileNotFoundError:  # sealed since it was listed; `shard` finds it under its new name
            written[path] = float("inf")
    return sorted((path for path in paths if written[path] >= made), key=written.__getitem__, reverse=True)


def _records(shard: ShardReader, response_id: str) -> Iterator[CallRecord]:
    wanted = scalar(response_id)
    for number in range(shard.count):
        found = pc.equal(shard.batch(number, _KINDS).column("reply_id"), wanted)
        for place in pc.indices_nonzero(found).to_pylist():
            row = to_rows(shard.batch(number), [place])[0]
            if row["dialect"] == responses.name and row["status"] == "answered":
                yield shard.decoder.record(row)
