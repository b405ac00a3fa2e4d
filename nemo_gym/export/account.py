"""What became of every captured token: captured = trained + context + discarded, to the token.

A token is captured once: a prompt that repeats what an earlier call of its rollout already had adds only what is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .forest import Generation
from .sequences import Sequence as Row


class Account:
    """Tokens; `discarded` by reason. `calls` counts the calls that were left out, by the same reasons."""

    def __init__(self) -> None:
        self.captured = 0
        self.trained = 0
        self.context = 0
        self.discarded: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def rollout(self, generations: Sequence[Generation], rows: Iterable[Row]) -> None:
        """A rollout that was exported."""
        rows = list(rows)
        in_context = {id(generation) for row in rows for generation in row.generations}
        for generation in generations:
            new, said = generation.new_prompt, len(generation.ids)
            self.captured += new + said
            if generation.discarded is None:
                self.trained += said
                self.context += new
                continue
            self.calls[generation.discarded] += 1
            self.discarded[generation.discarded] += said
            if id(generation) in in_context:
                self.context += new
            else:
                self.discarded[generation.discarded] += new

    def leave_out(self, generations: Sequence[Generation], reason: str) -> None:
        """A rollout that was not exported at all."""
        for generation in generations:
            tokens = generation.new_prompt + len(generation.ids)
            self.captured += tokens
            self.discarded[reason] += tokens
            self.calls[reason] += 1

    @property
    def adds_up(self) -> bool:
        return self.captured == self.trained + self.context + self.discarded.total()
