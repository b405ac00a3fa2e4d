"""Servers forked from one process that has imported what they have in common (preloaded.py).

What cannot be forked is started anew, with the same outcome but later: a server with an environment of its own, one
whose folder has modules by the names of what is loaded, one where this process's environment has changed meanwhile, and
any at all when the process to fork from does not answer, or none is wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.config import paths
from nemo_gym.process import DEFAULT_GRACE_S, Child, ForkedKeeper, opened

log = logging.getLogger("nemo_gym.launch")

_PRELOADED = str(Path(__file__).with_name("preloaded.py"))
_ROOM_FOR_A_COMMAND = " " * 512
_ANSWER_S = 60.0
_LONGEST = 4096
SWITCH = "NEMO_GYM_FORK_SERVERS"
"""Of the environment: with 0, every server is started anew."""
_POSSIBLE = sys.platform == "linux" and hasattr(os, "pidfd_open")


class ForkServer:
    """The process to fork from; made from the main thread, with which it ends."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._environment = dict(os.environ)
        self._path = search_path(os.environ)
        self._turn = asyncio.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", _PRELOADED, str(theirs.fileno()), str(os.getpid()), _ROOM_FOR_A_COMMAND],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=self._environment | {"PYTHONPATH": os.pathsep.join(self._path)},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def fits(self) -> bool:
        """Whether it lives, in the environment that this process has now."""
        return self._process.poll() is None and self._environment == dict(os.environ)

    def expect(self, files: Sequence[Path]) -> None:
        """These entrypoints are to be started soon: what they need is imported as far as there is time."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"expected": [str(file) for file in files]}).encode())

    async def start(
        self, file: Path, command: Sequence[str], sock: socket.socket, context: bytes, log_path: Path
    ) -> Child | None:
        """The server, forked; None where it cannot be.

        Args:
            command: what it is shown as.
        """
        async with self._turn:
            try:
                return await self._forked(file, command, sock, context, log_path)
            except (OSError, TimeoutError) as error:
                log.warning("servers are started one by one, not forked: %s", error or "no answer")
                self.close()
            except asyncio.CancelledError:
                self.close()  # an answer that nobody reads would be taken for the next one's
                raise
        return None

    async def _forked(
        self, file: Path, command: Sequence[str], sock: socket.socket, context: bytes, log_path: Path
    ) -> Child | None:
        if not self.fits:
            return None
        request = {
            "file": str(file),
            "command": list(command),
            "cwd": os.getcwd(),
            "grace": DEFAULT_GRACE_S,
            "path": [str(file.parent), *search_path(os.environ, file)],
            "ours": self._path,
        }
        with opened(context, log_path) as given:
            report, reported = os.pipe()
            fds = [given.document.fileno(), given.log.fileno(), given.watched, reported, sock.fileno()]
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], fds)
                answer, pidfds = await self._answer()
            except BaseException:
                os.close(report)
                raise
            finally:
                os.close(reported)
            if pidfds:
                return given.child(ForkedKeeper(answer["pid"], pidfds[0], report))
            os.close(report)
            os.close(given.held)
        log.info("%s is started anew: %s", file.parent.name, answer["refused"])
        return None

    async def _answer(self) -> tuple[dict[str, Any], list[int]]:
        """Raises OSError, TimeoutError."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._control, readable.set)
        try:
            async with asyncio.timeout(_ANSWER_S):
                await readable.wait()
        finally:
            loop.remove_reader(self._control)
        data, fds, _, _ = socket.recv_fds(self._control, _LONGEST, 1)
        if not data:
            raise OSError("the process to fork from has ended")
        return json.loads(data), fds

    def close(self) -> None:
        """It is gone; what was forked from it is not."""
        self._control.close()
        self._process.kill()
        self._process.wait()


def search_path(env: Mapping[str, str], file: Path | None = None) -> list[str]:
    """What comes before all else on the path of a server, but its own folder."""
    roots = [] if file is None else [str(paths.root_of(file))]
    inherited = env.get("PYTHONPATH", "").split(os.pathsep)
    return list(dict.fromkeys(filter(None, [*roots, str(paths.project_root()), *inherited])))


_begun: ForkServer | None = None


def begin() -> None:
    """From here on a process imports what servers have in common; the next launcher takes it."""
    global _begun
    wanted = os.environ.get(SWITCH) != "0" and not sys.flags.safe_path
    if _POSSIBLE and wanted and _begun is None:
        with contextlib.suppress(OSError):
            _begun = ForkServer()


def expect(instances: Iterable[Any]) -> None:
    """The servers of a configuration, whether it is right or not, are to be started soon."""
    if _begun is None:
        return
    _begun.expect(
        [
            file
            for one in instances
            if isinstance(name := one.settings.get("entrypoint", "app.py"), str)
            and (file := paths.entrypoint(one.kind, one.implementation, name)).is_file()
        ]
    )


def taken() -> ForkServer | None:
    """The one that was begun, if it is of use, or a new one."""
    global _begun
    if _begun is not None and not _begun.fits:
        end()
    begin()
    found, _begun = _begun, None
    return found


def end() -> None:
    """What was begun and not taken is not needed."""
    global _begun
    if _begun is not None:
        _begun.close()
        _begun = None
