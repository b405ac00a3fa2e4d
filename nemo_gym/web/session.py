"""Sessions by signed cookie: an environment's state for one rollout is found by `request.session[SESSION_ID_KEY]`.

The secret is drawn once per run and given to every server by the launcher, so a cookie is worth nothing elsewhere.
"""

from __future__ import annotations

import re
import secrets

from fastapi import FastAPI
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

SESSION_ID_KEY = "session_id"
GIVEN_SESSION = "nemo_gym.session_id"
"""A key of an ASGI scope: the session of a call that is made from within, where no cookie is needed."""


class _SessionId:
    """Gives every session an id; assigned each time, so that the cookie is sent again."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            session = scope["session"]
            session[SESSION_ID_KEY] = scope.get(GIVEN_SESSION) or session.get(SESSION_ID_KEY) or secrets.token_hex(16)
        await self._app(scope, receive, send)


def add_sessions(app: FastAPI, name: str, secret: str | None = None) -> None:
    """Give the app sessions, once. Without a secret of the run, one is drawn for this process."""
    if getattr(app.state, "nemo_gym_sessions", False):
        return
    app.state.nemo_gym_sessions = True
    app.state.nemo_gym_session_secret = secret = secret or secrets.token_hex(32)
    app.add_middleware(_SessionId)
    app.add_middleware(
        SessionMiddleware,
        secret_key=secret,
        session_cookie=re.sub(r"[^A-Za-z0-9_.-]", "_", name),
        max_age=None,
    )
