"""A bug in a route is an answer like any other, so that the connection it came over stays good.

Starlette answers an unexpected exception and then raises it again, whereupon uvicorn closes the connection under the
peer that has just put it back into its pool; the next call on it, of another rollout, would fail through no fault of
its own.
"""

from __future__ import annotations

import logging

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("nemo_gym")


class AnswersBugs:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            log.exception("%s %s failed", scope["method"], scope["path"])
            await JSONResponse(repr(error), status_code=500)(scope, receive, send)
