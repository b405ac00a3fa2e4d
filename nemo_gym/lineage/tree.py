"""The calls of each rollout as a forest: which call a request continues, and how.

A parent is found by content in normal form, never by what a client claims; a turn that said nothing (reasoning alone)
may be left out, and is found by what it answered. All branches are kept: a retry is a sibling of the call it repeats.
Memory is bounded in bytes: the least recently used rollouts are forgotten first, and before that their token ids and
what they read last; what was forgotten is not linked, never linked wrongly.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..exchange.call import Prior
from ..exchange.parts import Message, Part, Reasoning, Refusal, Text, ToolCall, plain_text
from ..exchange.reply import Choice, ModelReply
from ..exchange.request import ModelRequest
from .normal import Turn, chain, tools_digest, turns
from .sizes import of_message, of_tools

_SUMMARISE = re.compile(r"summar|compact|checkpoint|condense", re.IGNORECASE)
_PLACED = 1024
"""Calls of one rollout that are being answered at a time, beyond which the oldest is read again at its end."""
_TASK = 16
"""A shorter text says too little to tell that one call's tool call set off another call."""
_TELLING = 2048
"""Of a longer text its beginning tells as much."""
_NODE = 1024
"""Bytes that a call takes beside its ids and texts."""


class _Node(Struct, eq=False):
    call_id: str
    parent: str | None
    relation: str
    request_key: bytes
    tools: bytes
    has_tools: bool
    head: bytes
    """System messages and the first user message."""
    keys: list[bytes]
    """Under which this node is found in `after`, `aside` and `silent`."""
    prompt_ids: array | None
    completions: tuple[array | None, ...]
    reasoned: tuple[bool, ...]
    """Whether each began with reasoning."""
    summary: str = ""
    tasks: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        arrays = (self.prompt_ids, *self.completions)
        return sum([len(ids) * ids.itemsize for ids in arrays if ids is not None])

    @property
    def weight(self) -> int:
        """Of all else."""
        return _NODE + len(self.summary) + sum(map(len, self.tasks))


class _Seam(Struct, eq=False):
    """Where an earlier call's conversation ends in a request; as Prior has it."""

    messages: int
    left_out: bool = False
    parts: int = 0


class _Reading(Struct, eq=False):
    """A request in normal form."""

    request: ModelRequest
    turns: list[Turn]
    keys: list[bytes]
    """`keys[n]` is the digest of the first n turns."""
    tools: bytes
    sizes: list[int]
    """`sizes[n]` is what the tools and the first n messages take of memory."""

    @property
    def head(self) -> bytes:
        for number, turn in enumerate(self.turns):
            if turn.role != "system":
                return self.keys[number + 1]
        return self.keys[-1]


class Lineage:
    """Used on the event loop only."""

    def __init__(
        self,
        max_rollouts: int = 4096,
        max_calls: int = 4096,
        max_token_bytes: int = 1 << 30,
        max_bytes: int = 256 << 20,
    ) -> None:
        self._rollouts: OrderedDict[str, _Rollout] = OrderedDict()
        self._max_rollouts = max_rollouts
        self._max_calls = max_calls
        self._max_token_bytes = max_token_bytes
        self._token_bytes = 0
        self._max_bytes = max_bytes
        """Of all but the token ids."""
        self._bytes = 0

    def find(self, rollout_id: str | None, request: ModelRequest) -> tuple[str | None, str, Prior | None]:
        """The call that this request continues, the relation, and that call's ids where they are known."""
        rollout = self._rollouts.get(rollout_id) if rollout_id is not None else None
        if rollout is None:
            return None, "first", None
        before = rollout.bytes
        found = rollout.find(request)
        self._bytes += rollout.bytes - before
        self._bound_bytes()
        return found

    def add(self, call_id: str, rollout_id: str | None, request: ModelRequest, reply: ModelReply | None) -> None:
        """A finished call; `reply` is None when it has none. A call outside a rollout is not kept."""
        if rollout_id is None:
            return
        rollout = self._rollouts.get(rollout_id)
        if rollout is None:
            rollout = self._rollouts[rollout_id] = _Rollout(self._max_calls)
        self._rollouts.move_to_end(rollout_id)
        token_bytes, others = rollout.token_bytes, rollout.bytes
        rollout.add(call_id, request, reply)
        self._token_bytes += rollout.token_bytes - token_bytes
        self._bytes += rollout.bytes - others
        while len(self._rollouts) > self._max_rollouts:
            self.close(next(iter(self._rollouts)))
        if self._token_bytes > self._max_token_bytes:
            self._bound_tokens()
        self._bound_bytes()

    def close(self, rollout_id: str) -> None:
        """The rollout is sealed."""
        rollout = self._rollouts.pop(rollout_id, None)
        if rollout is not None:
            self._token_bytes -= rollout.token_bytes
            self._bytes -= rollout.bytes

    def _bound_tokens(self) -> None:
        for rollout in self._rollouts.values():
            self._token_bytes -= rollout.token_bytes
            rollout.forget_tokens()
            if self._token_bytes <= self._max_token_bytes // 2:  # not again for each call to come
                return

    def _bound_bytes(self) -> None:
        """What was read last can be read again, at the price of digests; only then are calls forgotten."""
        if self._bytes <= self._max_bytes:
            return
        for rollout in self._rollouts.values():
            self._bytes -= rollout.bytes
            rollout.forget_reading()
            self._bytes += rollout.bytes
            if self._bytes <= self._max_bytes // 2:
                return
        while self._bytes > self._max_bytes // 2 and len(self._rollouts) > 1:
            self.close(next(iter(self._rollouts)))


class _Rollout:
    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._nodes: dict[str, _Node] = {}
        self._requests: dict[bytes, _Node] = {}
        self._after: dict[bytes, tuple[_Node, int]] = {}
        self._aside: dict[bytes, _Node] = {}
        self._silent: dict[bytes, tuple[_Node, int]] = {}
        """By the request: choices of which nothing need come back."""
        self._last: _Reading | None = None
        self._placed: dict[int, tuple[_Reading, str | None, str]] = {}
        """Requests that are being answered, by identity, and where they were found to belong."""
        self.token_bytes = 0
        self._weight = 0

    @property
    def bytes(self) -> int:
        """What is held but token ids and the requests that are being answered."""
        return self._weight + (0 if self._last is None else self._last.sizes[-1])

    # ---- a request

    def find(self, request: ModelRequest) -> tuple[str | None, str, Prior | None]:
        reading = self._read(request)
        parent, relation, prior = self._place(request, reading)
        self._placed[id(request)] = reading, parent, relation
        if len(self._placed) > _PLACED:
            del self._placed[next(iter(self._placed))]
        return parent, relation, prior

    def _place(self, request: ModelRequest, reading: _Reading) -> tuple[str | None, str, Prior | None]:
        same = self._requests.get(reading.keys[-1])
        if same is None or same.tools != reading.tools:
            return self._continues(request, reading)
        if same.parent is None:
            return None, "retry", None
        parent, _, prior = self._continues(request, reading)
        return same.parent, "retry", prior if parent == same.parent else None

    def _continues(self, request: ModelRequest, reading: _Reading) -> tuple[str | None, str, Prior | None]:
        for count in range(len(reading.turns), 0, -1):
            found = self._before(reading, count)
            if found is not None:
                node, choice, seam = found
                relation = "compaction" if node.has_tools and _asks_for_summary(request) else "turn"
                return node.call_id, relation, self._prior(node, choice, reading, seam)
        moved = self._without_moving_message(reading)
        if moved is not None:
            return moved.call_id, "turn", self._left_behind(moved, reading)
        return self._unconnected(request, reading)

    def _before(self, reading: _Reading, count: int) -> tuple[_Node, int, _Seam] | None:
        """The call that the first `count` turns are the conversation of, or a part of the last of them."""
        end = reading.turns[count - 1].end
        if count < len(reading.turns) and (silent := self._silent.get(reading.keys[count])) is not None:
            return *silent, _Seam(end, reading.request.messages[end - 1].role != "assistant")
        if (after := self._after.get(reading.keys[count])) is not None:
            return *after, _Seam(end)
        return self._joined(reading, count) if self._silent else None

    def _joined(self, reading: _Reading, count: int) -> tuple[_Node, int, _Seam] | None:
        """The call that said nothing, and whose request ended with some parts of this turn's message."""
        end = reading.turns[count - 1].end
        while reading.request.messages[end - 1].role == "assistant":
            end -= 1
        message = reading.request.messages[end - 1]
        for parts in range(len(message.parts) - 1, 0, -1) if message.role == "user" else ():
            for turn in turns([Message("user", message.parts[:parts])]):
                silent = self._silent.get(chain(reading.keys[count - 1], turn.digest))
                if silent is not None:
                    return *silent, _Seam(end - 1, True, parts)
        return None

    def _prior(self, node: _Node, choice: int, reading: _Reading, seam: _Seam) -> Prior | None:
        completion = node.completions[choice]
        if node.prompt_ids is None or completion is None or node.tools != reading.tools:
            return None
        tokens, prompt = node.prompt_ids + completion, len(node.prompt_ids)
        return Prior(node.call_id, tokens, seam.messages, node.reasoned[choice], prompt, seam.left_out, seam.parts)

    def _left_behind(self, node: _Node, reading: _Reading) -> Prior | None:
        """Its tokens, none of whose messages stand where they were: they tell how far the prompt is still the same."""
        completion = node.completions[0] if node.completions else None
        if node.prompt_ids is None or completion is None or node.tools != reading.tools:
            return None
        return Prior(node.call_id, node.prompt_ids + completion, 0, node.reasoned[0], len(node.prompt_ids))

    def _without_moving_message(self, reading: _Reading) -> _Node | None:
        """Some clients end each request with a message of context that they move along instead of leaving it."""
        if not reading.turns or reading.turns[-1].role != "user":
            return None
        for count in range(len(reading.turns) - 1, 0, -1):
            node = self._aside.get(reading.keys[count])
            if node is not None:
                return node
        return None

    def _unconnected(self, request: ModelRequest, reading: _Reading) -> tuple[str | None, str, None]:
        """A request that continues no call: what is it, if it is not the first?"""
        if not self._nodes:
            return None, "first", None
        telling = [node for node in reversed(self._nodes.values()) if node.summary or node.tasks]
        texts = [plain_text(message.parts) for message in request.messages if message.role == "user" and telling]
        for node in telling:
            if node.summary and any(node.summary in text for text in texts):
                return node.call_id, "compaction", None
            if any(task in text for task in node.tasks for text in texts):
                return node.call_id, "subagent", None
        if not request.tools:
            return None, "side", None
        for node in reversed(self._nodes.values()):
            if node.head == reading.head and node.tools == reading.tools:
                return node.call_id, "compaction", None
        return None, "first", None

    # ---- a finished call

    def add(self, call_id: str, request: ModelRequest, reply: ModelReply | None) -> None:
        placed = self._placed.pop(id(request), None)
        if placed is not None and placed[0].request is request:
            reading, parent, relation = placed
        else:
            reading = self._read(request)
            parent, relation, _ = self._place(request, reading)
        choices = () if reply is None else reply.choices
        node = _Node(
            call_id=call_id,
            parent=parent,
            relation=relation,
            request_key=reading.keys[-1],
            tools=reading.tools,
            has_tools=bool(request.tools),
            head=reading.head if reading.turns else b"",
            keys=[],
            prompt_ids=None if reply is None else reply.prompt_ids,
            completions=tuple([_ids(choice) for choice in choices]),
            reasoned=tuple([bool(choice.parts) and isinstance(choice.parts[0], Reasoning) for choice in choices]),
            summary=_summary(choices) if relation == "compaction" else "",
            tasks=tuple([task for choice in choices for part in choice.parts for task in _tasks(part)]),
        )
        self._nodes[call_id] = node
        self._weight += node.weight
        self._requests[node.request_key] = node
        for number, choice in enumerate(choices):
            for parts in _as_replayed(choice):
                self._found_after(node, number, reading, parts)
        self.token_bytes += node.size
        if len(self._nodes) > self._max_calls:
            self._drop(next(iter(self._nodes)))

    def _found_after(self, node: _Node, choice: int, reading: _Reading, parts: tuple[Part, ...]) -> None:
        said = Message("assistant", parts)
        turn = turns([said])
        if turn:
            key = _extended(reading, len(reading.turns), said, turn)
            self._after[key] = (node, choice)
            node.keys.append(key)
        if _is_silent(parts) and reading.turns:
            self._silent[reading.keys[-1]] = (node, choice)
            node.keys.append(reading.keys[-1])
        before = reading.turns[:-1]
        if before and reading.turns[-1].role == "user" and (turn or before[-1].role != "system"):
            aside = _extended(reading, len(before), said, turn)
            self._aside[aside] = node
            node.keys.append(aside)

    def forget_tokens(self) -> None:
        for node in self._nodes.values():
            node.prompt_ids, node.completions = None, tuple(None for _ in node.completions)
        self.token_bytes = 0

    def forget_reading(self) -> None:
        self._last = None

    def _drop(self, call_id: str) -> None:
        node = self._nodes.pop(call_id)
        self.token_bytes -= node.size
        self._weight -= node.weight
        if self._requests.get(node.request_key) is node:
            del self._requests[node.request_key]
        for key in node.keys:
            for found in (self._after, self._silent):
                if key in found and found[key][0] is node:
                    del found[key]
            if self._aside.get(key) is node:
                del self._aside[key]

    def _read(self, request: ModelRequest) -> _Reading:
        """In normal form; what begins as the latest request did is not digested again."""
        last = self._last
        known: list[Turn] = []
        keys = [b""]
        tools = None
        sizes: list[int] = []
        if last is not None:
            same = _shared(last.request.messages, request.messages)
            known = [turn for turn in last.turns if turn.end <= same]
            if known and same < len(request.messages) and known[-1].role == "assistant":
                known.pop()  # the next message may belong to it
            keys = last.keys[: len(known) + 1]
            if last.request.tools == request.tools:
                tools, sizes = last.tools, last.sizes[: same + 1]
        found = turns(request.messages, known)
        for turn in found[len(known) :]:
            keys.append(chain(keys[-1], turn.digest))
        if tools is None:
            tools, sizes = tools_digest(request.tools), [of_tools(request.tools)]
        for message in request.messages[len(sizes) - 1 :]:
            sizes.append(sizes[-1] + of_message(message))
        self._last = _Reading(request, found, keys, tools, sizes)
        return self._last


def _extended(reading: _Reading, count: int, said: Message, turn: list[Turn]) -> bytes:
    """The key of the conversation that goes on from its first `count` turns with what was said, by itself `turn`."""
    known, messages = reading.turns[:count], reading.request.messages
    if known and known[-1].role == "assistant":  # one turn together with it
        known.pop()
        end = known[-1].end if known else 0
        turn = turns([*messages[end : reading.turns[count - 1].end], said])
    key = reading.keys[len(known)]
    for one in turn:
        key = chain(key, one.digest)
    return key


def _shared(first: tuple[Message, ...], second: tuple[Message, ...]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one is not other and one != other:
            break
        count += 1
    return count


def _summary(choices: tuple[Choice, ...]) -> str:
    return plain_text(choices[0].parts).strip()[:_TELLING] if choices else ""


def _ids(choice: Choice) -> array | None:
    return None if choice.tokens is None or choice.finish == "cancelled" else choice.tokens.ids


def _as_replayed(choice: Choice) -> list[tuple[Part, ...]]:
    """What a client may have of this choice: a call that was cut off is withheld in some dialects (A19)."""
    parts = choice.parts
    if choice.finish == "length" and parts and isinstance(parts[-1], ToolCall):
        return [parts, parts[:-1]]
    if choice.finish == "cancelled" and _is_silent(parts):
        return []  # the client has nothing of it, and goes on from what was before
    return [parts]


def _is_silent(parts: Sequence[Part]) -> bool:
    """Whether a client may leave the turn out: nothing is in it that it shows or must send back."""
    return all(
        isinstance(part, Reasoning) or (isinstance(part, Text | Refusal) and not part.text.strip()) for part in parts
    )


def _asks_for_summary(request: ModelRequest) -> bool:
    last = request.messages[-1] if request.messages else None
    return not request.tools and last is not None and bool(_SUMMARISE.search(plain_text(last.parts)))


def _tasks(part: Part) -> Sequence[str]:
    """The longer texts in a tool call's arguments: a sub-agent's brief begins as one."""
    if not isinstance(part, ToolCall):
        return ()
    if part.custom:
        return [part.arguments[:_TELLING]] if len(part.arguments) >= _TASK else []
    try:
        values = msgspec.json.decode(part.arguments)
    except (msgspec.DecodeError, UnicodeError):
        return []
    values = values.values() if isinstance(values, dict) else ()
    return [value[:_TELLING] for value in values if isinstance(value, str) and len(value) >= _TASK]
