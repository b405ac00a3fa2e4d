"""A program that runs another within a sandbox and answers for its end: nothing that it started is left.

It stands alone: agents put this one file beside their harness, where nothing of this project is installed. Its receipt
tells whether all has ended, apart from what the command itself came to. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

DEFAULT_CLEANUP_TIMEOUT = 10.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_LOOK_S = 0.05


class CleanupReceipt(TypedDict):
    """Written when all is over."""

    cleanup_confirmed: bool
    return_code: int | None
    error: str | None
    timed_out: bool


def exec_timeout(*, timeout: float, cleanup_timeout: float = DEFAULT_CLEANUP_TIMEOUT) -> float:
    """How long whoever runs this program has to wait for it, in seconds: the command's own time, the three waits of an
    end, and the writing."""
    return timeout + 3 * cleanup_timeout + 30


class _Supervisor:
    def __init__(self, command: list[str], timeout: float, cleanup_timeout: float, stop_file: Path | None) -> None:
        self._command, self._timeout, self._cleanup, self._stop_file = command, timeout, cleanup_timeout, stop_file
        self._asked_to_stop = False
        self._process: subprocess.Popen[bytes] | None = None
        self._reaps = False

    def run(self) -> CleanupReceipt:
        receipt = CleanupReceipt(cleanup_confirmed=False, return_code=None, error=None, timed_out=False)
        signal.signal(signal.SIGTERM, self._stop)  # noted only: one that comes while the command starts loses nothing
        try:
            if not self._is_to_stop():
                self._adopt_all()
                receipt["timed_out"] = self._played()
        except Exception as error:
            receipt["error"] = str(error)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            receipt["return_code"] = self._ended()
            receipt["cleanup_confirmed"] = True
        except Exception as error:
            receipt["error"] = f"cleanup: {error}"
        return receipt

    def _stop(self, *_: Any) -> None:
        self._asked_to_stop = True

    def _is_to_stop(self) -> bool:
        """A file says it too, since a signal is lost on a program that has only begun to start."""
        return self._asked_to_stop or (self._stop_file is not None and self._stop_file.exists())

    def _adopt_all(self) -> None:
        """Whatever is started from here on is this process's to end, also what goes its own way."""
        if sys.platform != "linux":
            raise RuntimeError("processes are supervised on Linux only")
        if os.getpgrp() != os.getpid():
            os.setsid()  # who kills the group that this was started in does not kill its supervisor
        if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "the command's processes cannot be adopted")
        self._reaps = True

    def _played(self) -> bool:
        """Whether its time was over before it was."""
        process = self._process = subprocess.Popen(self._command, start_new_session=True)
        until = time.monotonic() + self._timeout
        while process.poll() is None and not self._asked_to_stop and time.monotonic() < until:
            time.sleep(_LOOK_S)
        if process.poll() is not None:
            return False
        late = not self._asked_to_stop
        process.terminate()  # it may write down how far it came
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._cleanup)
        return late

    def _ended(self) -> int | None:
        code = None
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait(self._cleanup)
        if self._reaps:
            _end_children(self._cleanup)
        return code


def _end_children(seconds: float) -> None:
    """Raises TimeoutError when some are left."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    until = time.monotonic() + seconds
    while True:
        for pid in children.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() >= until:
            raise TimeoutError("processes of the command are left")
        time.sleep(_LOOK_S / 5)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not math.isfinite(seconds) or seconds <= 0:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text}")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a command and ends all that it started.")
    parser.add_argument("--timeout", type=_seconds, required=True, help="seconds that the command may take")
    parser.add_argument("--cleanup-timeout", type=_seconds, default=DEFAULT_CLEANUP_TIMEOUT, help="seconds of its end")
    parser.add_argument("--receipt", type=Path, required=True, help="the file that tells how it ended")
    parser.add_argument("--stop-file", type=Path, help="with it there, nothing is started")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    if not command:
        parser.error("expected a command after --")
    receipt = _Supervisor(command, asked.timeout, asked.cleanup_timeout, asked.stop_file).run()
    partial = asked.receipt.with_suffix(".tmp")
    partial.write_text(json.dumps(receipt))
    partial.replace(asked.receipt)
    return 0 if receipt["cleanup_confirmed"] and receipt["error"] is None else 1


if __name__ == "__main__":
    raise SystemExit(main())
