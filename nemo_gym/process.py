"""A child process and its whole tree: started, read from, ended, never orphaned.

Each child runs under a keeper (keeper.py), which ends the tree when this process asks, and as well when this process is
gone without asking. What the child is told goes through an unnamed memory file to its standard input, so secrets are
neither in argv, nor in the environment, nor on a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

_KEEPER = str(Path(__file__).with_name("keeper.py"))
DEFAULT_GRACE_S = 5.0
_MARGIN_S = 5.0  # what the keeper may need after the grace, to kill and to reap
_TAIL_BYTES = 64 * 1024
_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """This process ends when its parent does, however that ends; at once where it is gone."""
    if sys.platform == "linux":
        libc: Any = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it was gone before the signal was asked for


def tail(path: Path, start: int = 0) -> str:
    """The end of a log, of what comes after `start`; nothing where there is none."""
    try:
        with path.open("rb") as log:
            log.seek(max(start, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace").rstrip()
    except OSError:
        return ""


class Keeper(Protocol):
    """Of `Popen` what is asked of a keeper's process."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...


class ForkedKeeper:
    """A keeper whose parent is another process of ours, so that its exit status is read, not waited for.

    Args:
        pidfd, report: descriptors, this object's from now on; the keeper writes its status to the latter's other end.
    """

    def __init__(self, pid: int, pidfd: int, report: int) -> None:
        self.pid = pid
        self._pidfd, self._report = pidfd, report
        self._status: int | None = None
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        with self._reading:
            if self._status is None and self._ended(0):
                self._status = int(os.read(self._report, 16) or 128 + signal.SIGKILL)
        return self._status

    def wait(self, timeout: float) -> int:
        """Raises TimeoutExpired."""
        self._ended(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("keeper", timeout)
        return status

    def _ended(self, timeout_s: float) -> bool:
        waiting = select.poll()
        waiting.register(self._pidfd, select.POLLIN)
        return bool(waiting.poll(max(0.0, timeout_s) * 1000))

    def __del__(self) -> None:
        os.close(self._pidfd)
        os.close(self._report)


class Opened:
    """What a keeper and its command are given: a document, a log, and a pipe whose other end is `held`."""

    def __init__(self, document: BinaryIO, log: BinaryIO, watched: int, held: int) -> None:
        self.document, self.log, self.watched, self.held = document, log, watched, held
        self.log_path, self.log_start = Path(log.name), log.tell()

    def child(self, keeper: Keeper) -> Child:
        return Child(keeper, self.held, self.log_path, self.log_start)


@contextlib.contextmanager
def opened(stdin: bytes, log_path: str | Path) -> Iterator[Opened]:
    """All of it is closed at the end, but `held` only where nothing came of it."""
    Path(log_path).parent.mkdir(parents=True, exist_ok=True)
    watched, held = os.pipe()
    try:
        with open(log_path, "ab") as log, _readable(stdin) as document:
            yield Opened(document, log, watched, held)
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(watched)


class Child:
    """One running command; made by `Child.start`, from the main thread, or forked (launch/forkserver.py)."""

    lost = ""
    """Why nothing can be asked of it any more; never so of a child of this process."""
    node = ""
    """The machine that it is on; none where it is this one."""

    def __init__(self, keeper: Keeper, pipe: int, log_path: Path, log_start: int) -> None:
        self._keeper = keeper
        self._pipe: int | None = pipe
        self.log_path = log_path
        self._log_start = log_start

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        log_path: str | Path = os.devnull,
        cwd: str | Path | None = None,
        grace_s: float = DEFAULT_GRACE_S,
    ) -> Child:
        """Start a command under a keeper; its output is appended to `log_path`.

        Args:
            stdin: all that the command will read from its standard input.
            pass_fds: descriptors that the command inherits, under the same numbers.
            grace_s: how long a SIGTERM to the keeper gives the command.
        """
        with opened(stdin, log_path) as given:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", _KEEPER, str(given.watched), str(grace_s), *map(str, argv)],
                stdin=given.document,
                stdout=given.log,
                stderr=given.log,
                pass_fds=(given.watched, *pass_fds),
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,  # a Ctrl-C in the terminal is the launcher's to handle
            )
            return given.child(keeper)

    @property
    def pid(self) -> int:
        """The keeper's pid."""
        return self._keeper.pid

    def poll(self) -> int | None:
        """None while the tree lives; then the command's exit status, 128 + n when signal n ended it."""
        return self._keeper.poll()

    def last_words(self, lines: int = 20) -> str:
        """The end of what the command has said since it started."""
        return "\n".join(tail(self.log_path, self._log_start).splitlines()[-lines:])

    def ask_to_stop(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """SIGTERM to the command; whatever is left of its tree after the grace is killed. Returns at once."""
        if self._pipe is not None and self._keeper.poll() is None:
            with contextlib.suppress(OSError):
                os.write(self._pipe, f"stop {grace_s}\n".encode())

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the tree's end; the status, or None when it has not come by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(timeout_s)
        status = self._keeper.poll()
        if status is not None:
            self._release()
        return status

    async def ended(self, timeout_s: float) -> int | None:
        """As `wait`, on a running loop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while self._keeper.poll() is None and loop.time() < until:
            await _until_gone(self._keeper.pid, until - loop.time())
        return self.wait(0)

    def stop(self, grace_s: float = DEFAULT_GRACE_S) -> int | None:
        """End the tree and wait until it is gone."""
        until = time.monotonic() + grace_s + _MARGIN_S
        self.ask_to_stop(grace_s)
        status = self.wait(until - time.monotonic())
        if status is None:
            self._release()  # end of file: the keeper gives up all patience
            status = self.wait(_MARGIN_S)
        return status

    def _release(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


async def _until_gone(pid: int, timeout_s: float) -> None:
    """Returns when a child has ended, or a while later where the system cannot tell."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        await asyncio.sleep(min(timeout_s, 0.05))
        return
    gone: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, gone.cancel)
    try:
        await asyncio.wait({gone}, timeout=timeout_s)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _readable(content: bytes) -> BinaryIO:
    """An open file without a name that holds `content`, at its start."""
    if hasattr(os, "memfd_create"):
        file: BinaryIO = os.fdopen(os.memfd_create("stdin"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(content)
    file.flush()
    file.seek(0)
    return file
