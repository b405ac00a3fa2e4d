"""So many places for calls: one is taken at once or not at all, and who has to wait is told when one may be free.

Made before a server's processes are forked, they are those of all of them together, however the calls fall among them.
The kernel counts (an eventfd that is a semaphore), so nothing is locked and nobody looks again and again; a process
that ends takes the whole server with it, so no place is lost. Where there is no eventfd each process has its part.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import weakref
from collections.abc import Callable
from typing import Protocol


class Places(Protocol):
    @property
    def free(self) -> bool:
        """Whether there is one at this moment."""
        ...

    def take(self) -> bool:
        """A place of one's own, if there is one."""
        ...

    def give(self) -> None:
        """It is free for another."""
        ...

    def when_free(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Calls `tell` once when there may be one; another may be quicker. What it returns ends that.

        One at a time may ask for it: who waits has a queue, and its first one asks.
        """
        ...


class OwnPlaces:
    """Those of one process."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._tell: Callable[[], None] | None = None

    @property
    def free(self) -> bool:
        return self._free > 0

    def take(self) -> bool:
        if not self._free:
            return False
        self._free -= 1
        return True

    def give(self) -> None:
        self._free += 1
        if self._tell is not None:
            self._tell()
            self._tell = None

    def when_free(self, tell: Callable[[], None]) -> Callable[[], None]:
        self._tell = tell
        return self._tell_nobody

    def _tell_nobody(self) -> None:
        self._tell = None


def places(count: int, processes: int = 1) -> Places:
    """So many for all the processes that will be forked; they may be none."""
    if processes == 1:
        return OwnPlaces(count)
    if sys.platform == "linux":
        return SharedPlaces(count)
    return OwnPlaces(-(-count // processes))


if sys.platform == "linux":

    class SharedPlaces:
        """Those of every process that has a copy of this by a fork."""

        def __init__(self, count: int) -> None:
            self._fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            if count:
                os.eventfd_write(self._fd, count)
            self._look = select.poll()
            self._look.register(self._fd, select.POLLIN)
            weakref.finalize(self, os.close, self._fd)

        @property
        def free(self) -> bool:
            return bool(self._look.poll(0))

        def take(self) -> bool:
            try:
                os.eventfd_read(self._fd)
            except BlockingIOError:
                return False
            return True

        def give(self) -> None:
            os.eventfd_write(self._fd, 1)

        def when_free(self, tell: Callable[[], None]) -> Callable[[], None]:
            loop = asyncio.get_running_loop()

            def tell_nobody() -> None:
                loop.remove_reader(self._fd)

            def told() -> None:
                tell_nobody()  # it is readable while there is a place, and this one may have no use for it now
                tell()

            loop.add_reader(self._fd, told)
            return tell_nobody
