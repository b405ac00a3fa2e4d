"""`/ng-engine`: this server's engines, for other servers of the same run (`deployment:`). With the admin key, or from
loopback; no call of ours, so it is recorded where the call is.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from ..engines import remote
from ..exchange.call import Attempt
from ..exchange.errors import ModelError
from .delivery import Delivery
from .records import is_admin
from .status import error_body

if TYPE_CHECKING:
    from ..engines.engine import Engine
    from .app import ModelApp

PATH = remote.PATH
_PACKED = b"application/msgpack"


async def answer(app: ModelApp, scope: Any, receive: Any, delivery: Delivery) -> None:
    """The route, for GET and POST."""
    shared = app.server.shared_engine
    if not is_admin(scope, app.admin_key):
        await delivery.whole(error_body("the admin key is needed here", "auth"), 401)
    elif shared is None:
        await delivery.whole(error_body("this server has no engines of its own", "not_found"), 404)
    elif scope["method"] == "POST":
        await _generate(app, shared[0], scope, receive, delivery)
    elif not await app.readiness.ask():
        words = app.readiness.reason or "not ready"
        await delivery.whole(error_body(words, "overloaded"), 503, [(b"retry-after", b"2")])
    else:
        version = app.server.policy_version.value
        facts = remote.Facts(shared[1], shared[0].context, version or 0)
        await delivery.plain(200, _PACKED, remote.encode(facts))


async def _generate(app: ModelApp, engine: Engine, scope: Any, receive: Any, delivery: Delivery) -> None:
    body, problem = await app.body(receive, scope["headers"])
    if problem is not None:
        await delivery.whole(error_body(problem.message, problem.kind), problem.status)
        return
    work = asyncio.ensure_future(_answered(engine, body))
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await delivery.plain(200, _PACKED, remote.encode(work.result()))
    finally:
        for task in (work, gone):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(work, gone, return_exceptions=True)


async def _answered(engine: Engine, body: bytes) -> remote.Answer:
    attempts: list[Attempt] = []
    try:
        reply = await engine.generate(remote.read_request(body), on_attempt=attempts.append)
    except ModelError as error:
        return remote.Answer(tuple(attempts), refused=remote.refused(error))
    return remote.Answer(tuple(attempts), reply)


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
