"""A caller that hangs up ends the work that was done for it.

Without this a rollout whose deadline has passed would go on calling the model. What is already answered, and the
background work that follows an answer, is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BUFFERED = 16


class CancelOnHangUp:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages: asyncio.Queue[Message] = asyncio.Queue(_BUFFERED)
        answered = False

        async def pump() -> None:
            while True:
                message = await receive()
                await messages.put(message)
                if message["type"] == "http.disconnect":
                    return

        async def noting(message: Message) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        work = asyncio.ensure_future(self._app(scope, messages.get, noting))
        pumping = asyncio.create_task(pump())
        try:
            await asyncio.wait({work, pumping}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not answered:
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
                return
            await work
        finally:
            for task in (work, pumping):
                task.cancel()
