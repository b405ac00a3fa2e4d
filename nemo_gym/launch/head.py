"""Which servers run, and how far a job is, for whoever asks from another shell.

Each run has one small server on loopback that tells, against a token, names, addresses and states; never a setting. The
token and the address are in a file that only the user can read (`web/runs.py`), and so is the key of servers on several
machines.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from nemo_gym.web.runs import RUNTIME_DIR as RUNTIME_DIR
from nemo_gym.web.runs import Run as Run
from nemo_gym.web.runs import ask as ask
from nemo_gym.web.runs import born as born
from nemo_gym.web.runs import runs as runs
from nemo_gym.web.runs import runtime_dir as runtime_dir


class Head:
    """Tells what `describe` returns; registered from `start` to `stop`."""

    def __init__(
        self,
        run_id: str,
        describe: Callable[[], dict[str, Any]],
        command: list[str],
        *,
        serves: bool = True,
        key: str = "",
    ) -> None:
        self._serves = serves
        self._key = key
        self._run_id = run_id
        self._describe = describe
        self._command = command
        self._token = secrets.token_urlsafe(24)
        self._file: Path | None = None
        self._server: Any = None

    async def start(self) -> None:
        from nemo_gym.web.serve import BackgroundServer

        from . import ports

        sock = ports.bind("127.0.0.1", None)
        self._server = BackgroundServer(self._app, sock)
        await self._server.start()
        pid = os.getpid()
        run = Run(
            self._run_id,
            pid,
            born(pid),
            ports.url(sock),
            self._token,
            time.time(),
            str(Path.cwd()),
            self._command,
            self._serves,
            self._key,
        )
        self._file = runtime_dir() / f"{self._run_id}-{pid}.json"
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(run))

    async def stop(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        if self._server is not None:
            await self._server.stop()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": message["type"] + ".complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        status, body = self._answer(scope)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, scope: Any) -> tuple[int, bytes]:
        given = dict(scope["headers"]).get(b"authorization", b"")
        if scope["path"] == "/health":
            return 200, b'{"status": "ok"}'
        if not secrets.compare_digest(given, f"Bearer {self._token}".encode()):
            return 401, b'{"error": "a token is needed; ng_status has it"}'
        if scope["path"] != "/status":
            return 404, b'{"error": "there is /status and /health"}'
        return 200, json.dumps(self._describe()).encode()
