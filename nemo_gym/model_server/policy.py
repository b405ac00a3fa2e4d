"""`PUT /policy_version`: a trainer that owns the engines says which weights they have; an admin or loopback may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .delivery import Delivery
from .records import is_admin
from .status import error_body

if TYPE_CHECKING:
    from .app import ModelApp

PATH = "/policy_version"
LIMIT = 2**31


async def answer(app: ModelApp, scope: Any, receive: Any, delivery: Delivery) -> None:
    """The route, for GET and PUT."""
    held = app.server.policy_version
    if not is_admin(scope, app.admin_key):
        await delivery.whole(error_body("the admin key is needed here", "auth"), 401)
        return
    if scope["method"] == "GET":
        await delivery.whole({"policy_version": held.value})
        return
    body, problem = await app.body(receive, scope["headers"])
    if problem is not None:
        await delivery.whole(error_body(problem.message), problem.status)
        return
    if app.server.weights is not None:
        words = "the engines of this server say their own version: new weights come with POST /weights"
        await delivery.whole(error_body(words), 409)
        return
    version = _version(body)
    if version is None:
        words = f'policy_version: expected a whole number from 0 to {LIMIT - 1}, as in {{"policy_version": 7}}'
        await delivery.whole(error_body(words), 400)
        return
    held.value = version
    await delivery.whole({"policy_version": version})


def _version(body: bytes) -> int | None:
    try:
        version = msgspec.json.decode(body)["policy_version"]
    except (msgspec.DecodeError, UnicodeError, LookupError, TypeError):
        return None
    good = isinstance(version, int) and not isinstance(version, bool) and 0 <= version < LIMIT
    return version if good else None
