"""Log-probs that a client asked for, beside the text that they are of.

A trace is of all that was generated, reasoning and the markup of calls too; what is told are the tokens of the first
text, found by what they spell.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from ...exchange.parts import Part, Reasoning, Text
from ...exchange.reply import Choice, TokenTrace
from ...exchange.request import ModelRequest


def write_logprobs(choice: Choice, request: ModelRequest) -> list[dict[str, Any]]:
    """Those of the choice's first text; none where they were not asked for or do not spell it."""
    trace, asked = choice.tokens, request.sampling.logprobs
    if asked is None or trace is None or trace.texts is None or trace.logprobs is None:
        return []
    start, end = _span("".join(trace.texts), choice.parts)
    found = []
    place = 0
    for number, text in enumerate(trace.texts):
        if place < end and place + len(text) > start:
            top = trace.top[number] if trace.top is not None else {}
            entries = [_entry(token, value) for token, value in list(top.items())[:asked]]
            found.append({**_entry(text, trace.logprobs[number]), "top_logprobs": entries})
        place += len(text)
    return found


def read_logprobs(items: Iterable[Mapping[str, Any]]) -> TokenTrace | None:
    """Those that a backend gave of its texts; their tokens have no ids. None where there are none."""
    texts = [part for item in items if item.get("type") == "message" for part in item.get("content") or ()]
    entries = [entry for part in texts for entry in part.get("logprobs") or ()]
    if not entries:
        return None
    return TokenTrace(
        logprobs=array("f", [float(entry["logprob"]) for entry in entries]),
        texts=tuple([str(entry["token"]) for entry in entries]),
        top=tuple(
            [{one["token"]: float(one["logprob"]) for one in entry.get("top_logprobs") or ()} for entry in entries]
        ),
    )


def _span(said: str, parts: tuple[Part, ...]) -> tuple[int, int]:
    """Where in all that was generated the first text lies."""
    place = 0
    for part in parts:
        if isinstance(part, Text) and part.text:
            start = said.find(part.text, place)
            return (start, start + len(part.text)) if start >= 0 else (0, 0)
        if isinstance(part, Reasoning) and part.text and (thought := said.find(part.text, place)) >= 0:
            place = thought + len(part.text)
    return 0, 0


def _entry(token: str, value: float) -> Mapping[str, Any]:
    return {"token": token, "bytes": list(token.encode("utf-8", "replace")), "logprob": value}
