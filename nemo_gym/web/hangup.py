"""A caller that hangs up ends the work that was done for it.

Without this a rollout whose deadline has passed would go on calling the model. What is already answered, and the
background work that follows an answer, is left alone. The connection itself tells (`protocol.py`), so that a request
costs no task that waits for the caller to go.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ON_HANG_UP = "nemo_gym.on_hang_up"
"""A key of an ASGI scope: a function that takes what is to be called when the caller is gone before its answer."""


class CancelOnHangUp:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tell = scope.get(ON_HANG_UP)
        if tell is None:
            await self._app(scope, receive, send)
            return
        work = asyncio.current_task()
        assert work is not None
        answered = gone = False

        async def noting(message: Message) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        def hung_up() -> None:
            nonlocal gone
            if not answered and not work.done():
                gone = True
                work.cancel()

        tell(hung_up)
        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            if not gone or work.uncancel() > 0:  # the server itself is ending
                raise
