"""The Ray that replicas live in: one of this process's own, on loopback and ended with it, or one that is joined.

`ray` is imported only here and below, after the environment that it reads at import is set.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

from ..config.types import is_loopback

_STORE_BYTES = 128 * 1024 * 1024
"""Replies are returned in line; weights go by path."""
_INIT_S = 300.0
_SHUTDOWN_S = 15.0
_TRIES = 3

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_LOOPBACK_ENVIRONMENT = {
    # Without it Ray's own servers listen on every interface, and one that listens on loopback alone is not found.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
_LOCAL_ENVIRONMENT = {
    **_LOOPBACK_ENVIRONMENT,
    # Ray would have its workers give way to everything else on the machine; an engine is what everything waits for.
    "RAY_worker_niceness": "0",
}


async def connect(address: str, cpus: int, *, quiet: bool = False) -> None:
    """Joins the Ray at `address` (`auto` or host:port), or with `local` starts one.

    Args:
        cpus: what a local Ray says it has: as many as the replicas ask for, since Ray starts a worker for each at once.
        quiet: what Ray's workers print stays in their logs.
    """
    # In a thread: it takes seconds.
    await asyncio.wait_for(asyncio.to_thread(connect_here, address, cpus, quiet=quiet), _INIT_S)
    _keep_sigterm()


def _keep_sigterm() -> None:
    """SIGTERM is handled as Python was told to, and by that alone: Ray has put a handler before it that prints a stack
    and aborts the process three seconds later, whatever it has still to put away."""
    if threading.current_thread() is threading.main_thread() and (handler := signal.getsignal(signal.SIGTERM)):
        signal.signal(signal.SIGTERM, handler)


def connect_here(address: str, cpus: int, *, quiet: bool = False) -> None:
    """The same, waiting. What Ray starts ends with the thread that this is called in."""
    environment = _ENVIRONMENT
    if address == "local":
        environment = environment | _LOCAL_ENVIRONMENT
    elif is_loopback(address.rpartition(":")[0]):
        environment = environment | _LOOPBACK_ENVIRONMENT
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    _init(address, cpus, quiet)


def _init(address: str, cpus: int, quiet: bool) -> None:
    import ray
    from ray._private import ray_constants

    options: dict[str, Any] = {
        "address": address,
        "logging_level": "ERROR" if quiet else "WARNING",
        "log_to_driver": not quiet,
    }
    if os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == "0":
        # What the environment says of it, where somebody had imported Ray before it said so.
        ray_constants.ENABLE_RAY_CLUSTER = False
    if address == "local":
        options |= {
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "num_cpus": cpus,
        }
    for left in reversed(range(_TRIES if address == "local" else 1)):
        try:
            ray.init(**options)
            return
        except Exception:  # a node of Ray's has 30 s to come up, which a busy machine may need more than once
            ray.shutdown()
            if not left:
                raise


async def disconnect() -> None:
    """Ends a Ray of our own, leaves one that was joined."""
    import ray

    await asyncio.wait_for(asyncio.to_thread(ray.shutdown), _SHUTDOWN_S)
