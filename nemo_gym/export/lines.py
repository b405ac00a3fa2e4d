"""Which calls of a rollout are its main line, and how a call came to begin where it does."""

from __future__ import annotations

from collections.abc import Iterable

from .captured import CapturedCall

_ASIDE = ("subagent", "side", "repeat")


def main_line(calls: Iterable[CapturedCall]) -> list[CapturedCall]:
    """What led to the rollout's last answer: its calls from the first on, across retries and compactions.

    A sub-agent's calls and what was asked aside are not on it, nor is an answer that was asked for anew.
    """
    by_id: dict[str, CapturedCall] = {}
    aside: set[str] = set()
    last: CapturedCall | None = None
    for call in sorted(calls, key=lambda call: (call.received_at, call.call_id)):  # a parent comes before its child
        if call.relation in _ASIDE or call.parent_call_id in aside:
            aside.add(call.call_id)
        elif call.trainable and call.status == "answered" and not call.late:
            last = call
        by_id[call.call_id] = call
    line: dict[str, CapturedCall] = {}
    while last is not None and last.call_id not in line:
        line[last.call_id] = last
        last = by_id.get(last.parent_call_id or "")
    return list(line.values())[::-1]
