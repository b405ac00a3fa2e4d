"""Ctrl-C before there is anything to end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """An interrupt ends the process then and there: as an exception in the midst of an import it can be swallowed."""
    kept = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)
