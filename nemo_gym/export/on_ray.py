"""Work on a Ray cluster through Ray Data: a function over many items, the results in the items' order.

Every node reads the captures by the same path. Only so many results wait as the object store has room for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from ..engines import cluster

_AT_ONCE = 256
"""Items of one dataset: its plan is in memory."""


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Joins the Ray at `address` (`auto` or host:port), or with `local` starts one."""
    import ray

    if ray.is_initialized():  # the caller's own
        yield
        return
    asyncio.run(cluster.connect(address, os.cpu_count() or 1))
    try:
        yield
    finally:
        asyncio.run(cluster.disconnect())


def over(function: Callable[[bytes], bytes], items: Iterable[bytes]) -> Iterator[bytes]:
    from ray import data

    context = data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    items = iter(items)
    while some := list(islice(items, _AT_ONCE)):
        dataset = data.from_items([{"item": one} for one in some], override_num_blocks=len(some))
        for row in dataset.map(lambda row: {"made": function(row["item"])}).iter_rows():
            yield row["made"]
