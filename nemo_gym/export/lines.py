"""Which calls of a rollout are its main line, and how a call came to begin where it does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .calls import CapturedCall

_ASIDE = ("subagent", "side", "repeat")


def main_line(calls: Iterable[CapturedCall]) -> list[CapturedCall]:
    """What led to the rollout's last answer: its calls from the first on, across retries and compactions.

    A sub-agent's calls and what was asked aside are not on it, nor is an answer that was asked for anew.
    """
    by_id = {call.call_id: call for call in calls}
    candidates = (
        call
        for call in by_id.values()
        if call.trainable and call.status == "answered" and not call.late and not _is_aside(call, by_id)
    )
    last = max(candidates, key=lambda call: (call.received_at, call.call_id), default=None)
    line: list[CapturedCall] = []
    while last is not None and last not in line[-1:]:
        line.append(last)
        last = by_id.get(last.parent_call_id or "")
    return line[::-1]


def _is_aside(call: CapturedCall, by_id: Mapping[str, CapturedCall]) -> bool:
    seen: CapturedCall | None = call
    while seen is not None:
        if seen.relation in _ASIDE:
            return True
        seen = by_id.get(seen.parent_call_id or "")
    return False
