"""Which runs are up on this machine, read from a folder that is the user's own.

A run that was killed leaves its entry; whoever reads the folder next sees that the process is gone and clears it away.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

RUNTIME_DIR = "NEMO_GYM_RUNTIME_DIR"
_ASK_S = 3.0


class Run(msgspec.Struct, frozen=True):
    """A run's entry in the runtime folder."""

    run_id: str
    pid: int
    born: int
    url: str
    token: str
    started: float
    folder: str
    command: list[str] = []
    serves: bool = True
    """Whether it has servers that others may use; a job on another run's servers has none."""
    key: str = ""
    """What its servers ask for, where they are on several machines."""


def runs() -> list[Run]:
    """The runs of this user that are alive, oldest first; entries of dead ones are removed."""
    found = []
    for file in runtime_dir().glob("*.json"):
        try:
            run = msgspec.json.decode(file.read_bytes(), type=Run)
        except (OSError, msgspec.DecodeError):
            if time.time() - _written(file) > 60:  # one that is being written is not ours to remove
                file.unlink(missing_ok=True)
            continue
        if born(run.pid) == run.born:
            found.append(run)
        else:
            file.unlink(missing_ok=True)
    return sorted(found, key=lambda run: run.started)


def ask(run: Run) -> dict[str, Any] | None:
    """What the run's head says; None when it does not answer."""
    request = urllib.request.Request(run.url + "/status", headers={"Authorization": f"Bearer {run.token}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        contextlib.suppress(urllib.error.URLError, OSError, ValueError),
        opener.open(request, timeout=_ASK_S) as answer,
    ):
        return json.load(answer)
    return None


def runtime_dir() -> Path:
    """A folder of this user alone."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    default = Path(base) / "nemo_gym" if base else Path(tempfile.gettempdir()) / f"nemo_gym-{os.getuid()}"
    folder = Path(os.environ.get(RUNTIME_DIR) or default)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} must be a folder that only you can read; remove it, or set {RUNTIME_DIR}")
    return folder


def born(pid: int) -> int:
    """When a process started, in the kernel's ticks: with the pid it names one process. 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return 0
    except (OSError, IndexError, ValueError):
        return 0
    try:  # no /proc here: the pid alone has to do
        os.kill(pid, 0)
    except OSError:
        return 0
    return 1


def _written(file: Path) -> float:
    with contextlib.suppress(OSError):
        return file.stat().st_mtime
    return time.time()
