"""Words for a person who may be gone: a terminal that is closed, or a pipe that nobody reads, ends no job."""

from __future__ import annotations

import sys
from typing import IO, Any, cast

from rich.console import Console

from .pipe import to_nowhere


class _Outlasting:
    """A stream that goes to nowhere once it cannot be written to any more."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            to_nowhere(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            to_nowhere(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console(stream: IO[str] | None = None) -> Console:
    """Of a job, on standard output unless said."""
    return Console(file=cast("IO[str]", _Outlasting(stream or sys.stdout)), highlight=False, soft_wrap=True)
