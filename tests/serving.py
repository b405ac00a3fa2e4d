"""A model server inside the test's own event loop, behind real HTTP on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn

from nemo_gym.model_server.app import ModelApp
from nemo_gym.model_server.server import SimpleResponsesAPIModel
from nemo_gym.web.protocol import HttpProtocol
from nemo_gym.web.service import ServerContext

ADMIN_KEY = "admin"


def recording(server: SimpleResponsesAPIModel, captures: Path | str, **capture: Any) -> ModelApp:
    """The server as an application that records there, in the run `run1`; `capture` are further settings of it."""
    context = ServerContext(
        name=server.config.name,
        kind="responses_api_models",
        implementation="in_tests",
        settings={},
        run_id="run1",
        admin_key=ADMIN_KEY,
        capture={"dir": str(captures)} | capture,
    )
    return ModelApp(server, context)


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serves an ASGI application; yields its base URL, without `/v1`."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=HttpProtocol,  # as every server of ours; it tells of hang-ups
            log_level="warning",
            lifespan="on",
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
        )
    )
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
            if running.done():
                running.result()
                raise RuntimeError("the application did not start")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listener.close()
