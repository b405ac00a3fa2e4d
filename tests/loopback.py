"""Real servers on loopback, for tests: an ASGI app under uvicorn in the running loop, with the servers' protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from nemo_gym.web.protocol import HttpProtocol


def listening() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(128)
    return sock


@asynccontextmanager
async def serving(app: Any, sock: socket.socket | None = None) -> AsyncIterator[str]:
    """The base URL of the app, up until the block ends."""
    sock = sock or listening()
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=HttpProtocol, log_level="warning", lifespan="off", timeout_graceful_shutdown=1, access_log=False
        )
    )
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 60)
