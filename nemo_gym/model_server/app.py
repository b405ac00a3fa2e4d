"""Routes and limits of a model server, as a plain ASGI application.

Every route exists also below `/ng-rollout/<id>/`. A query string never matters to routing (A1).
The backend starts beside the application, so that `/health` answers at once and `/ready` tells the rest.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import time
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

import msgspec

from ..capture.record import INCOMPLETE, to_json
from ..capture.redact import Redactor
from ..capture.writer import ShardWriter
from ..dialects.registry import DIALECTS
from ..exchange.errors import ModelError
from ..lineage.tree import Lineage
from ..web import client
from ..web.correlation import api_key, split_rollout
from ..web.service import ServerContext
from .adapt import Adapter
from .admission import Admission
from .answer import Answer
from .delivery import Delivery
from .metrics import Metrics
from .reuse import Reuse
from .status import Readiness, models

if TYPE_CHECKING:
    from .server import SimpleResponsesAPIModel

Headers = list[tuple[bytes, bytes]]
_SETTLE_S = 5.0

log = logging.getLogger("nemo_gym.model_server")


class ModelApp:
    """The ASGI application of one model server process."""

    def __init__(self, server: SimpleResponsesAPIModel, context: ServerContext | None = None) -> None:
        self.server = server
        config = server.config
        self.run_id = context.run_id if context is not None else ""
        self._admin_key = context.admin_key if context is not None else ""
        self._capture_settings = (context.capture if context is not None else None) or {"enabled": False}
        self.raw = self._capture_settings.get("raw", "off")
        self.capture: ShardWriter | None = None
        self.lineage = Lineage()
        self.reuse = Reuse()
        self.adapter = Adapter(server)
        self.metrics = Metrics()
        self.admission = Admission(config.max_in_flight, config.max_queue)
        self.readiness = Readiness(server)
        self._created = int(time.time())
        self._starting: asyncio.Task[None] | None = None
        self._warned_without_rollout = False
        self._calls = 0
        self._answers: dict[str | None, set[Answer]] = {}
        """Those in the making, by rollout."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    # ---- life

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        try:
            self._open_capture()
        except ModelError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        self._starting = asyncio.create_task(self._start())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._starting.cancel()
        await asyncio.gather(self._starting, return_exceptions=True)
        await self._settled()
        if self.capture is not None:
            self.capture.close()  # first: an engine takes its time, and the grace that a server is given is short
        await self.server.stop()
        await client.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _settled(self) -> None:
        """Calls that were cut off have their record; for a second at most."""
        for _ in range(50):
            if not self._calls:
                return
            await asyncio.sleep(0.02)

    def _open_capture(self) -> None:
        settings = self._capture_settings
        if not settings.get("enabled", True):
            return
        config = self.server.config
        secrets = [*config.api_keys, self._admin_key, getattr(config, "api_key", "")]
        self.capture = ShardWriter(
            settings["dir"],
            config.name,
            self.run_id,
            settings.get("durability", "fsync"),
            redactor=Redactor(values=secrets),
            **{
                name: settings[name]
                for name in ("binary", "max_shard_bytes", "max_shard_age_s", "upload")
                if name in settings
            },
        )

    async def _start(self) -> None:
        try:
            await self.server.start()
            self.readiness.started = True
            await self._refuse_a_wrong_key()
        except Exception as error:
            words = error.message if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
            log.critical("%s could not start: %s", self.server.config.name, words, exc_info=log.isEnabledFor(10))
            self.readiness.reason = words
            os.kill(os.getpid(), signal.SIGTERM)

    async def _refuse_a_wrong_key(self) -> None:
        """A backend that is not up yet is waited for; one that refuses the key will go on refusing it."""
        if not await self.readiness.ask() and self.readiness.refused:
            raise ModelError(401, "auth", f"the backend refuses the key: {self.readiness.reason}")

    # ---- requests

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        config = self.server.config
        delivery = Delivery(receive, send, commit_s=config.stream_commit_s, keepalive_s=config.keepalive_s)
        try:
            await self._route(scope, receive, delivery)
        finally:
            delivery.end()

    async def _route(self, scope: Any, receive: Any, delivery: Delivery) -> None:
        headers: Headers = scope["headers"]
        method: str = scope["method"]
        try:
            rollout_id, path = split_rollout(scope["path"], headers)
        except ValueError as error:
            await self._bad_rollout(scope["path"], ModelError(400, "invalid", str(error)), receive, delivery)
            return
        dialect = DIALECTS.get(path)
        if dialect is not None and method == "POST":
            await self._call(dialect, rollout_id, headers, receive, delivery)
        elif dialect is not None or (method, path) in _WRONG_METHOD:
            await delivery.whole(_error(f"{path} does not take {method}"), 405, [(b"allow", b"POST")])
        elif method in ("GET", "HEAD") and path in ("/health", "/ready", "/v1/models", "/metrics"):
            await self._status(path, headers, delivery)
        elif rollout_id is not None and (method, path) in (("POST", "/seal"), ("GET", "/calls")):
            await self._rollout(path, rollout_id, scope, headers, receive, delivery)
        else:
            await delivery.whole(_error(f"no such route: {method} {path}"), 404)

    async def _call(
        self, dialect: Any, rollout_id: str | None, headers: Headers, receive: Any, delivery: Delivery
    ) -> None:
        body, problem = await self._body(receive, headers)
        problem = self._unauthorised(headers) or problem
        answer = Answer(self, dialect, delivery, rollout_id, body)
        self._calls += 1
        answers = self._answers.setdefault(rollout_id, set())
        answers.add(answer)
        try:
            if problem is not None:
                await answer.reject(problem)
            else:
                await answer.run()
        finally:
            self._calls -= 1
            answers.discard(answer)
            if not answers and self._answers.get(rollout_id) is answers:
                del self._answers[rollout_id]
        self.metrics.load(self.admission.in_flight, self.admission.queued)

    async def _bad_rollout(self, path: str, error: ModelError, receive: Any, delivery: Delivery) -> None:
        dialect = next((one for suffix, one in DIALECTS.items() if path.endswith(suffix)), None)
        if dialect is None:
            await delivery.whole(_error(error.message), 400)
        else:
            body, _ = await self._body(receive, [])
            await Answer(self, dialect, delivery, None, body).reject(error)

    async def _body(self, receive: Any, headers: Headers) -> tuple[bytes, ModelError | None]:
        """The whole body, or what of it fits and the reason why the rest was not read."""
        limit = self.server.config.max_body_bytes
        too_large = ModelError(413, "too_large", f"the body is larger than {limit} bytes (max_body_bytes)")
        length = next((value for name, value in headers if name == b"content-length"), b"")
        if length.isdigit() and int(length) > limit:
            return b"", too_large
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b"".join(chunks), ModelError(499, "disconnected", "the client went away in mid-request")
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                return b"", too_large
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks), None

    def _unauthorised(self, headers: Headers) -> ModelError | None:
        keys = self.server.config.api_keys
        if not keys:
            return None
        given = api_key(headers) or ""
        if any(compare_digest(given.encode(), key.encode()) for key in keys):
            return None
        return ModelError(401, "auth", "no valid API key was given", code="invalid_api_key")

    async def _status(self, path: str, headers: Headers, delivery: Delivery) -> None:
        if path == "/health":
            await delivery.whole({"status": "ok"})
        elif path == "/metrics":
            await delivery.plain(200, b"text/plain; version=0.0.4; charset=utf-8", self.metrics.text())
        elif not await self.readiness.ask():
            reason = self.readiness.reason or "not ready"
            await delivery.whole(_error(reason, "overloaded"), 503, [(b"retry-after", b"2")])
        elif path == "/ready":
            await delivery.whole({"status": "ready"} | _without_none(self.readiness.capabilities))
        elif (problem := self._unauthorised(headers)) is not None:
            await delivery.whole(_error(problem.message, "auth"), 401)
        else:
            name = self.server.config.served_name
            await delivery.whole(models(name, self.readiness.capabilities, self._created))

    # ---- a rollout's record

    async def _rollout(
        self, path: str, rollout_id: str, scope: Any, headers: Headers, receive: Any, delivery: Delivery
    ) -> None:
        if not self._is_admin(scope, headers):
            await delivery.whole(_error("the admin key is needed here", "auth"), 401)
        elif self.capture is None:
            await delivery.whole(_error("capture is off on this server"), 400)
        elif path == "/calls":
            lines = [msgspec.json.encode(to_json(record)) + b"\n" for record in self.capture.calls(rollout_id)]
            await delivery.plain(200, b"application/x-ndjson", b"".join(lines))
        else:
            await self._seal(rollout_id, receive, delivery)

    async def _seal(self, rollout_id: str, receive: Any, delivery: Delivery) -> None:
        assert self.capture is not None
        body, problem = await self._body(receive, [])
        try:
            stated = msgspec.json.decode(body or b"{}")
            incomplete = stated.get("incomplete")
        except (msgspec.DecodeError, AttributeError, UnicodeError):
            problem, incomplete = ModelError(400, "invalid", "expected a JSON object"), None
        if incomplete is not None and incomplete not in INCOMPLETE:
            problem = ModelError(400, "invalid", f"incomplete: expected null or one of {', '.join(INCOMPLETE)}")
        if problem is not None:
            await delivery.whole(_error(problem.message), problem.status)
            return
        await self._settle(rollout_id)
        try:
            seal = await self.capture.seal(rollout_id, incomplete)
        except ModelError as error:
            await delivery.whole(_error(error.message, error.kind), error.status, [(b"retry-after", b"5")])
            return
        self.lineage.close(rollout_id)
        self.reuse.close(rollout_id)
        await delivery.whole(seal)

    async def _settle(self, rollout_id: str) -> None:
        """What the rollout left in flight is recorded before the seal speaks of it."""
        end = time.monotonic() + _SETTLE_S
        while (answers := self._answers.get(rollout_id)) and time.monotonic() < end:
            for answer in answers:
                answer.abandon()
            await asyncio.sleep(0.01)

    def _is_admin(self, scope: Any, headers: Headers) -> bool:
        if self._admin_key and compare_digest((api_key(headers) or "").encode(), self._admin_key.encode()):
            return True
        client = scope.get("client")
        try:
            return client is not None and ipaddress.ip_address(client[0]).is_loopback
        except ValueError:
            return False

    def without_rollout(self) -> None:
        """C4: such calls are counted, and the first one warns."""
        self.metrics.without_rollout()
        if not self._warned_without_rollout:
            self._warned_without_rollout = True
            log.warning("a call named no rollout; it is recorded without one (further ones are counted, not logged)")


_WRONG_METHOD = {("POST", path) for path in ("/health", "/ready", "/v1/models", "/metrics")}


def _error(message: str, kind: str = "invalid") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": None, "param": None}}


def _without_none(value: Any) -> dict[str, Any]:
    fields = {} if value is None else msgspec.to_builtins(value)
    return {name: field for name, field in fields.items() if field is not None}
