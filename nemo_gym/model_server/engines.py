"""`/ng-engine`: this server's engines, for other servers of the same run (`deployment:`). With the admin key, or from
loopback; no call of ours, so it is recorded where the call is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from ..engines import remote
from ..engines.packed import packed
from ..exchange.call import Attempt
from ..exchange.errors import ModelError
from .delivery import Delivery
from .records import is_admin
from .status import error_body

if TYPE_CHECKING:
    from ..engines.engine import Engine, EnginePiece
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
        facts = remote.Facts(shared[1], shared[0].context, version or 0, tuple(app.server.adapters))
        await delivery.plain(200, _PACKED, packed(facts))


async def _generate(app: ModelApp, engine: Engine, scope: Any, receive: Any, delivery: Delivery) -> None:
    body, problem = await app.body(receive, scope["headers"])
    if problem is not None:
        await delivery.whole(error_body(problem.message, problem.kind), problem.status)
        return
    in_pieces = (b"accept", remote.IN_PIECES.encode()) in scope["headers"]
    work = asyncio.ensure_future(_flowing(engine, body, delivery) if in_pieces else _whole(engine, body, delivery))
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(work, gone, return_exceptions=True)


async def _whole(engine: Engine, body: bytes, delivery: Delivery) -> None:
    await delivery.plain(200, _PACKED, packed(await _answered(engine, body)))


async def _flowing(engine: Engine, body: bytes, delivery: Delivery) -> None:
    """Pieces as they come, and the answer behind them."""
    frames: asyncio.Queue[remote.Frame] = asyncio.Queue()

    async def answered() -> None:
        answer = await _answered(engine, body, lambda piece: frames.put_nowait(remote.Frame(piece)))
        frames.put_nowait(remote.Frame(answer=answer))

    async def written() -> AsyncIterator[bytes]:
        while True:
            ready = [await frames.get()]
            while not frames.empty():
                ready.append(frames.get_nowait())
            yield b"".join(map(remote.framed, ready))
            if ready[-1].answer is not None:
                return

    async with asyncio.TaskGroup() as both:
        both.create_task(answered())
        both.create_task(delivery.flow(remote.IN_PIECES.encode(), written()))


async def _answered(
    engine: Engine, body: bytes, on_piece: Callable[[EnginePiece], None] | None = None
) -> remote.Answer:
    attempts: list[Attempt] = []
    try:
        reply = await engine.generate(remote.read_request(body), on_piece, attempts.append)
    except ModelError as error:
        return remote.Answer(tuple(attempts), refused=remote.refused(error))
    return remote.Answer(tuple(attempts), reply)


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
