"""A provider's limits a minute, shared by all calls to it: of requests, and of tokens.

Requests are exact over every window: what was begun in the last minute counts, so no minute, wherever it begins, has
more. What a call will cost in tokens is guessed from the calls before it when it begins, and put right when it ended.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
_GUESS = 1000.0
"""Tokens, before any call has ended."""
_PAST = 0.9
"""Of the guess that a new count leaves standing."""


class Spent:
    """What one call counts for."""

    __slots__ = ("at", "counted", "tokens")

    def __init__(self, at: float, tokens: float) -> None:
        self.at = at
        self.tokens = tokens
        self.counted = False
        """Whether it is in the window now."""


class Limits:
    """Args:
    requests, tokens: a minute; None has no limit.
    """

    def __init__(self, requests: int | None = None, tokens: int | None = None) -> None:
        self._requests = requests
        self._tokens = tokens
        self.none = requests is None and tokens is None
        self._spent: deque[Spent] = deque()
        self._sum = 0.0
        self._guess = min(_GUESS, float(tokens)) if tokens else 0.0

    def wait(self, now: float) -> float:
        """Seconds until a call may begin; 0: now."""
        if self.none:
            return 0.0
        self._forget(now)
        free_at = now
        if self._requests is not None and len(self._spent) >= self._requests:
            free_at = self._spent[len(self._spent) - self._requests].at + WINDOW_S
        if self._tokens is not None:
            over = self._sum + self._guess - self._tokens
            for spent in self._spent:
                if over <= 0:
                    break
                over -= spent.tokens
                free_at = max(free_at, spent.at + WINDOW_S)
        return max(0.0, free_at - now)

    def begin(self, now: float) -> Spent:
        spent = Spent(now, self._guess)
        if not self.none:
            self._spent.append(spent)
            spent.counted = True
            self._sum += spent.tokens
        return spent

    def ended(self, spent: Spent, tokens: int | None) -> None:
        """What it really cost; None where that is not known."""
        if tokens is None or self._tokens is None:
            return
        if spent.counted:
            self._sum += tokens - spent.tokens
        spent.tokens = float(tokens)
        self._guess = min(_PAST * self._guess + (1 - _PAST) * tokens, float(self._tokens))

    def _forget(self, now: float) -> None:
        while self._spent and now - self._spent[0].at >= WINDOW_S:
            spent = self._spent.popleft()
            spent.counted = False
            self._sum -= spent.tokens
