"""The way of one call, the same for every dialect, streamed or not.

    read the request, find what it continues, adapt, generate, bind the tools,
    commit the record, write

A repeat of a call that nobody received is answered with what that call was (see reuse.py).

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
from ..exchange.parts import ToolCall
from ..exchange.reply import Choice, ModelReply
from ..exchange.request import ModelRequest
from ..exchange.soundness import unsound
from ..lineage.prefix import broken
from ..web import logs
from .called import as_declared
from .delivery import ClientGone, Delivery
from .hangup import HangUp
from .reuse import Asked, Sample
from .uncalled import without_calls
from .versions import stamped

if TYPE_CHECKING:
    from .app import ModelApp

log = logging.getLogger("nemo_gym.model_server")

OVERFLOW = "context_length_exceeded"
_LEVELS = {"answered": logging.DEBUG, "rejected": logging.INFO, "disconnected": logging.INFO, "failed": logging.WARNING}
_PREFIX = {"chat": "chatcmpl-", "responses": "resp_", "messages": "msg_"}


class Answer:
    """One request being answered."""

    def __init__(self, app: ModelApp, dialect: Any, delivery: Delivery, rollout_id: str | None, body: bytes) -> None:
        self.app = app
        self.dialect = dialect
        self.delivery = delivery
        self.rollout_id = rollout_id
        self.session_id: str | None = None
        self.betas = ""
        self.trainable = app.server.config.trainable
        self.body = body
        """Let go once it was read."""
        self.size = len(body)
        self.received = time.time()
        self.streamed = False
        self.request: ModelRequest | None = None
        self.sent: ModelRequest | None = None
        self.call: Call | None = None
        self.parent: str | None = None
        self.relation = "first"
        self.earlier: Sample | None = None
        """What this call repeats (A16)."""
        self._asked: Asked | None = None
        self.generating: asyncio.Task[ModelReply] | None = None
        self.abandoned = False
        self._hang_up: HangUp | None = None
        self._recorded_as: str | None = None

    async def run(self) -> None:
        """Answers; raises nothing but cancellation."""
        logs.bind(rollout_id=self.rollout_id)
        try:
            reply = await self._reply()
        except ClientGone:
            self._no_longer_asked()
            self._hang_up = HangUp(self)
            await self._hang_up.run()
        except asyncio.CancelledError:
            await self._interrupted()
            raise
        except Exception as error:
            await self.failed(self.as_failure(error))
        else:
            await self._answered(reply)
        finally:
            self._no_longer_asked()
            self._hang_up = None
            await self.stop_generating()

    async def reject(self, error: ModelError) -> None:
        """Refuses the call before it was read: limits, a missing key, a bad rollout id."""
        await self.failed(error, "disconnected" if error.kind == "disconnected" else "rejected")

    def abandon(self) -> None:
        """The rollout has ended: nobody waits for this call, and no repeat will come for it."""
        self.abandoned = True
        if self._hang_up is not None:
            self._hang_up.expire()

    async def _reply(self) -> ModelReply:
        request = self._read()
        assert request.origin is not None
        body = request.origin.body
        if self.dialect.name == "responses":
            request = self.request = await self.app.stored.completed(request)
        self.earlier = await self.app.reuse.take(self.rollout_id, self.dialect.name, body)
        if self.rollout_id is not None:
            self._asked = Asked(self.dialect.name, body, lambda: self.delivery.gone)
            self.app.reuse.enter(self.rollout_id, self._asked)
        if self.earlier is not None:
            return await self._again(self.earlier, request)
        self.parent, self.relation, prior = self._continues(request)
        config = self.app.server.config
        relay = self.streamed and config.stream == "relay"
        self.call = Call(request, rollout_id=self.rollout_id, prior=prior, relay=self.delivery.wake if relay else None)
        self.call.received, self.call.size, self.call.betas = self.received, self.size, self.betas
        logs.bind(call_id=self.call.id)
        self.app.adapter.check_prefill(request, self.app.readiness.capabilities)
        self.sent = self.app.adapter.adapt(request, self.app.readiness.capabilities)
        self.generating = asyncio.get_running_loop().create_task(self._generate(self.sent, self.call))
        increments = self.call.increments if relay else ()
        opening = self._opening if self.streamed else None
        return self.bound(await self.delivery.wait(self.generating, opening, increments), request)

    async def _again(self, earlier: Sample, request: ModelRequest) -> ModelReply:
        """A16: what the same bytes asked for before, from its record, or from where it is being made."""
        self.parent, self.relation = earlier.call.id, "repeat"
        self.call = Call(request, rollout_id=self.rollout_id)
        self.call.received = self.received
        earlier.outcome.add_done_callback(self.delivery.wake)
        if self.streamed and earlier.call.relayed:
            earlier.call.relay = self.delivery.wake
            return self.bound(
                await self.delivery.wait(earlier.outcome, self._opening, earlier.call.increments), request
            )
        opening = self._opening if self.streamed else None
        return self.bound(await self.delivery.wait(earlier.outcome, opening), request)

    def _read(self) -> ModelRequest:
        known = self.app.elements[self.dialect.name]
        data = read_json(self.body, status=422 if self.dialect.name == "chat" else 400, decode=known.decode)
        request = self.dialect.read_request(data)
        self.app.adapter.check(request)
        self.streamed = wants_stream(data)
        self.request, self.body = request, b""
        if self.app.capture is not None:
            self.app.capture.check()  # C7: refused before the backend is asked
        return request

    def _continues(self, request: ModelRequest) -> tuple[str | None, str, Prior | None]:
        if self.rollout_id is None:
            self.app.without_rollout()
        return self.app.lineage.find(self._conversation, request)

    @property
    def _conversation(self) -> str | None:
        """Whose calls continue one another: a rollout's, else those of the client's own session (C4)."""
        if self.rollout_id is not None or self.session_id is None:
            return self.rollout_id
        return f"session {self.session_id}"  # no rollout's id has a space

    async def _generate(self, sent: ModelRequest, call: Call) -> ModelReply:
        call.until = self.app.deadlines.begin(self._too_late)  # this task does nothing else, and ends with it
        try:
            async with self.app.admission:
                call.sent = time.time()
                version = self.app.policy_version.value
                try:
                    reply = await self.app.server.generate(sent, call)
                finally:
                    call.replied = time.time()
            self._check(reply)
            return stamped(reply, version)
        except (TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not call.late:
                raise
            raise ModelError(504, "timeout", "the call took longer than timeout_s", code="timeout") from None
        finally:
            self.app.deadlines.end(self._too_late)
            self.delivery.wake()  # the end of the task would tell a round of the loop later

    def _check(self, reply: ModelReply) -> None:
        if wrong := unsound(reply):
            raise ModelError(502, "backend", f"the backend's reply is malformed: {wrong}")
        if self.dialect.name != "responses" and "cancelled" in [choice.finish for choice in reply.choices]:
            raise ModelError(502, "backend", "the backend cancelled the reply")  # A19: no other dialect can say so

    def _too_late(self) -> None:
        assert self.call is not None and self.generating is not None
        self.call.late = True
        self.generating.cancel()

    def _opening(self) -> tuple[Head, Any]:
        """A stream that must be opened before the reply is known (A7)."""
        assert self.call is not None
        begun = (self.call if self.earlier is None else self.earlier.call).begun
        name = self.app.server.config.served_name
        if begun is None:
            head = Head(self._own_id(), name, int(self.received))
        elif begun.origin is not None and begun.origin.dialect == self.dialect.name:
            head = Head(
                begun.id or self._own_id(), begun.model or name, begun.created or int(self.received), begun.origin
            )
        else:
            head = Head(self._own_id(), begun.model or name, begun.created or int(self.received))
        return head, self.dialect.stream_writer(self.request, head)

    def _own_id(self) -> str:
        assert self.call is not None
        return _PREFIX[self.dialect.name] + self.call.id.replace("-", "")

    def bound(self, reply: ModelReply, request: ModelRequest) -> ModelReply:
        """The reply under the names that the client declared and the ids that the stream began with."""
        if ToolCall in [type(part) for choice in reply.choices for part in choice.parts]:
            reply = without_calls(reply) if request.tool_choice == "none" else as_declared(reply, request)
        head = self.delivery.head
        if head is not None:
            origin = None if head.origin is None else reply.origin
            return replace(reply, id=head.id, model=head.model, created=head.created, origin=origin)
        if self.earlier is not None:
            return reply  # under its own ids: a client may have seen a part of it
        if reply.origin is None or reply.origin.dialect != self.dialect.name:
            return replace(reply, id=self._own_id(), created=reply.created or int(self.received))
        if not (reply.id and reply.model and reply.created):  # B2: filled once
            return replace(
                reply,
                id=reply.id or self._own_id(),
                model=reply.model or self.app.server.config.served_name,
                created=reply.created or int(self.received),
            )
        return reply

    async def _answered(self, reply: ModelReply) -> None:
        try:
            await self.commit("answered", reply=reply)
        except ModelError as error:
            self.count("failed", error=error)
            await self.delivery.fail(self.dialect, error, self.streamed)
            self._undelivered(None)
            return
        self.remember(reply)
        self.count("answered", reply)
        delivered = await self._deliver(reply)
        self.receipt(delivered)
        if not delivered:
            self._undelivered(reply)

    async def _deliver(self, reply: ModelReply) -> bool:
        assert self.request is not None
        if self.streamed:
            writer = self.delivery.writer or self.dialect.stream_writer(self.request, Head.of(reply))
            return await self.delivery.replay(writer, reply)
        return await self.delivery.whole(self.dialect.write_reply(reply, self.request))

    def receipt(self, delivered: bool) -> None:
        if self.app.capture is not None and self.call is not None:
            self.app.capture.receipt(Receipt(self.call.id, delivered, time.time()))

    def _undelivered(self, reply: ModelReply | None) -> None:
        """Kept for a repeat (A16)."""
        if self.earlier is not None:
            self.app.reuse.leave(self.earlier)
        elif self.rollout_id is not None and self.call is not None and reply is not None:
            sample = Sample(self.call, self.dialect.name, self.rollout_id)
            sample.made(reply)
            self.app.reuse.leave(sample)

    async def failed(self, error: ModelError, status: str | None = None) -> None:
        if status is None:
            status = "rejected" if self.request is None or isinstance(error, InvalidRequest) else "failed"
        self.call = self.call or Call(ModelRequest(messages=()))
        reply = self._overflow(error)
        if error.kind != "capture":
            try:
                await self.commit(status, reply=reply, error=error)
            except ModelError as problem:
                error, reply = problem, None
        self.remember(None)
        self.count(status, error=error)
        error.call_id = self.call.id
        if reply is None:
            await self.delivery.fail(self.dialect, error, self.streamed)
        else:
            self.receipt(await self._deliver(reply))

    def _overflow(self, error: ModelError) -> ModelReply | None:
        """A12: a chat agent goes on from an empty reply that stopped for length; it would give up at an error."""
        if error.code != OVERFLOW or self.dialect.name != "chat" or self.request is None or self.call is None:
            return None
        choices = tuple(Choice(index, (), "length") for index in range(self.request.sampling.n))
        return self.own_reply(choices)

    def own_reply(self, choices: tuple[Choice, ...]) -> ModelReply:
        """A reply that no backend finished, under the ids that the client may have seen."""
        head = self.delivery.head or Head(self._own_id(), self.app.server.config.served_name, int(self.received))
        return ModelReply(head.id, head.model, head.created, choices)

    def as_failure(self, error: Exception) -> ModelError:
        if isinstance(error, ModelError):
            return error
        log.error("a fault of this server", exc_info=error, extra=self.ids())
        return ModelError(500, "internal", f"internal error ({type(error).__name__})")

    # ---- its early end

    def _no_longer_asked(self) -> None:
        if self._asked is not None and self.rollout_id is not None:
            self.app.reuse.exit(self.rollout_id, self._asked)
            self._asked = None

    async def _interrupted(self) -> None:
        """The server ends before the call does."""
        await self.stop_generating()
        await self.failed(ModelError(503, "overloaded", "the server is shutting down", retry_after=5.0))

    async def stop_generating(self) -> None:
        if self.generating is not None and not self.generating.done():
            self.generating.cancel()
            await asyncio.gather(self.generating, return_exceptions=True)

    # ---- the record

    def remember(self, reply: ModelReply | None) -> None:
        """So that later calls of the rollout find what they continue or try again."""
        if self.request is not None and self.call is not None and self.earlier is None:
            self.app.lineage.add(self.call.id, self._conversation, self.request, reply)
            if reply is not None and self.dialect.name == "responses":
                self.app.stored.add(self.request, reply, self.size)

    async def commit(self, status: str, *, reply: ModelReply | None = None, error: ModelError | None = None) -> None:
        if self.app.capture is None:
            return
        await self.app.capture.commit(self._record(status, reply, error))

    def _record(self, status: Any, reply: ModelReply | None, error: ModelError | None) -> CallRecord:
        call = self.call or Call(ModelRequest(messages=()))
        self._recorded_as = call.id
        backend_dialect = reply.origin.dialect if reply is not None and reply.origin is not None else None
        app = self.app
        return CallRecord(
            call_id=call.id,
            run_id=app.run_id,
            rollout_id=self.rollout_id,
            attempt=0,
            session_id=self.session_id,
            parent_call_id=self.parent,
            relation=self.relation,  # type: ignore[arg-type]
            server=app.server.config.name,
            dialect=self.dialect.name,
            backend_dialect=backend_dialect,
            streamed=self.streamed,
            times=Times(self.received, call.sent, call.first_token, time.time()),
            attempts=tuple(call.attempts),
            status=status,
            trainable=self.trainable,
            received=self.request,
            sent=self.sent,
            reply=reply,
            error=None if error is None else Failure(error.status, error.kind, error.message),
            history=call.history,  # type: ignore[arg-type]
            prefix_break=self._prefix_break(call, reply),
            logprobs_mode=call.logprobs_mode,  # type: ignore[arg-type]
            prompt_logprobs=call.prompt_logprobs,
            raw=self._raw(status),
        )

    def _prefix_break(self, call: Call, reply: ModelReply | None) -> tuple[int, str] | None:
        """What a backend that renders has said; else what the ids of both calls say."""
        prior, request = call.prior, self.sent
        if call.history is not None or prior is None or request is None or reply is None or reply.prompt_ids is None:
            return call.prefix_break
        return broken(prior, reply.prompt_ids, request, self.relation)

    def _raw(self, status: str) -> bytes | None:
        if self.request is None:
            return self.body
        kept = self.app.raw == "all" or (self.app.raw == "errors" and status != "answered")
        return self.call.raw if kept and self.call is not None else None

    def count(self, status: str, reply: ModelReply | None = None, error: ModelError | None = None) -> None:
        kind = "" if error is None else error.kind
        sent = None if self.call is None else self.call.sent
        backend = None if self.call is None or sent is None else (self.call.replied or time.time()) - sent
        seconds = time.time() - self.received
        self.app.metrics.finished(self.dialect.name, status, kind, seconds, backend, reply)
        if log.isEnabledFor(_LEVELS[status]):
            about = {"dialect": self.dialect.name, "error_kind": kind or None, "seconds": f"{seconds:.3f}"}
            words = "" if error is None else f": {error.status}, {error.message}"
            log.log(_LEVELS[status], "call %s%s", status, words, extra=about | self.ids())

    def ids(self) -> dict[str, Any]:
        """What a line of the log bears."""
        call_id = self._recorded_as if self.call is None else self.call.id
        return {"call_id": call_id, "rollout_id": self.rollout_id}
