"""What is printed may find no reader, no room, or no letter for it; a command ends in order all the same.

A reader that has gone, as `head` goes when it has its lines, is no fault: the command ends without a word. A full disk
is one. A character that the terminal's encoding lacks is written as its number. Ctrl-C needs no words either.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import IO, ParamSpec

P = ParamSpec("P")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def ends_in_order(command: Callable[P, int]) -> Callable[P, int]:
    """What is buffered is written within, since a fault at exit is told by Python."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        if sys.stdout is None:  # it was closed; else the next file that is opened would be printed into
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        result = 0
        try:
            try:
                result = command(*args, **kwargs)
            finally:  # help ends by an exception
                sys.stdout.flush()
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except BrokenPipeError:
            to_nowhere(sys.stdout)
        except OSError as error:
            if error.filename is not None or error.errno not in _NO_ROOM:
                raise
            to_nowhere(sys.stdout)
            print(f"standard output: {error.strerror}", file=sys.stderr)
            return 1
        return result

    return run


def to_nowhere(stream: IO[str]) -> None:
    """The descriptor itself, since what is buffered is written once more when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
