"""Memory that a burst took and gave back goes back to the system: the C library would keep it for the next one.

Looked at every second, and done only when the process has grown a good deal since the last time; elsewhere than
on glibc nothing is done.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable

_EVERY_S = 1.0
_GROWN = 32 << 20
_SHARE = 8
"""Nor before it has grown by such a part of what it had."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:
        return 0


class Trimmer:
    """On the running loop from `start` on, for as long as the loop runs."""

    def __init__(self) -> None:
        self._trim = _malloc_trim()
        self._floor = 0
        """After the last time."""

    def start(self) -> None:
        if self._trim is not None:
            self._floor = resident()
            self._again()

    def _again(self) -> None:
        asyncio.get_running_loop().call_later(_EVERY_S, self._look)

    def _look(self) -> None:
        assert self._trim is not None
        if resident() > self._floor + max(_GROWN, self._floor // _SHARE):
            self._trim(0)
            self._floor = resident()
        self._floor = min(self._floor, resident())
        self._again()


def _malloc_trim() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return None
    return found
