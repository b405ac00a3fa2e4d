"""/health, /ready, /v1/models and /metrics. Among workers, whichever is asked speaks for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..backends.backend import Capabilities
from ..dialects import messages
from ..dialects.failures import error_object
from ..exchange.errors import ErrorKind, ModelError
from ..web import workers
from .delivery import Delivery
from .metrics import merged

if TYPE_CHECKING:
    from .app import ModelApp
    from .server import SimpleResponsesAPIModel

_FRESH_S = 2.0
_PROBE_S = 30.0
_MESSAGES = "/v1/messages"
_PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"

Headers = list[tuple[bytes, bytes]]


class Readiness:
    """Whether the backend answers, asked at most every two seconds however often the question comes."""

    def __init__(self, server: SimpleResponsesAPIModel) -> None:
        self._server = server
        self._lock = asyncio.Lock()
        self._asked = 0.0
        self.started = False
        self.capabilities: Capabilities | None = None
        self.reason: str | None = "starting"
        self.refused = False
        """The backend answers, and takes no key of ours."""

    async def ask(self) -> bool:
        """True when the backend answered; `reason` says why it did not."""
        if not self.started:
            self.reason = self._server.starting or self.reason
            return False
        async with self._lock:
            if time.monotonic() - self._asked < _FRESH_S:
                return self.reason is None
            try:
                async with asyncio.timeout(_PROBE_S):
                    self.capabilities = await self._server.probe()
                self.reason = None
            except ModelError as error:
                self.reason = error.message
                self.refused = error.kind == "auth"
            except TimeoutError:
                self.reason = "the backend did not answer in time"
            self._asked = time.monotonic()
            return self.reason is None


class Status:
    """The routes that say how a server is."""

    def __init__(self, app: ModelApp) -> None:
        self._app = app
        self._created = int(time.time())

    async def answer(self, path: str, headers: Headers, delivery: Delivery) -> None:
        among = workers.current()
        if among is not None and among.is_worker(headers):
            among = None  # asked for this process alone
        if path == "/health":
            await delivery.whole({"status": "ok"})
        elif path == "/metrics":
            await delivery.plain(200, _PROMETHEUS, await self._metrics(among))
        elif (reason := await self._not_ready(path, among)) is not None:
            await delivery.whole(error_body(reason, "overloaded"), 503, [(b"retry-after", b"2")])
        elif path == "/ready":
            await delivery.whole({"status": "ready"} | _without_none(self._app.readiness.capabilities))
        elif (problem := self._app.unauthorised(headers)) is not None:
            await delivery.whole(error_body(problem.message, "auth"), 401)
        else:
            server = self._app.server
            names = (server.config.served_name, *server.adapters)
            await delivery.whole(models(names, self._app.readiness.capabilities, self._created))

    async def _metrics(self, among: workers.Workers | None) -> bytes:
        text = self._app.metrics.text()
        if among is None:
            return text
        return merged([text, *(body for status, body in await among.ask("/metrics") if status == 200)])

    async def _not_ready(self, path: str, among: workers.Workers | None) -> str | None:
        """Why not; None when this server, all of it, would answer a call."""
        if not await self._app.readiness.ask():
            return self._app.readiness.reason or "not ready"
        if path != "/ready":
            return None
        if self._app.capture is not None:
            try:
                self._app.capture.check()  # C7
            except ModelError as error:
                return error.message
        if among is None:
            return None
        try:
            answers = await among.ask("/ready")
        except (OSError, TimeoutError):
            return "a worker of this server does not answer"
        return next((_reason(body) for status, body in answers if status != 200), None)


def models(names: Sequence[str], capabilities: Capabilities | None, created: int) -> dict[str, Any]:
    """The body of GET /v1/models: the model first, then its adapters."""
    entries = []
    for name in names:
        entry: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "nemo_gym"}
        if capabilities is not None and capabilities.context is not None:
            entry["max_model_len"] = capabilities.context
        entries.append(entry if name == names[0] else entry | {"parent": names[0]})
    return {"object": "list", "data": entries}


def error_body(message: str, kind: ErrorKind = "invalid") -> dict[str, Any]:
    """Of a route that belongs to no dialect: as OpenAI has it (A5)."""
    return {"error": error_object(ModelError(400, kind, message))}


def route_error(path: str, status: int, message: str) -> dict[str, Any]:
    """A path or a method that is no route, in the words of the API that the path belongs to."""
    kind: ErrorKind = "not_found" if status == 404 else "invalid"
    if path.startswith(_MESSAGES):
        return messages.write_error(ModelError(status, kind, message))
    return error_body(message, kind)


def _reason(body: bytes) -> str:
    message: str = msgspec.json.decode(body)["error"]["message"]
    return message


def _without_none(value: Any) -> dict[str, Any]:
    fields = {} if value is None else msgspec.to_builtins(value)
    return {name: field for name, field in fields.items() if field is not None}
