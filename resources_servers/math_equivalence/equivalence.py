"""Whether a reply's answer and the expected one are the same; runs in a process of its own."""

from __future__ import annotations

import signal

from math_verify import LatexExtractionConfig, parse, verify


def warm() -> None:
    """Loaded, and deaf to the interrupt that its server gets."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def compare(expected: str, text: str) -> tuple[bool, str | None]:
    """Equality, and the last boxed answer as it was written; None for a reply without one."""
    # Time is kept outside, by whoever can end this process: no signal interrupts one long multiplication.
    place = text.rfind("\\boxed")
    if place < 0:
        return False, None
    gold = parse(f"${expected}$", parsing_timeout=None, raise_on_error=False)
    config = [LatexExtractionConfig(boxed_match_priority=0)]
    found = parse(text[place:], extraction_config=config, parsing_timeout=None, raise_on_error=False)
    if not gold or not found:
        return False, None
    return bool(verify(gold, found, timeout_seconds=None)), str(found[-1])
