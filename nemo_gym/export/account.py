"""What became of every captured token: captured = trained + context + discarded, to the token.

A token is captured once: a prompt that repeats what an earlier call of its rollout already had adds only what is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from .captured import CapturedCall
from .forest import WIDTH, Forest
from .sequences import Sequence


class Account(Struct):
    """Tokens; `discarded` by reason. `calls` counts the calls that were left out, by the same reasons."""

    captured: int = 0
    trained: int = 0
    context: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def adds_up(self) -> bool:
        return self.captured == self.trained + self.context + self.discarded.total()

    def add(self, other: Account) -> None:
        self.captured += other.captured
        self.trained += other.trained
        self.context += other.context
        self.discarded += other.discarded
        self.calls += other.calls

    def leave_out(self, tokens: int, reason: str) -> None:
        """One call."""
        self.captured += tokens
        self.discarded[reason] += tokens
        self.calls[reason] += 1


def exported(forest: Forest, rows: Iterable[Sequence]) -> Account:
    """Of a rollout that was exported as these rows."""
    account = Account()
    rows = list(rows)
    in_context = {one for row in rows for one in row.generations}
    trained = {one for row in rows for one in row.trained}
    for one in forest.generations:
        new, said = one.new_prompt, one.said
        account.captured += new + said
        if one in trained:
            account.trained += said
            account.context += new
            continue
        assert one.discarded is not None
        account.calls[one.discarded] += 1
        account.discarded[one.discarded] += said
        if any(other in in_context for other in forest.of_call(one.call.call_id)):
            account.context += new
        else:
            account.discarded[one.discarded] += new
    for call in forest.unplaced:
        account.leave_out(new_tokens(call), "parent_missing")
    return account


def left_out(calls: Iterable[CapturedCall], reason: str) -> Account:
    """Of a rollout that was not exported at all, or of a call outside any."""
    account = Account()
    forest = Forest(calls)
    by_call: Counter[str] = Counter()
    for one in forest.generations:
        by_call[one.call.call_id] += one.new_prompt + one.said
    for tokens in by_call.values():
        account.leave_out(tokens, reason)
    for call in forest.unplaced:
        account.leave_out(new_tokens(call), reason)
    return account


def new_tokens(call: CapturedCall) -> int:
    said = sum(len(one.ids or b"") for one in call.choices)
    return (len(call.new_prompt or b"") + said) // WIDTH
