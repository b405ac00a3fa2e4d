"""uvicorn on a socket that is bound before anyone is told of it.

SIGTERM and SIGINT end a server in order: no new connection, what runs gets a few seconds, then the lifespan's end. The
signal is not raised a second time, so that what is registered with `atexit` still runs. Among workers a server
also takes the connections that the others hand over.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn

from . import workers
from .memory import Trimmer
from .protocol import HttpProtocol

GRACE_S = 3.0
_KEEPALIVE_S = 75  # longer than a client's own (client.py)


_SWITCH_S = 0.001
"""A thread that waits for the interpreter has it by then. With Python's 5 ms, each of a few system calls in a row costs
the captures' writer as much on a busy server: a sync of 5 ms takes 16."""


def settle_interpreter() -> None:
    """What is loaded by now lives for good: the collector need not look at it again, and at the rest more rarely."""
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class _Server(uvicorn.Server):
    freeze = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        kept = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.freeze:
            settle_interpreter()
            Trimmer().start()
        among = workers.current()
        if among is not None:
            among.open(self._adopted)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        among = workers.current()
        if among is not None:
            among.close()
        await super().shutdown(sockets)

    def _adopted(self, begins_with: bytes) -> asyncio.Protocol:
        return HttpProtocol(self.config, self.server_state, self.lifespan.state, begins_with=begins_with)


def _server(app: Any) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=HttpProtocol,
            ws="none",
            interface="asgi3",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEPALIVE_S,
            timeout_graceful_shutdown=int(GRACE_S),
            backlog=2048,
        )
    )


def serve(app: Any, sock: socket.socket) -> None:
    """Serve until a signal; ends the process with 3 when the app could not start."""
    server = _server(app)
    server.freeze = True
    server.run(sockets=[sock])
    if not server.started:
        sys.exit(3)


class BackgroundServer:
    """An app served from within a running loop, whose process keeps its own signal handlers."""

    def __init__(self, app: Any, sock: socket.socket) -> None:
        self._server = _server(app)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        self._sock = sock
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._sock]))
        while not self._server.started and not self._task.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        if self._task is not None:
            self._server.should_exit = True
            await self._task
