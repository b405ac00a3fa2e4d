"""A pipe whose reader has gone, as `head` goes when it has its lines: the command ends, without a word and with 0."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import IO, ParamSpec

P = ParamSpec("P")


def ends_with_its_reader(command: Callable[P, int]) -> Callable[P, int]:
    """For commands that only print. What is buffered is written within, since a fault at exit is told by Python."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            to_nowhere(sys.stdout)
            return 0
        return result

    return run


def to_nowhere(stream: IO[str]) -> None:
    """The descriptor itself, since what is buffered is written once more when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
