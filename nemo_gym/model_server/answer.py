"""The way of one call, the same for every dialect, streamed or not.

    read the request, find what it continues, adapt, generate, bind the tools,
    commit the record, write

Whatever happens, the call gets exactly one record, and it is durable before anything
of the answer leaves (A8, C1).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..capture.record import CallRecord, Failure, Receipt, Times
from ..dialects.dialect import Head
from ..dialects.validation import read_json, wants_stream
from ..exchange.call import Call, Prior
from ..exchange.errors import InvalidRequest, ModelError
from ..exchange.increments import fold
from ..exchange.parts import ToolCall
from ..exchange.reply import Choice, ModelReply
from ..exchange.request import ModelRequest
from ..exchange.tools import Toolbox
from .adapt import adapt
from .delivery import ClientGone, Delivery

if TYPE_CHECKING:
    from .app import ModelApp

log = logging.getLogger("nemo_gym.model_server")

_PREFIX = {"chat": "chatcmpl-", "responses": "resp_", "messages": "msg_"}


class Answer:
    """One request being answered."""

    def __init__(self, app: ModelApp, dialect: Any, delivery: Delivery, rollout_id: str | None, body: bytes) -> None:
        self.app = app
        self.dialect = dialect
        self.delivery = delivery
        self.rollout_id = rollout_id
        self.body = body
        self.received = time.time()
        self.streamed = False
        self.request: ModelRequest | None = None
        self.sent: ModelRequest | None = None
        self.call: Call | None = None
        self.parent: str | None = None
        self.relation = "first"

    async def run(self) -> None:
        """Answers; raises nothing but cancellation."""
        try:
            reply = await self._reply()
        except ClientGone:
            await self._hung_up()
        except ModelError as error:
            await self._failed(error)
        except Exception as error:
            log.exception("call failed", extra={"call_id": self.call.id if self.call else None})
            await self._failed(ModelError(500, "internal", f"internal error ({type(error).__name__})"))
        else:
            await self._answered(reply)

    async def reject(self, error: ModelError) -> None:
        """Refuses the call before it was read: limits, a missing key, a bad rollout id."""
        await self._failed(error, "disconnected" if error.kind == "disconnected" else "rejected")

    async def _reply(self) -> ModelReply:
        request = self._read()
        self.parent, self.relation, prior = self._continues(request)
        self.call = Call(request, rollout_id=self.rollout_id, prior=prior)
        self.call.received = self.received
        config = self.app.server.config
        self.sent = adapt(request, config.sampling_overrides, developer_as_system=self.app.server.developer_as_system)
        generating = asyncio.ensure_future(self._generate(self.sent, self.call))
        try:
            reply = await self.delivery.wait(generating, self._opening)
        finally:
            if not generating.done():
                generating.cancel()
                await asyncio.gather(generating, return_exceptions=True)
        return self._bound(reply, request)

    def _read(self) -> ModelRequest:
        data = read_json(self.body, status=422 if self.dialect.name == "chat" else 400)
        request = self.dialect.read_request(data)
        self.streamed = wants_stream(data)
        self.request = request
        if self.app.capture is not None:
            self.app.capture.check()  # C7: refused before the backend is asked
        return request

    def _continues(self, request: ModelRequest) -> tuple[str | None, str, Prior | None]:
        if self.rollout_id is None:
            self.app.without_rollout()
            return None, "first", None
        return self.app.lineage.find(self.rollout_id, request)

    async def _generate(self, sent: ModelRequest, call: Call) -> ModelReply:
        try:
            async with asyncio.timeout(self.app.server.config.timeout_s), self.app.admission:
                call.sent = time.time()
                return await self.app.server.generate(sent, call)
        except TimeoutError:
            raise ModelError(504, "timeout", "the call took longer than timeout_s", code="timeout") from None

    def _opening(self) -> tuple[Head, Any] | None:
        """A stream that must be opened before the reply is known (A7); None when not streamed."""
        if not self.streamed:
            return None
        head = Head(self._own_id(), self.app.server.config.served_name, int(self.received))
        return head, self.dialect.stream_writer(self.request, head)

    def _own_id(self) -> str:
        assert self.call is not None
        return _PREFIX[self.dialect.name] + self.call.id.replace("-", "")

    def _bound(self, reply: ModelReply, request: ModelRequest) -> ModelReply:
        """The reply under the names that the client declared and the ids that the stream began with."""
        if request.tools:
            toolbox = Toolbox(request.tools)
            reply = replace(reply, choices=tuple(_bind(choice, toolbox) for choice in reply.choices))
        head = self.delivery.head
        if head is not None:
            return replace(reply, id=head.id, model=head.model, created=head.created, origin=None)
        if reply.origin is None or reply.origin.dialect != self.dialect.name:
            return replace(reply, id=self._own_id())
        return reply

    async def _answered(self, reply: ModelReply) -> None:
        assert self.request is not None and self.call is not None
        try:
            await self._commit("answered", reply=reply)
        except ModelError as error:
            self._count("failed", error.kind, None)
            await self.delivery.fail(self.dialect, error, self.streamed)
            return
        self._remember(reply)
        self._count("answered", "", reply)
        if self.streamed:
            writer = self.dialect.stream_writer(self.request, Head.of(reply))
            delivered = await self.delivery.replay(writer, reply)
        else:
            delivered = await self.delivery.whole(self.dialect.write_reply(reply, self.request))
        if self.app.capture is not None:
            self.app.capture.receipt(Receipt(self.call.id, delivered, time.time()))

    async def _failed(self, error: ModelError, status: str | None = None) -> None:
        if status is None:
            status = "rejected" if self.request is None or isinstance(error, InvalidRequest) else "failed"
        if error.kind != "capture":
            try:
                await self._commit(status, error=error)
            except ModelError as problem:
                error = problem
        self._remember(None)
        self._count(status, error.kind, None)
        await self.delivery.fail(self.dialect, error, self.streamed)

    async def _hung_up(self) -> None:
        """A9: what the backend had produced is recorded; nothing more is written."""
        assert self.call is not None
        partial = None
        if self.call.increments:
            choices = tuple(
                Choice(index, parts, "cancelled") for index, parts in sorted(fold(self.call.increments).items())
            )
            partial = ModelReply(self._own_id(), self.app.server.config.served_name, int(self.received), choices)
        error = ModelError(499, "disconnected", "the client closed the connection")
        try:
            await self._commit("disconnected", reply=partial, error=error)
        except ModelError:
            log.warning("a hang-up could not be recorded", extra={"call_id": self.call.id})
        self._remember(None)
        self._count("disconnected", "disconnected", None)

    def _remember(self, reply: ModelReply | None) -> None:
        """So that later calls of the rollout find what they continue or try again."""
        if self.request is not None and self.call is not None:
            self.app.lineage.add(self.call.id, self.rollout_id, self.request, reply)

    async def _commit(self, status: str, *, reply: ModelReply | None = None, error: ModelError | None = None) -> None:
        if self.app.capture is None:
            return
        await self.app.capture.commit(self._record(status, reply, error))

    def _record(self, status: Any, reply: ModelReply | None, error: ModelError | None) -> CallRecord:
        call = self.call or Call(ModelRequest(messages=()))
        backend_dialect = reply.origin.dialect if reply is not None and reply.origin is not None else None
        app = self.app
        return CallRecord(
            call_id=call.id,
            run_id=app.run_id,
            rollout_id=self.rollout_id,
            attempt=0,
            session_id=None,
            parent_call_id=self.parent,
            relation=self.relation,  # type: ignore[arg-type]
            server=app.server.config.name,
            dialect=self.dialect.name,
            backend_dialect=backend_dialect,
            streamed=self.streamed,
            times=Times(self.received, call.sent, call.first_token, time.time()),
            attempts=tuple(call.attempts),
            status=status,
            trainable=app.server.config.trainable,
            received=self.request,
            sent=self.sent,
            reply=reply,
            error=None if error is None else Failure(error.status, error.kind, error.message),
            history=call.history,  # type: ignore[arg-type]
            prefix_break=call.prefix_break,
            logprobs_mode=call.logprobs_mode,  # type: ignore[arg-type]
            raw=self._raw(status),
        )

    def _raw(self, status: str) -> bytes | None:
        if self.request is None:
            return self.body
        kept = self.app.raw == "all" or (self.app.raw == "errors" and status != "answered")
        return self.call.raw if kept and self.call is not None else None

    def _count(self, status: str, kind: str, reply: ModelReply | None) -> None:
        now = time.time()
        sent = self.call.sent if self.call is not None else None
        self.app.metrics.finished(
            self.dialect.name, status, kind, now - self.received, None if sent is None else now - sent, reply
        )


def _bind(choice: Choice, toolbox: Toolbox) -> Choice:
    parts = tuple(toolbox.bind(part) if isinstance(part, ToolCall) else part for part in choice.parts)
    return choice if parts == choice.parts else replace(choice, parts=parts, origin=None)
