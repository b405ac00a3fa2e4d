"""Why a sequence begins where it does: a break names its cause.

A call that continues another and does not begin with that one's tokens is a break (the closed list of the capture:
arguments_reserialised, reasoning_dropped, template_boundary, neighbouring_tokens, compaction, retry, foreign_history).
What is no break: `first`, a `subagent` or `side` call's own conversation, `fork` (two calls go on from one answer) and
`choice` (a call that was asked for several), `continued` (what leads up to it is not trained here).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ..capture.record import CallRecord
from ..exchange.parts import Part, Reasoning, ToolCall
from .captured import CapturedCall
from .forest import WIDTH, Forest, Generation, prefix
from .sequences import Sequence


class Beginning(Struct, frozen=True):
    """Where the part of a sequence begins that is its own."""

    cause: str
    call_id: str
    before: str | None = None
    """The call that it would have continued."""
    position: int | None = None
    """Where the prompt leaves that call's tokens; None when it does not, or continues none."""

    @property
    def is_break(self) -> bool:
        return self.cause not in ("first", "subagent", "side", "fork", "choice", "continued")


def beginning(sequence: Sequence, forest: Forest) -> Beginning:
    first = sequence.trained[0]
    call = first.call
    # A parent's generations that an earlier sequence trained, or that are not trained, lead up to this one.
    if call.relation in ("subagent", "side", "compaction", "retry"):
        return Beginning(call.relation, call.call_id, call.parent_call_id, _leaves_at(first, forest))
    before = forest.of_call(call.parent_call_id)
    if first.parent is not None and (first.parent in before or not before):
        if first.parent.discarded is None and first.parent.children[0] is not first:
            siblings = forest.of_call(call.call_id)
            choice = siblings[0] is not first
            return Beginning("choice" if choice else "fork", call.call_id, first.parent.call.call_id)
        return Beginning("continued", call.call_id, first.parent.call.call_id)
    if not before:
        if forest.of_call(call.call_id)[0] is not first:
            return Beginning("choice", call.call_id)
        earlier = any(root.call.relation == "first" for root in forest.roots[: forest.roots.index(first)])
        return Beginning("foreign_history" if earlier else "first", call.call_id)
    return Beginning(cause(call, before[0].call), call.call_id, call.parent_call_id, _leaves_at(first, forest))


def _leaves_at(one: Generation, forest: Forest) -> int | None:
    call = one.call
    if call.prefix_break is not None:
        return call.prefix_break[0]
    before = forest.of_call(call.parent_call_id)
    if not before or one.parent in before:
        return None
    return shared(prefix(before[0], before[0].end), prefix(one, one.start))


def shared(first: bytes, second: bytes) -> int:
    """How many ids two sequences begin with alike."""
    low, high = 0, min(len(first), len(second)) // WIDTH
    while low < high:  # memcmp does the work
        middle = (low + high + 1) // 2
        if first[: middle * WIDTH] == second[: middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low


def cause(call: CapturedCall, before: CapturedCall) -> str:
    """As the capture says; where the tokens were a backend's, by what came back of the earlier answer."""
    if call.prefix_break is not None:
        return call.prefix_break[1]
    try:
        return _cause(call.record(), before.record(), before.messages)
    except KeyError:
        return "foreign_history"  # what it had for a history is no longer in the captures


def _cause(record: CallRecord, before: CallRecord, messages: int) -> str:
    request, reply = record.sent or record.received, before.reply
    if request is None or reply is None or not reply.choices:
        return "foreign_history"
    said = reply.choices[0].parts
    returned = list(_turn(record, messages))
    if not returned:
        return "reasoning_dropped" if said and all(isinstance(part, Reasoning) for part in said) else "foreign_history"
    if _calls(said) != _calls(returned):
        return "arguments_reserialised"
    if any(isinstance(part, Reasoning) and part.text for part in said) and not any(
        isinstance(part, Reasoning) and part.text for part in returned
    ):
        return "reasoning_dropped"
    return "template_boundary"


def _turn(record: CallRecord, messages: int) -> Iterator[Part]:
    request = record.sent or record.received
    assert request is not None
    for message in request.messages[messages:]:
        if message.role != "assistant":
            return
        yield from message.parts


def _calls(parts: tuple[Part, ...] | list[Part]) -> list[tuple[str, str]]:
    return [(part.name, part.arguments) for part in parts if isinstance(part, ToolCall)]
