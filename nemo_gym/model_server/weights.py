"""`POST /weights`, `/sleep`, `/wake`: a trainer gives this server's engines new weights, or has their GPUs for a while.

An admin or loopback may. The answer comes when it is done; what is wrong with a request is told before anything stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ..config import paths
from ..exchange.errors import ModelError
from .delivery import Delivery
from .policy import LIMIT
from .records import is_admin
from .status import error_body

if TYPE_CHECKING:
    from ..engines.weights import Weights
    from .app import ModelApp

PATHS = ("/weights", "/sleep", "/wake")


class _Load(Struct, forbid_unknown_fields=True):
    path: Annotated[str, Meta(min_length=1)]
    policy_version: Annotated[int, Meta(ge=0, lt=LIMIT)] | None = None
    in_flight: Literal["wait", "keep", "abort"] | None = None


class _Sleep(Struct, forbid_unknown_fields=True):
    level: Literal[1, 2] = 1
    in_flight: Literal["wait", "abort"] | None = None


class _Wake(Struct, forbid_unknown_fields=True):
    pass


_ASKED: dict[str, Any] = {"/weights": _Load, "/sleep": _Sleep, "/wake": _Wake}


async def answer(app: ModelApp, path: str, scope: Any, receive: Any, delivery: Delivery) -> None:
    """The routes, for POST."""
    if not is_admin(scope, app.admin_key):
        await delivery.whole(error_body("the admin key is needed here", "auth"), 401)
        return
    body, problem = await app.body(receive, scope["headers"])
    if problem is None:
        try:
            await delivery.whole(await _done(app, path, body))
            return
        except ModelError as error:
            problem = error
    again = [(b"retry-after", b"%d" % max(1, round(problem.retry_after)))] if problem.retry_after is not None else []
    await delivery.whole(error_body(problem.message, problem.kind), problem.status, again)


async def _done(app: ModelApp, path: str, body: bytes) -> dict[str, Any]:
    weights = app.server.weights
    if weights is None:
        words = "this server has no engines of its own: the trainer that has them says PUT /policy_version"
        raise ModelError(501, "invalid", words)
    try:
        asked = msgspec.json.decode(body or b"{}", type=_ASKED[path])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ModelError(400, "invalid", _told(error)) from None
    done = await _do(weights, asked)
    app.server.policy_version.value = weights.version
    return done


async def _do(weights: Weights, asked: Any) -> dict[str, Any]:
    if isinstance(asked, _Load):
        loaded = await weights.load(str(paths.locate(asked.path)), asked.policy_version, asked.in_flight)
        return dict(msgspec.to_builtins(loaded))
    if isinstance(asked, _Sleep):
        await weights.sleep(asked.level, asked.in_flight)
    else:
        await weights.wake()
    return {"state": weights.state, "policy_version": weights.version}


def _told(error: Exception) -> str:
    """msgspec's words, the field first."""
    words, _, at = str(error).partition(" - at `$.")
    return f"{at.rstrip('`')}: {words}" if at else words
