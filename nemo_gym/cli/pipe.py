"""A pipe whose reader has gone, as `head` goes when it has its lines: the command ends, without a word and with 0."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def ends_with_its_reader(command: Callable[P, int]) -> Callable[P, int]:
    """For commands that only print. What is buffered is written within, since a fault at exit is told by Python."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            with contextlib.suppress(OSError, ValueError):  # the descriptor, as the interpreter writes once more
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, sys.stdout.fileno())
                os.close(nowhere)
            return 0
        return result

    return run
