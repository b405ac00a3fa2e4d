"""`count_tokens` of Messages: how many tokens the prompt of a request would be (M4).

Counted by the backend with the served model's tokenizer and template, or not at all: a guess would mislead an agent
that compacts by it. Nothing is generated, so there is no record.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..dialects import messages
from ..dialects.validation import read_json
from ..exchange.errors import ModelError
from ..exchange.ids import uuid7
from .delivery import Delivery

if TYPE_CHECKING:
    from .app import ModelApp

PATH = "/v1/messages/count_tokens"
log = logging.getLogger("nemo_gym.model_server")


async def answer(app: ModelApp, body: bytes, problem: ModelError | None, delivery: Delivery) -> None:
    try:
        if problem is not None:
            raise problem
        await delivery.whole({"input_tokens": await _count(app, body)})
    except ModelError as error:
        await _fail(error, delivery)
    except Exception as error:
        log.error("tokens could not be counted", exc_info=error)
        await _fail(ModelError(500, "internal", f"internal error ({type(error).__name__})"), delivery)


async def _count(app: ModelApp, body: bytes) -> int:
    request = messages.read_count(read_json(body))
    app.adapter.check(request)
    if not app.readiness.started:
        raise ModelError(503, "overloaded", "the backend is not ready yet", retry_after=1.0)
    sent = app.adapter.adapt(request, app.readiness.capabilities)
    try:
        async with asyncio.timeout(app.server.config.timeout_s):
            return await app.server.count(sent)
    except TimeoutError:
        raise ModelError(504, "timeout", "the backend did not count in time", code="timeout") from None


async def _fail(error: ModelError, delivery: Delivery) -> None:
    error.call_id = uuid7()
    await delivery.fail(messages, error, streamed=False)
