"""When a rollout's time was spent: in the model, in tools, in the agent; as its recorded calls tell it.

Only calls are recorded, so what lies between them is judged by them: after a reply that asked for tools, until a
request that brings results, the time is the tools'; any other is the agent's (after the last call, the verifier's too).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ..capture.record import CallRecord
from ..exchange.parts import ToolCall, ToolResult

FIRST, LAST = 30, 15
"""Calls that are shown of a long rollout."""


class Span(Struct, frozen=True):
    """Seconds since the rollout began."""

    kind: Literal["model", "failed", "tools", "agent"]
    start: float
    end: float
    label: str
    first_token: float | None = None


class Timeline(Struct, frozen=True):
    seconds: float
    spans: list[Span]
    calls: int
    left_out: int
    """Calls in the middle that have no span; the sums have them."""
    model: float
    """Seconds in which at least one call was open."""
    tools: float
    agent: float


def timeline(records: Sequence[CallRecord], started: float | None, seconds: float | None) -> Timeline | None:
    """None without a call."""
    calls = sorted(records, key=lambda record: (record.times.received, record.call_id))
    if not calls:
        return None
    first, last = calls[0].times.received, max(record.times.replied for record in calls)
    # A clock of another machine may be ahead: then the calls are all that is known.
    began = min(started, first) if started is not None else first
    ended = max(last, began + seconds) if seconds is not None else last
    spans: list[Span] = []
    at, before = began, None
    for number, record in enumerate(calls, 1):
        begin, end = record.times.received, max(record.times.received, record.times.replied)
        if begin > at:
            spans.append(_between(before, record, at - began, begin - began))
        spans.append(_call(record, number, began, end))
        if end >= at:
            at, before = end, record
    if ended > at:
        spans.append(Span("agent", at - began, ended - began, "agent, verifier"))
    sums = {kind: sum(span.end - span.start for span in spans if span.kind == kind) for kind in ("tools", "agent")}
    total = ended - began
    shown, left_out = _shown(spans, len(calls))
    return Timeline(
        total, shown, len(calls), left_out, total - sums["tools"] - sums["agent"], sums["tools"], sums["agent"]
    )


def _call(record: CallRecord, number: int, began: float, end: float) -> Span:
    times, reply = record.times, record.reply
    label = f"call {number}"
    if record.relation not in ("first", "turn"):
        label += f", {record.relation}"
    if reply is not None and reply.usage.completion is not None:
        label += f", {reply.usage.completion:,} tokens"
    if record.status != "answered":
        label += f", {record.status}" + (f": {record.error.kind}" if record.error is not None else "")
    first = times.first_token if times.first_token is not None and times.received <= times.first_token <= end else None
    return Span(
        "model" if record.status == "answered" else "failed",
        times.received - began,
        end - began,
        label,
        None if first is None else first - began,
    )


def _between(before: CallRecord | None, after: CallRecord, start: float, end: float) -> Span:
    asked = [
        part.name
        for choice in (before.reply.choices if before is not None and before.reply is not None else ())
        for part in choice.parts
        if isinstance(part, ToolCall)
    ]
    brought = after.received is not None and any(
        isinstance(part, ToolResult) for message in after.received.messages[-8:] for part in message.parts
    )
    if asked and brought:
        return Span("tools", start, end, ", ".join(dict.fromkeys(asked)))
    return Span("agent", start, end, "agent")


def _shown(spans: list[Span], calls: int) -> tuple[list[Span], int]:
    if calls <= FIRST + LAST:
        return spans, 0
    places = [place for place, span in enumerate(spans) if span.kind in ("model", "failed")]
    return spans[: places[FIRST]] + spans[places[-LAST] :], calls - FIRST - LAST
