"""Work on a Ray cluster through Ray Data: a function over many items, the results in the items' order.

Every node reads the captures by the same path. Only so many results wait as the object store has room for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from ..engines import cluster
from .options import ExportError

_AT_ONCE = 256
"""Items of one dataset: its plan is in memory."""

_ANSWER_S = 10.0


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Joins the Ray at `address` (`auto` or host:port), or with `local` starts one."""
    own = not _is_connected()
    if own:
        _answers(address)
        cluster.connect_here(address, os.cpu_count() or 1)
    try:
        yield
    finally:
        if own:
            asyncio.run(cluster.disconnect())


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
