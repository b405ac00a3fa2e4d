"""Large requests are written to a backend a few at a time, so that a burst of them is not all in memory in two forms.

A small one waits for nobody. A place is free again as soon as the bytes are written, or the try has failed; how long
the backend then takes to answer is no matter here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import BytesPayload

LARGE = 64 * 1024
"""A body from which on it counts."""
AT_ONCE = 32


class Turn:
    """`async with` waits for the turn of a body of about this size; `noted` is what to send of it."""

    def __init__(self, places: asyncio.Semaphore, size: int) -> None:
        self._places = places
        self._large = size >= LARGE
        self._held = False

    async def __aenter__(self) -> Turn:
        if self._large:
            await self._places.acquire()
            self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._free()

    def noted(self, data: bytes) -> bytes | BytesPayload:
        """The bytes; a large one says when it is written."""
        if not self._large:
            return data
        return _Noted(memoryview(data).tobytes(), self._free)  # the encoder's own takes half as much again

    def _free(self) -> None:
        if self._held:
            self._held = False
            self._places.release()


class _Noted(BytesPayload):
    def __init__(self, data: bytes, written: Callable[[], None]) -> None:
        super().__init__(data, content_type="application/json")
        self._written = written

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        await super().write_with_length(writer, content_length)
        self._written()
