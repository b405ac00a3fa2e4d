"""One rollout's calls as trees of exact token prefixes.

A generation hangs below the one whose prompt and completion its own prompt begins with, id by id; of several such,
below the longest. Each holds only the ids that it adds, so a rollout takes the memory of what is new in it. Ids come
from the engine and are only ever copied.
"""

from __future__ import annotations

from collections.abc import Iterable

from .captured import CapturedCall, Spoken

WIDTH = 4
"""Bytes of one id, and of one log-prob."""


class Generation:
    """One choice of one call, with its place in the forest.

    `discarded` says why it is not trained; it may still be the context of one that is.
    """

    __slots__ = (
        "added",
        "call",
        "children",
        "discarded",
        "end",
        "ids",
        "logprobs",
        "new_prompt",
        "parent",
        "spoken",
        "start",
    )

    def __init__(
        self, call: CapturedCall, spoken: Spoken, parent: Generation | None, added: bytes, *, first: bool = True
    ) -> None:
        assert spoken.ids is not None
        self.call = call
        self.spoken = spoken
        self.parent = parent
        self.children: list[Generation] = []
        self.added = added
        """The prompt's ids behind the parent's."""
        self.ids = spoken.ids
        self.logprobs = spoken.logprobs
        self.start = (0 if parent is None else parent.end) + len(added) // WIDTH
        """Where its ids begin, in tokens."""
        self.end: int = self.start + len(self.ids) // WIDTH
        self.new_prompt = len(added) // WIDTH if first else 0
        """Prompt tokens that this call brought in; choices of one call share theirs, and the first one counts them."""
        self.discarded = why_not(call, spoken)

    @property
    def path(self) -> list[Generation]:
        """From the root to this one."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return path[::-1]

    @property
    def said(self) -> int:
        return self.end - self.start


class Forest:
    """Calls in the order in which they were asked: a parent comes before its child."""

    def __init__(self, calls: Iterable[CapturedCall]) -> None:
        self.roots: list[Generation] = []
        self.generations: list[Generation] = []
        self.unplaced: list[CapturedCall] = []
        """Calls that share ids with a parent that is not there."""
        self._of_call: dict[str, list[Generation]] = {}
        self._longest = 0
        for call in calls:
            if call.has_ids:
                self._add(call)

    def of_call(self, call_id: str | None) -> list[Generation]:
        return self._of_call.get(call_id or "", [])

    def _add(self, call: CapturedCall) -> None:
        base = self._base(call)
        if call.shared and (base is None or base.end < call.shared):
            self.unplaced.append(call)
            return
        assert call.new_prompt is not None
        if base is not None and call.shared == base.end >= self._longest and base.discarded is None:
            parent: Generation | None = base  # the usual turn: nothing else can be a longer beginning
            added = call.new_prompt
        else:
            prompt = prefix(base, call.shared) + call.new_prompt if base is not None else call.new_prompt
            parent = self._longest_beginning(prompt)
            added = prompt if parent is None else prompt[parent.end * WIDTH :]
        made: list[Generation] = []
        for one in call.choices:
            if one.ids is not None:
                made.append(Generation(call, one, parent, added, first=not made))
        (self.roots if parent is None else parent.children).extend(made)
        self.generations += made
        self._of_call[call.call_id] = made
        for generation in made:
            if generation.end > self._longest:
                self._longest = generation.end

    def _base(self, call: CapturedCall) -> Generation | None:
        of_parent = self.of_call(call.parent_call_id) if call.shared else []
        if len(of_parent) == 1:
            return of_parent[0]
        through = (one for one in of_parent if one.spoken is one.call.choices[call.shared_choice])
        return next(through, of_parent[0] if of_parent else None)

    def _longest_beginning(self, prompt: bytes) -> Generation | None:
        """Of equal ones the earlier, and one that is trained before one that is not."""
        best: Generation | None = None
        waiting = [(root, 0) for root in reversed(self.roots)]
        while waiting:
            one, at = waiting.pop()
            end = at + len(one.added)
            if prompt.startswith(one.added, at) and prompt.startswith(one.ids, end):
                if best is None or _rank(one) > _rank(best):
                    best = one
                waiting.extend((child, end + len(one.ids)) for child in reversed(one.children))
        return best


def _rank(generation: Generation) -> tuple[int, bool]:
    return generation.end, generation.discarded is None


def prefix(generation: Generation, tokens: int) -> bytes:
    """The first so many ids of a generation's prompt and completion."""
    return b"".join([part for one in generation.path for part in (one.added, one.ids)])[: tokens * WIDTH]


def why_not(call: CapturedCall, spoken: Spoken) -> str | None:
    """Why a generation is not trained whatever becomes of its rollout."""
    if not call.trainable:
        return "not_trainable"
    if call.late:
        return "after_seal"
    if call.status != "answered":
        return call.status
    if call.relation == "repeat":
        return "repeat"  # the same sample, given a second time
    if not spoken.ids:
        return "empty"
    if spoken.logprobs is None or len(spoken.logprobs) != len(spoken.ids):
        return "no_logprobs"
    return None


def without_ids(call: CapturedCall) -> bool:
    """An answered call that cannot be trained for want of its token ids."""
    return call.status == "answered" and call.trainable and not call.has_ids
