"""The memory that a process tree takes."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_bytes(root: int) -> int:
    """The resident memory below a process, shared pages counted in each; 0 where there is no /proc."""
    children: dict[int, list[int]] = {}
    resident: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended while we looked
        pid = int(entry.name)
        children.setdefault(int(fields[1]), []).append(pid)
        resident[pid] = int(fields[21]) * _PAGE
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += resident.get(pid, 0)
        waiting += children.get(pid, [])
    return total
