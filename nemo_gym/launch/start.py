"""A server's process, on whatever machine: what it is told and the socket that it listens on go with it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from nemo_gym.process import Child
from nemo_gym.web.service import LISTEN_FD

from . import venv
from .forkserver import search_path


def start(file: Path, sock: socket.socket, context: bytes, env: Mapping[str, str], log_path: str | Path) -> Child:
    """Args:
    file: the server's entrypoint.
    env: of the process, but for what it needs to find its code and its socket.
    """
    return Child.start(
        venv.command(file),
        stdin=context,
        pass_fds=[sock.fileno()],
        env={
            **env,
            LISTEN_FD: str(sock.fileno()),
            "PYTHONPATH": os.pathsep.join(search_path(env, file)),
        },
        log_path=log_path,
    )
