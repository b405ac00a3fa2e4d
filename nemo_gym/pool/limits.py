"""A provider's limits a minute, shared by all calls to it: of requests, and of tokens.

Requests are exact over every window: what was begun in the last minute counts, so no minute, wherever it begins, has
more. What a call will cost in tokens is guessed from the calls before it when it begins, and put right when it ended.

What was spent is in memory that processes forked later share, so the limits are those of all of them together, however
the calls fall among them. Times are of a clock that they share too (the loop's is).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator

from msgspec import Struct

WINDOW_S = 60.0
_GUESS = 1000.0
"""Tokens, before any call has ended."""
_PAST = 0.9
"""Of the guess that a new count leaves standing."""
_MOST = 1 << 16
"""Calls that a minute may have where only tokens are limited: there is room for no more."""
_HEAD = struct.Struct("=qqdd")
"""The number of the oldest call in the window, and of the next one; their tokens together; the guess."""
_CALL = struct.Struct("=dd")
"""When it began, and its tokens."""


class Spent(Struct, frozen=True):
    """What one call counts for: its number among all calls."""

    number: int


_NOTHING = Spent(-1)


class Limits:
    """Made before the processes that share it are.

    Args:
        requests, tokens: a minute; None has no limit.
    """

    def __init__(self, requests: int | None = None, tokens: int | None = None) -> None:
        self._requests = requests
        self._tokens = tokens
        self.none = requests is None and tokens is None
        if self.none:
            return
        self._room = requests or _MOST
        self._memory = mmap.mmap(-1, _HEAD.size + self._room * _CALL.size)
        with tempfile.TemporaryFile() as file:
            self._lock = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._lock)
        _HEAD.pack_into(self._memory, 0, 0, 0, 0.0, min(_GUESS, float(tokens)) if tokens else 0.0)

    def wait(self, now: float) -> float:
        """Seconds until a call may begin; 0: now."""
        if self.none:
            return 0.0
        with self._locked():
            return self._wait(now)

    def begin(self, now: float) -> Spent | None:
        """A call begins now; None where it has to wait."""
        if self.none:
            return _NOTHING
        with self._locked():
            if self._wait(now) > 0:
                return None
            oldest, number, tokens, guess = _HEAD.unpack_from(self._memory, 0)
            self._write(number, now, guess)
            _HEAD.pack_into(self._memory, 0, oldest, number + 1, tokens + guess, guess)
        return Spent(number)

    def ended(self, spent: Spent, tokens: int | None) -> None:
        """What it really cost; None where that is not known."""
        if tokens is None or self._tokens is None:
            return
        with self._locked():
            oldest, following, together, guess = _HEAD.unpack_from(self._memory, 0)
            if spent.number >= oldest:
                at, guessed = self._call(spent.number)
                self._write(spent.number, at, float(tokens))
                together += tokens - guessed
            guess = min(_PAST * guess + (1 - _PAST) * tokens, float(self._tokens))
            _HEAD.pack_into(self._memory, 0, oldest, following, together, guess)

    def _wait(self, now: float) -> float:
        oldest, following, together, guess = self._forget(now)
        free_at = now
        if following - oldest >= self._room:
            free_at = self._call(following - self._room)[0] + WINDOW_S
        if self._tokens is not None:
            over = together + guess - self._tokens
            for number in range(oldest, following):
                if over <= 0:
                    break
                at, tokens = self._call(number)
                over -= tokens
                free_at = max(free_at, at + WINDOW_S)
        return max(0.0, free_at - now)

    def _forget(self, now: float) -> tuple[int, int, float, float]:
        oldest, following, together, guess = _HEAD.unpack_from(self._memory, 0)
        first = oldest
        while oldest < following:
            at, tokens = self._call(oldest)
            if now - at < WINDOW_S:
                break
            oldest, together = oldest + 1, together - tokens
        if oldest > first:
            if oldest == following:
                together = 0.0  # nothing is left of what floats have rounded
            _HEAD.pack_into(self._memory, 0, oldest, following, together, guess)
        return oldest, following, together, guess

    def _call(self, number: int) -> tuple[float, float]:
        at, tokens = _CALL.unpack_from(self._memory, _HEAD.size + number % self._room * _CALL.size)
        return at, tokens

    def _write(self, number: int, at: float, tokens: float) -> None:
        _CALL.pack_into(self._memory, _HEAD.size + number % self._room * _CALL.size, at, tokens)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Held by one process at a time; a process that ends lets go of it, however it ends."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)
