"""Work on a Ray cluster through Ray Data: a function over many items, the results in the items' order.

Every node reads the captures by the same path. Only so many results wait as the object store has room for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NoReturn

from ..engines import cluster
from .options import ExportError

_AT_ONCE = 256
"""Items of one dataset: its plan is in memory."""

_ANSWER_S = 10.0


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Joins the Ray at `address` (`auto` or host:port), or with `local` starts one."""
    if _is_connected():
        yield
        return
    _answers(address)
    with _sigterm_in_order() as keep:
        try:
            _connect(address, keep)
            yield
        finally:
            asyncio.run(cluster.disconnect())


def _connect(address: str, keep: Callable[[], None]) -> None:
    try:
        cluster.connect_here(address, os.cpu_count() or 1)
    except SystemExit:  # of the handler of SIGTERM that Ray has while it starts
        keep()
        signal.raise_signal(signal.SIGTERM)
        raise
    keep()


@contextmanager
def _sigterm_in_order() -> Iterator[Callable[[], None]]:
    """SIGTERM is handled as the caller has it handled, and ends the process in order where nobody does: half an export
    and a Ray of its own are put away. What is given is to be called once Ray is there, which has a handler of its own
    that aborts."""
    kept = signal.getsignal(signal.SIGTERM)
    if kept is None or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    handler = _end if kept == signal.SIG_DFL else kept

    def keep() -> None:
        signal.signal(signal.SIGTERM, handler)

    try:
        yield keep
    finally:
        signal.signal(signal.SIGTERM, kept)


def _end(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _answers(address: str) -> None:
    """Raises ExportError where nobody listens: Ray itself goes on trying for a minute and more."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:  # `auto`, `local`, and what only Ray can read
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise ExportError(f"ray: there is no Ray at {address}: {words}") from error


def _is_connected() -> bool:
    """Whether the caller is; Ray is not imported to find out, since it reads its environment then."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def over(function: Callable[[bytes], bytes], items: Iterable[bytes]) -> Iterator[bytes]:
    from ray import data

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # it tells of each dataset; what fails is raised
    context = data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    items = iter(items)
    while some := list(islice(items, _AT_ONCE)):
        dataset = data.from_items([{"item": one} for one in some], override_num_blocks=len(some))
        for row in dataset.map(lambda row: {"made": function(row["item"])}).iter_rows():
            yield row["made"]
