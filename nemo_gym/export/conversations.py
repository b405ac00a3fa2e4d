"""The conversations of a rollout, as messages: one for each end that its calls come to.

A call goes on with another's conversation when it was found to continue it by content (`turn`); what a compaction
leaves and what a sub-agent is told are conversations of their own. Token ids are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..capture.record import CallRecord, bare_parts
from ..dialects import chat
from ..exchange.parts import Message
from ..exchange.request import ModelRequest
from .captured import CapturedCall
from .lines import main_line
from .options import Branches

_CONTINUES = ("turn", "retry")


class Conversation(Struct, frozen=True, eq=False):
    path: tuple[CapturedCall, ...]
    """Its calls, first to last."""
    trained: frozenset[str]
    """The calls whose answers no earlier conversation has."""
    branch: int
    is_main: bool

    @property
    def last(self) -> CapturedCall:
        return self.path[-1]


def conversations(calls: list[CapturedCall], branches: Branches) -> Iterator[Conversation]:
    """In the order of their last calls."""
    usable = [call for call in calls if call.trainable and not call.late and call.status == "answered"]
    usable = [call for call in usable if call.relation != "repeat"]
    by_id = {call.call_id: call for call in usable}
    line = [call.call_id for call in main_line(calls)]
    continued = {call.parent_call_id for call in usable if call.relation in _CONTINUES}
    ends = usable if branches == "calls" else [call for call in usable if call.call_id not in continued]
    wanted = {"main": set(line), "last": set(line[-1:])}.get(branches)
    done: set[str] = set()
    branch = 0
    for end in ends:
        if wanted is not None and end.call_id not in wanted:
            continue
        path = _path(end, by_id)
        among = path[-1:] if branches in ("calls", "last") else path
        trained = frozenset(call.call_id for call in among if call.call_id not in done)
        if not trained:
            continue
        done |= trained
        yield Conversation(tuple(path), trained, branch, end.call_id in line)
        branch += 1


def _path(end: CapturedCall, by_id: dict[str, CapturedCall]) -> list[CapturedCall]:
    path = {end.call_id: end}
    while end.relation in _CONTINUES and end.parent_call_id in by_id and end.parent_call_id not in path:
        end = path[end.parent_call_id] = by_id[end.parent_call_id]
    return list(path.values())[::-1]


class Untold(Exception):
    """A conversation that is not told as messages, and why: one word."""


class Dialogue(Struct, frozen=True):
    """A conversation as Chat Completions has it; of several choices the first."""

    messages: list[dict[str, Any]]
    answers: list[bool]
    """Of each message: the policy said it, in a call of the conversation's path."""
    trained: list[bool]
    """And no other conversation trains it."""
    prompt: int
    """How many messages were there before the policy's first answer."""
    tools: list[dict[str, Any]]
    record: CallRecord


def dialogue(conversation: Conversation) -> Dialogue:
    """Raises Untold."""
    try:
        record = conversation.last.record()
    except KeyError:
        raise Untold("unreadable") from None  # contents that are no longer in the captures
    request, reply = record.received or record.sent, record.reply
    if request is None or reply is None or not reply.choices:
        raise Untold("no_answer")
    messages = [*request.messages, Message("assistant", reply.choices[0].parts)]
    merged, trained = _merged(messages, _answered(conversation, len(request.messages)))
    tools = tuple(replace(tool, origin=None) for tool in request.tools)
    body = chat.write_request(ModelRequest(tuple(merged), tools))
    written = [_in_one_string(message) for message in body["messages"]]
    if len(written) != len(merged):
        raise Untold("provider_items")  # that only their provider can read
    prompt = next((n for n, own in enumerate(trained) if own is not None), len(written))
    answers = [own is not None for own in trained]
    return Dialogue(written, answers, [bool(own) for own in trained], prompt, body.get("tools", []), record)


def _in_one_string(message: dict[str, Any]) -> dict[str, Any]:
    """Text that came in several parts, as agents send it, is text: a line each, as vLLM gives it to a template."""
    parts = message.get("content")
    if not isinstance(parts, list) or any(part.get("type") != "text" for part in parts):
        return message
    return message | {"content": "\n".join(part["text"] for part in parts)}


def _answered(conversation: Conversation, last: int) -> dict[int, bool]:
    """Where in the last request the answers of the path's calls begin, and whether they are trained here."""
    places = {call.messages: call.call_id in conversation.trained for call in conversation.path[:-1]}
    return places | {last: conversation.last.call_id in conversation.trained}


def _merged(messages: list[Message], answered: dict[int, bool]) -> tuple[list[Message], list[bool | None]]:
    """One message a turn of the assistant; whether the policy said it (None: it did not), and is trained on it."""
    merged: list[Message] = []
    trained: list[bool | None] = []
    for place, message in enumerate(messages):
        parts = bare_parts(message.parts)
        own = answered.get(place) if message.role == "assistant" else None
        if merged and merged[-1].role == message.role == "assistant" and own is None:
            merged[-1] = Message("assistant", merged[-1].parts + parts)
            continue
        role = "system" if message.role == "developer" else message.role
        merged.append(Message(role, parts))
        trained.append(own)
    return merged, trained
