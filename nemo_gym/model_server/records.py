"""Routes that speak of one rollout's record: its calls, whole, and its seal. With the admin key, or from loopback."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from hmac import compare_digest
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec
from msgspec.structs import replace

from ..capture.record import INCOMPLETE, CallRecord, to_json
from ..exchange.errors import ModelError
from ..web.correlation import api_key
from .delivery import Delivery
from .status import error_body

if TYPE_CHECKING:
    from ..capture.served import ServedCalls
    from ..capture.writer import ShardWriter
    from .app import ModelApp

_SETTLE_S = 5.0
ARROW = "application/vnd.apache.arrow.stream"
LINES = "application/x-ndjson"
_FORMATS = {"jsonl": LINES, "arrow": ARROW}


class Records:
    def __init__(self, app: ModelApp) -> None:
        self._app = app

    async def answer(self, path: str, rollout_id: str, scope: Any, receive: Any, delivery: Delivery) -> None:
        if not is_admin(scope, self._app.admin_key):
            await delivery.whole(error_body("the admin key is needed here", "auth"), 401)
        elif self._app.capture is None or self._app.served is None:
            await delivery.whole(error_body("capture is off on this server"), 400)
        elif path == "/calls":
            await self._calls(self._app.served, rollout_id, scope, delivery)
        else:
            await self._seal(self._app.capture, rollout_id, receive, delivery)

    async def _calls(self, served: ServedCalls, rollout_id: str, scope: Any, delivery: Delivery) -> None:
        try:
            kind = _asked_for(scope)
        except ValueError as error:
            await delivery.whole(error_body(str(error)), 400)
            return
        if kind == ARROW:
            data = await served.arrow(rollout_id)
        else:
            data = b"".join(map(self._line, await served.records(rollout_id)))
        await delivery.plain(200, kind.encode(), data)

    def _line(self, record: CallRecord) -> bytes:
        """As JSON, without secrets (C8): what memory still holds is told as the disk has it."""
        redactor = self._app.redactor
        raw = None if record.raw is None else redactor.raw(record.raw)
        line = msgspec.json.encode(to_json(replace(record, raw=raw)))
        return (redactor.raw(line) if redactor.knows(line) else line) + b"\n"

    async def _seal(self, capture: ShardWriter, rollout_id: str, receive: Any, delivery: Delivery) -> None:
        body, problem = await self._app.body(receive, [])
        try:
            stated = msgspec.json.decode(body or b"{}")
            incomplete = stated.get("incomplete")
        except (msgspec.DecodeError, AttributeError, UnicodeError):
            problem, incomplete = ModelError(400, "invalid", "expected a JSON object"), None
        if incomplete is not None and incomplete not in INCOMPLETE:
            problem = ModelError(400, "invalid", f"incomplete: expected null or one of {', '.join(INCOMPLETE)}")
        if problem is not None:
            await delivery.whole(error_body(problem.message), problem.status)
            return
        await self._settle(rollout_id)
        try:
            seal = await capture.seal(rollout_id, incomplete)
        except ModelError as error:
            await delivery.whole(error_body(error.message, error.kind), error.status, [(b"retry-after", b"5")])
            return
        self._app.lineage.close(rollout_id)
        self._app.reuse.close(rollout_id)
        await delivery.whole(seal)

    async def _settle(self, rollout_id: str) -> None:
        """What the rollout left in flight is recorded before the seal speaks of it."""
        end = time.monotonic() + _SETTLE_S
        while (answers := self._app.answers.get(rollout_id)) and time.monotonic() < end:
            for answer in answers:
                answer.abandon()
            await asyncio.sleep(0.01)


def is_admin(scope: Any, key: str) -> bool:
    """Whether a request comes with the admin key or from this machine."""
    if key and compare_digest((api_key(scope["headers"]) or "").encode(), key.encode()):
        return True
    client = scope.get("client")
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def _asked_for(scope: Any) -> str:
    """The content type: `?format=` says it, else `Accept`; JSON lines where neither does. Raises ValueError."""
    said = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("format")
    if said is not None:
        if said[-1] not in _FORMATS:
            raise ValueError(f"format: expected one of {', '.join(_FORMATS)}, got {said[-1]!r}")
        return _FORMATS[said[-1]]
    accepted = [value for name, value in scope["headers"] if name == b"accept"]
    return ARROW if any(ARROW.encode() in value for value in accepted) else LINES
