"""Routes and limits of a model server, as a plain ASGI application.

Every route exists also below `/ng-rollout/<id>/`. A query string never matters to routing (A1).
The backend starts beside the application, so that `/health` answers at once and `/ready` tells the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, Any

from ..capture.redact import Redactor
from ..capture.served import ServedCalls
from ..capture.writer import ShardWriter
from ..config.secrets import secret_values
from ..dialects import signature
from ..dialects.elements import Elements
from ..dialects.registry import with_reasoning
from ..exchange.errors import ModelError
from ..lineage.tree import Lineage
from ..web import client
from ..web.correlation import is_trainable, session_id, split_rollout
from ..web.guard import admits
from ..web.service import ServerContext
from . import counting, engines, policy, weights
from .adapt import Adapter
from .admission import Admission
from .answer import Answer
from .deadlines import Deadlines
from .delivery import Delivery
from .encoded import plain
from .metrics import Metrics
from .records import Records
from .reuse import Reuse
from .status import Readiness, Status, error_body, route_error
from .stored import StoredResponses

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
        self.admin_key = context.admin_key if context is not None else ""
        self._capture_settings = (context.capture if context is not None else None) or {"enabled": False}
        self.raw = self._capture_settings.get("raw", "off")
        self.redactor = Redactor()
        self.capture: ShardWriter | None = None
        self.served: ServedCalls | None = None
        if self.admin_key:
            signature.use_secret(self.admin_key)  # drawn once a run: its servers know each other's signatures
        self._dialects = with_reasoning(config.reasoning_shape)
        self.elements = {dialect.name: Elements() for dialect in self._dialects.values()}
        self.lineage = Lineage()
        self.reuse = Reuse()
        kept = self._capture_settings.get("enabled", True)
        self.stored = StoredResponses(str(self._capture_settings["dir"]) if kept else None)
        self.adapter = Adapter(server)
        self.policy_version = server.policy_version
        self.admission = Admission(*server.admits)
        self.deadlines = Deadlines(config.timeout_s)
        self._commits = Deadlines(config.stream_commit_s)
        self.metrics = Metrics(self.admission)
        self.readiness = Readiness(server)
        self._status = Status(self)
        self._records = Records(self)
        self._starting: asyncio.Task[None] | None = None
        self._warned_without_rollout = False
        self._calls = 0
        self.answers: dict[str | None, set[Answer]] = {}
        """Those in the making, by rollout."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            delivery = Delivery(scope, send, self._commits, keepalive_s=self.server.config.keepalive_s)
            try:
                await self._route(scope, receive, delivery)
            finally:
                delivery.end()
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

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
        self.redactor = Redactor(values={*config.api_keys, self.admin_key, *secret_values(config.model_dump())})
        self.capture = ShardWriter(
            settings["dir"],
            config.name,
            self.run_id,
            settings.get("durability", "fsync"),
            redactor=self.redactor,
            **{
                name: settings[name]
                for name in ("binary", "max_shard_bytes", "max_shard_age_s", "upload")
                if name in settings
            },
        )
        self.served = ServedCalls(self.capture)

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

    async def _route(self, scope: Any, receive: Any, delivery: Delivery) -> None:
        headers: Headers = scope["headers"]
        method: str = scope["method"]
        try:
            rollout_id, path = split_rollout(scope["path"], headers)
        except ValueError as error:
            await self._bad_rollout(scope["path"], ModelError(400, "invalid", str(error)), receive, delivery)
            return
        dialect = self._dialects.get(path)
        if method == "POST" and (dialect is not None or path == counting.PATH):
            await self._call(dialect, rollout_id, headers, receive, delivery)
        elif method in ("GET", "HEAD") and path.startswith(_RESPONSES) and path != _RESPONSES:
            await self._stored(path.removeprefix(_RESPONSES), headers, delivery)
        elif method in ("GET", "HEAD") and path in ("/health", "/ready", "/v1/models", "/metrics"):
            await self._status.answer(path, headers, delivery)
        elif path == policy.PATH and method in ("GET", "PUT"):
            await policy.answer(self, scope, receive, delivery)
        elif path == engines.PATH and method in ("GET", "POST"):
            await engines.answer(self, scope, receive, delivery)
        elif path in weights.PATHS and method == "POST":
            await weights.answer(self, path, scope, receive, delivery)
        elif rollout_id is not None and (method, path) in (("POST", "/seal"), ("GET", "/calls")):
            await self._records.answer(path, rollout_id, scope, receive, delivery)
        elif (allowed := b"POST" if dialect is not None else _METHODS.get(path)) is not None:
            await delivery.whole(route_error(path, 405, f"{path} does not take {method}"), 405, [(b"allow", allowed)])
        else:
            await delivery.whole(route_error(path, 404, f"no such route: {method} {path}"), 404)

    async def _call(
        self, dialect: Any, rollout_id: str | None, headers: Headers, receive: Any, delivery: Delivery
    ) -> None:
        body, problem = await self.body(receive, headers)
        problem = self.unauthorised(headers) or self._too_large(headers) or problem
        if problem is None:
            body, problem = plain(body, headers, self.server.config.max_body_bytes)
        if dialect is None:
            await counting.answer(self, body, problem, delivery)
            return
        answer = Answer(self, dialect, delivery, rollout_id, body)
        answer.session_id = session_id(headers)
        if dialect.name == "messages":
            answer.betas = ",".join([value.decode("latin-1") for name, value in headers if name == b"anthropic-beta"])
        answer.trainable = answer.trainable and is_trainable(headers)
        del body  # the answer lets go of it
        self._calls += 1
        answers = self.answers.setdefault(rollout_id, set())
        answers.add(answer)
        try:
            if problem is not None:
                await answer.reject(problem)
            else:
                await answer.run()
        finally:
            self._calls -= 1
            answers.discard(answer)
            if not answers and self.answers.get(rollout_id) is answers:
                del self.answers[rollout_id]

    async def _bad_rollout(self, path: str, error: ModelError, receive: Any, delivery: Delivery) -> None:
        dialect = next((one for suffix, one in self._dialects.items() if path.endswith(suffix)), None)
        if path.endswith(counting.PATH):
            await counting.answer(self, b"", error, delivery)
        elif dialect is None:
            await delivery.whole(error_body(error.message), 400)
        else:
            body, _ = await self.body(receive, [])
            await Answer(self, dialect, delivery, None, body).reject(error)

    async def body(self, receive: Any, headers: Headers) -> tuple[bytes, ModelError | None]:
        """The whole body, or what of it fits and the reason why the rest was not read."""
        limit = self.server.config.max_body_bytes
        length = dict(headers).get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            return b"", _body_too_large(limit)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b"".join(chunks), ModelError(499, "disconnected", "the client went away in mid-request")
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                return b"", _body_too_large(limit)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks), None

    def _too_large(self, headers: Headers) -> ModelError | None:
        limit = self.server.config.max_header_bytes
        if sum([len(name) + len(value) for name, value in headers]) <= limit:
            return None
        return ModelError(431, "too_large", f"the headers are larger than {limit} bytes (max_header_bytes)")

    def unauthorised(self, headers: Headers) -> ModelError | None:
        keys = self.server.config.api_keys
        if not keys or admits(headers, keys):
            return None
        return ModelError(401, "auth", "no valid API key was given", code="invalid_api_key")

    async def _stored(self, response_id: str, headers: Headers, delivery: Delivery) -> None:
        """R11: a response by its id."""
        problem = self.unauthorised(headers)
        if problem is not None:
            await delivery.whole(error_body(problem.message, "auth"), 401)
        elif (found := await self.stored.find(response_id)) is None:
            await delivery.whole(error_body(f"there is no response {response_id!r}", "not_found"), 404)
        else:
            await delivery.whole(self._dialects["/v1/responses"].write_reply(found.reply, found.request))

    def without_rollout(self) -> None:
        """C4: such calls are counted, and the first one warns."""
        self.metrics.without_rollout()
        if not self._warned_without_rollout:
            self._warned_without_rollout = True
            log.warning("a call named no rollout; it is recorded without one (further ones are counted, not logged)")


_RESPONSES = "/v1/responses/"


def _body_too_large(limit: int) -> ModelError:
    return ModelError(413, "too_large", f"the body is larger than {limit} bytes (max_body_bytes)")


_METHODS = (
    dict.fromkeys(("/health", "/ready", "/v1/models", "/metrics"), b"GET, HEAD")
    | dict.fromkeys((counting.PATH, *weights.PATHS), b"POST")
    | {policy.PATH: b"GET, PUT", engines.PATH: b"GET, POST"}
)
"""What a route takes, by its path; those of the dialects take POST."""
