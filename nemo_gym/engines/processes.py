"""The processes that an engine has begun in this one, and they alone: whoever else has children here keeps them.

An engine in an actor is alone in its process; one beside a Ray of this process's own is not.
"""

from __future__ import annotations

import contextlib

import psutil


class Begun:
    """Made before the engine is; what its process begins after that is the engine's, with all below it."""

    def __init__(self) -> None:
        self._others = set(psutil.Process().children())

    def all(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process().children():
            if child not in self._others:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += [child, *child.children(recursive=True)]
        return found

    def kill(self) -> None:
        for process in self.all():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def shared_memory(self) -> set[str]:
        """The segments over which vLLM's processes talk; nobody else frees those of a killed one."""
        maps: set[str] = set()
        for process in self.all():
            with contextlib.suppress(psutil.Error):
                maps.update(entry.path for entry in process.memory_maps() if entry.path.startswith("/dev/shm/psm_"))
        return maps
