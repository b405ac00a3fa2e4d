"""Whether a replica is worth asking: a breaker that opens on failures in a row, and a rest that the replica asked for.

Open, it lets nothing through for a while that doubles with each failed trial; then one call tries it, and only that
one's end decides. Times are a monotonic clock's seconds, given by the caller.
"""

from __future__ import annotations

from typing import Literal

State = Literal["closed", "open", "trial"]

FAILURES = 3
"""In a row; so many open the breaker."""
FIRST_S, LONGEST_S = 1.0, 30.0
"""Of an open breaker."""
LONGEST_REST_S = 60.0
"""However long a replica asks to be left alone."""


class Health:
    def __init__(self) -> None:
        self.state: State = "closed"
        self.failures = 0
        """In a row."""
        self.opened = 0
        """How often, for whoever watches."""
        self.until = 0.0
        """When an open breaker lets a trial through."""
        self.rests_until = 0.0
        self._open_s = FIRST_S

    def passes(self, now: float) -> bool:
        """Whether a call may be given to it."""
        if now < self.rests_until:
            return False
        return self.state == "closed" or (self.state == "open" and now >= self.until)

    def is_plain(self, now: float) -> bool:
        """Whether nothing speaks against it."""
        return self.state == "closed" and now >= self.rests_until

    def begin(self) -> None:
        """A call was given to it, whatever its health: to an open one as its trial."""
        if self.state == "open":
            self.state = "trial"

    def succeeded(self) -> None:
        self.state, self.failures, self._open_s = "closed", 0, FIRST_S

    def failed(self, now: float) -> None:
        self.failures += 1
        if self.state == "trial":
            self._open_s = min(self._open_s * 2, LONGEST_S)
        elif self.state == "open" or self.failures < FAILURES:
            return
        self._open(now)

    def abandoned(self, now: float) -> None:
        """A call ended and says nothing of the replica: a trial is to be had again."""
        if self.state == "trial":
            self.state, self.until = "open", now

    def rest(self, now: float, seconds: float) -> None:
        """It answered, and asks for a pause: that is no failure."""
        self.rests_until = max(self.rests_until, now + min(seconds, LONGEST_REST_S))
        self.abandoned(now)

    def _open(self, now: float) -> None:
        self.state, self.until = "open", now + self._open_s
        self.opened += 1
