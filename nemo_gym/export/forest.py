"""One rollout's calls as trees of exact token prefixes.

A generation hangs below the one whose prompt and completion its own prompt begins with, id by id; of several such,
below the longest. Ids come from the engine and are only ever copied.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from ..capture.record import CallRecord


class Generation:
    """One choice of one call, with its place in the forest.

    `discarded` says why it is not trained; it may still be the context of one that is.
    """

    def __init__(
        self,
        record: CallRecord,
        choice: int,
        prompt: array,
        ids: array,
        logprobs: array | None,
        versions: tuple[tuple[int, int], ...],
        discarded: str | None,
        model: str,
    ) -> None:
        self.call_id = record.call_id
        self.run_id = record.run_id
        self.model = model
        self.choice = choice
        self.prompt = prompt
        self.ids = ids
        self.logprobs = logprobs
        self.versions = versions
        self.discarded = discarded
        self.parent: Generation | None = None
        self.children: list[Generation] = []
        self.full = prompt + ids

    @property
    def new_prompt(self) -> int:
        """Prompt tokens that this call brought in; choices of one call share theirs, and the first one counts them."""
        if self.choice:
            return 0
        return len(self.prompt) - (len(self.parent.full) if self.parent is not None else 0)


def forest(generations: Iterable[Generation]) -> list[Generation]:
    """The roots, in the order given; parents and children are set. A parent comes before its child."""
    roots: list[Generation] = []
    longest_first: list[Generation] = []
    for generation in generations:
        prompt = generation.prompt
        for other in longest_first:
            size = len(other.full)
            if size <= len(prompt) and other.call_id != generation.call_id and prompt[:size] == other.full:
                generation.parent = other
                other.children.append(generation)
                break
        else:
            roots.append(generation)
        _insert(longest_first, generation)
    return roots


def _insert(ordered: list[Generation], generation: Generation) -> None:
    """Longest first; of equal ones the earlier first, and one that is trained before one that is not."""
    place = len(ordered)
    while place and _rank(ordered[place - 1]) < _rank(generation):
        place -= 1
    ordered.insert(place, generation)


def _rank(generation: Generation) -> tuple[int, bool]:
    return len(generation.full), generation.discarded is None


def generations(record: CallRecord) -> Iterator[Generation]:
    """The generations of one call whose token ids are known."""
    reply = record.reply
    if reply is None or reply.prompt_ids is None:
        return
    for choice in reply.choices:
        tokens = choice.tokens
        if tokens is None or tokens.ids is None:
            continue
        yield Generation(
            record,
            choice.index,
            reply.prompt_ids,
            tokens.ids,
            tokens.logprobs,
            tokens.versions,
            _why_not(record, tokens),
            reply.model,
        )


def without_ids(record: CallRecord) -> bool:
    """An answered call that cannot be trained for want of its token ids."""
    return record.status == "answered" and record.trainable and not any(True for _ in generations(record))


def _why_not(record: CallRecord, tokens: Any) -> str | None:
    """Why a generation is not trained whatever becomes of its rollout."""
    if not record.trainable:
        return "not_trainable"
    if record.status != "answered":
        return record.status
    if record.relation == "repeat":
        return "repeat"  # the same sample, given a second time
    if tokens.logprobs is None or len(tokens.logprobs) != len(tokens.ids):
        return "no_logprobs"
    if record.logprobs_mode == "raw" and _reshaped(record):
        return "raw_logprobs"
    return None


def _reshaped(record: CallRecord) -> bool:
    """Whether the distribution sampled from was another than the raw one."""
    asked = record.sent or record.received
    if asked is None:
        return True
    sampling = asked.sampling
    neutral = (
        sampling.temperature in (None, 1),
        sampling.top_p in (None, 1),
        sampling.top_k in (None, 0, -1),
        sampling.min_p in (None, 0),
    )
    return not all(neutral)
