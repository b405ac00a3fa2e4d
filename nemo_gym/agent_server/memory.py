"""The memory that a process tree takes; to know it costs as much as the tree is large, however busy the machine is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_bytes(root: int) -> int:
    """The resident memory of a process and of all below it, shared pages counted in each; 0 where there is no /proc."""
    below = _children_named() or _children_found().get
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        try:
            total += int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE
            waiting += below(pid) or ()
        except (OSError, IndexError):
            continue  # ended while we looked
    return total


def _children_named() -> Callable[[int], list[int] | None] | None:
    """Children as the kernel names them, by thread; None where it does not."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return None

    def below(pid: int) -> list[int]:
        threads = os.listdir(f"/proc/{pid}/task")
        return [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]

    return below


def _children_found() -> Mapping[int, list[int]]:
    """The same by asking every process for its parent."""
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            parent = int(_read(f"/proc/{entry}/stat").rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # ended while we looked
        children.setdefault(parent, []).append(int(entry))
    return children


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
