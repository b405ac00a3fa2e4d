"""vLLM's own processes, forked from one that has imported vLLM already.

An engine is three processes, and each would import vLLM anew: most of a start. Here one process imports it
while the actor does; the engine's core is forked from that one, and the worker from the core. For the CPU
build alone: a process that is forked cannot take CUDA along. What a spawned process would have read from its
environment at its start (thread numbers, the cores they keep to) is applied after the fork instead. A forked
process ends with the process that asked for it.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import logging
import multiprocessing
import os
import re
import select
import signal
import threading
from collections.abc import Iterator
from multiprocessing.context import BaseContext, ForkContext, ForkProcess, ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path

logger = logging.getLogger(__name__)

_IMPORTS = ("vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor", "vllm.v1.worker.cpu_worker")
_LOADED_FIRST = (
    ("vllm", "libs/libtcmalloc*.so*"),
    ("torch", "lib/libgomp*.so*"),
    ("torch", "../torch.libs/libgomp*.so*"),
)


def begin() -> None:
    """Starts the process to fork from, and has vLLM use it in this one. Before vLLM is imported here."""
    multiprocessing.set_forkserver_preload([f"{__package__}.preloaded"])
    with _libraries_loaded_first():
        ensure_running()
    _use(_CoreContext())


def preload() -> None:
    """In the process to fork from: all that an engine needs, imported. What fails here fails again, and is told,
    where it is needed."""
    with contextlib.suppress(ImportError):
        # It looks for the title's place once, which it finds only before the environment is changed.
        importlib.import_module("setproctitle").getproctitle()
    try:
        _use(_WorkerContext())
        for name in _IMPORTS:
            importlib.import_module(name)
    except Exception:
        logger.exception("vLLM could not be imported ahead")


def _use(context: BaseContext) -> None:
    # vLLM's modules take the function by name, so it is replaced before they are imported.
    importlib.import_module("vllm.utils.system_utils").get_mp_context = lambda: context  # type: ignore[attr-defined]


class _Core(ForkServerProcess):
    """Asked for by the actor; a child of the process that it is forked from."""

    def start(self) -> None:
        self._asked_by = os.getpid()
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        _end_with(self._asked_by)
        # It only schedules; and a process whose threads have worked together leaves a fork of it hanging.
        _set_threads(1)
        super().run()


class _Worker(ForkProcess):
    """A child of the core."""

    def run(self) -> None:
        _end_with(os.getppid())
        cores = os.environ.get("GOMP_CPU_AFFINITY") or os.environ.get("OMP_PLACES", "")
        if cores:
            os.sched_setaffinity(0, {int(core) for core in re.findall(r"\d+", cores)})
        _set_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
        super().run()


class _CoreContext(ForkServerContext):
    Process = _Core


class _WorkerContext(ForkContext):
    Process = _Worker


@contextlib.contextmanager
def _libraries_loaded_first() -> Iterator[None]:
    """What vLLM would have its processes load before all else, in the environment."""
    before = os.environ.get("LD_PRELOAD")
    found = [before] if before else []
    for package, pattern in _LOADED_FIRST:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            found += sorted(glob.glob(str(Path(spec.origin).parent / pattern)))[:1]
    os.environ["LD_PRELOAD"] = ":".join(found)
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"]
        if before:
            os.environ["LD_PRELOAD"] = before


def _end_with(pid: int) -> None:
    """Ends this process when `pid` has ended, however it does."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait() -> None:
        select.select([watched], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="end-with-asker", daemon=True).start()


def _set_threads(number: int) -> None:
    import torch

    torch.set_num_threads(number)
