"""One vLLM actor as the server sees it: its load, its state, and its failures as ModelErrors.

A replica that fails in a way that a restart mends is not asked again until it has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

from ..exchange.errors import ModelError
from ..exchange.reply import Finish, TokenTrace
from .engine import EngineOutput, EnginePiece, EngineReply, EngineRequest
from .gather import Gathered
from .packed import ActorFailure, ActorOutput, ActorReply, Answered, Asked, answered, packed
from .start import explained

logger = logging.getLogger(__name__)

CHECK_S = 30.0
"""A hung worker passes vLLM's own health check; only a token that comes in time tells."""
_QUIET_S = 60.0
"""So long nothing has to come of a replica that is at work."""
_BUSY_CHECK_S = 120.0
_REVIVE_PAUSE_S = 1.0
_CLOSE_S = 6.0
ABORTED = "aborted"
"""The code of a call that the engine ended itself, to make room for new weights."""
_FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length"}


class Replica:
    """Args:
    name: in records and logs.
    handle: the actor's handle.
    restart_s: how long a restart may take before the replica is given up.
    restarts: how many a window may have.
    window_s: in which restarts are counted.
    on_change: called when its state has changed.
    renew: brings a restarted one to the current weights; raises ModelError.
    """

    def __init__(
        self,
        name: str,
        handle: Any,
        *,
        restart_s: float,
        on_change: Callable[[Replica], None] = lambda replica: None,
        renew: Callable[[Replica], Awaitable[None]] | None = None,
        restarts: int = 3,
        window_s: float = 600.0,
    ) -> None:
        self.name = name
        self.state: Literal["starting", "ready", "restarting", "lost"] = "starting"
        self.why = "is starting"
        """The state in words that follow its name."""
        self.in_flight = 0
        self.context: int | None = None
        self.capacity: int | None = None
        """Tokens that its cache holds."""
        self.restarts = 0
        self.last_news = 0.0
        """Of the loop's clock: when something of it last came."""
        self.paused_until = -math.inf
        """Of the loop's clock: until then no token can be expected of it."""
        self._renew = renew
        self._handle = handle
        self._restart_s = restart_s
        self._most_restarts = restarts
        self._window_s = window_s
        self._restarted: deque[float] = deque()
        self._on_change = on_change
        self._revival: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float) -> None:
        """Returns when a real token has come out; one that has not in half the time is started anew.

        Raises:
            RuntimeError: with the engine's own reason.
        """
        from ray.exceptions import RayError

        try:
            try:
                await asyncio.wait_for(self._answered(), timeout_s / 2)
            except TimeoutError:
                logger.warning("%s has not started within %g s and is started anew", self.name, timeout_s / 2)
                self._kill(no_restart=False)
                await asyncio.wait_for(self._answered(), timeout_s / 2)
        except TimeoutError:
            raise RuntimeError(f"{self.name} did not start within {timeout_s:g} s") from None
        except RayError as error:
            raise RuntimeError(f"{self.name} could not start: {explained(error)}") from None
        if self._renew is not None:
            await self._renew(self)
        self._changed("ready", "is ready")

    async def _answered(self) -> None:
        from ray.exceptions import ActorUnavailableError

        while True:
            try:
                facts = await self._call("describe")
                self.context, self.capacity = facts["context"], facts.get("capacity")
                await self._call("check")
                return
            except ActorUnavailableError:  # between a kill and the start after it
                await asyncio.sleep(_REVIVE_PAUSE_S)

    async def generate(
        self, call_id: str, request: EngineRequest, on_piece: Callable[[EnginePiece], None] | None = None
    ) -> EngineReply:
        # vLLM streams one choice, and no log-probs of the prompt with it.
        streams = on_piece is not None and request.sampling.n == 1 and not request.prompt_logprobs
        self.in_flight += 1
        try:
            if streams and on_piece is not None:
                return await self._streamed(call_id, request, on_piece)
            reply = await self._whole(call_id, request)
        finally:
            self.in_flight -= 1
        if on_piece is not None:
            for output in reply.outputs:
                on_piece(EnginePiece(output.index, output.text, output.tokens))
        return reply

    async def _whole(self, call_id: str, request: EngineRequest) -> EngineReply:
        data: bytes = await self._call("answer", packed(Asked(call_id, request)))
        return _reply(self._given(answered(data)))

    async def _streamed(
        self, call_id: str, request: EngineRequest, on_piece: Callable[[EnginePiece], None]
    ) -> EngineReply:
        import ray

        whole = Gathered(0)
        answer: ActorReply | None = None
        stream = self._handle.stream.options(num_returns="streaming").remote(packed(Asked(call_id, request)))
        try:
            with self._failures():
                async for ref in stream:
                    answer = self._given(answered(await ref))
                    (output,) = answer.outputs
                    piece = EnginePiece(output.index, output.text, _trace(output))
                    whole.add(piece)
                    if output.finish is not None:
                        whole.finish, whole.stop_sequence = _finish(output)
                        whole.versions = output.versions
                    if piece.text or len(output.ids):
                        on_piece(piece)
        except BaseException:
            ray.cancel(stream)
            raise
        if answer is None or whole.finish is None:
            raise ModelError(502, "backend", "the engine ended a stream before it was whole")
        return EngineReply((whole.whole(),), answer.cached)

    def _given(self, answer: Answered) -> ActorReply:
        self.last_news = asyncio.get_running_loop().time()
        if not isinstance(answer, ActorFailure):
            return answer
        if answer.refused:
            raise ModelError(400, "invalid", answer.message)
        raise ModelError(502, "backend", f"the engine failed ({answer.message})")

    async def check(self, seconds: float = CHECK_S) -> int:
        """One real token. A replica that does not give one is restarted."""
        loop = asyncio.get_running_loop()
        try:
            version: int = await asyncio.wait_for(self._call("check"), seconds)
        except TimeoutError:
            if loop.time() < self.paused_until + seconds:
                raise ModelError(503, "overloaded", "the engine is paused", retry_after=1.0) from None
            self.restart(f"gave no token within {seconds:g} s")
            raise ModelError(503, "timeout", "the engine hangs and is restarted", retry_after=10.0) from None
        self.last_news = loop.time()
        return version

    async def watch(self) -> None:
        """Asks for a token where nothing else has told that the engine is well."""
        quiet = asyncio.get_running_loop().time() - self.last_news
        if self.state != "ready" or (self.in_flight and quiet < _QUIET_S):
            return
        with contextlib.suppress(ModelError):
            # Behind calls that are long, a token may take its time.
            await self.check(_BUSY_CHECK_S if self.in_flight else CHECK_S)

    async def ask(self, method: str, *args: Any) -> Any:
        """Anything else of the actor. Raises ModelError."""
        return await self._call(method, *args)

    def restart(self, why: str) -> None:
        """Ends the engine, so that Ray starts it anew."""
        if self.state == "ready":
            self._kill(no_restart=False)
            self._lost_for_now(why)

    async def _call(self, method: str, *args: Any) -> Any:
        """A call of the actor; cancelling it cancels the actor's task."""
        import ray

        ref = getattr(self._handle, method).remote(*args)
        try:
            with self._failures():
                return await ref
        except asyncio.CancelledError:
            ray.cancel(ref)
            raise

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Ray's as ModelErrors, once it has started."""
        from ray.exceptions import RayActorError, RayTaskError

        try:
            yield
        except RayActorError as error:
            if self.state != "starting":
                self._lost_for_now(f"died ({type(error).__name__})")
                raise ModelError(503, "unreachable", f"{self.name} {self.why}", retry_after=1.0) from error
            raise
        except RayTaskError as error:
            if self.state != "starting":
                raise ModelError(502, "backend", f"the engine failed ({type(error.cause).__name__})") from None
            raise

    def _changed(self, state: Literal["ready", "restarting", "lost"], why: str) -> None:
        self.state, self.why = state, why
        self.last_news = asyncio.get_running_loop().time()
        self._on_change(self)

    def _lost_for_now(self, why: str) -> None:
        if self.state != "ready":
            return
        now = asyncio.get_running_loop().time()
        self.restarts += 1
        self._restarted.append(now)
        while now - self._restarted[0] > self._window_s:
            self._restarted.popleft()
        if len(self._restarted) > self._most_restarts:
            times = f"{len(self._restarted)} times within {self._window_s:g} s"
            self._give_up(f"is given up: its engine ended {times}; the last time it {why}")
            return
        logger.warning("%s %s; waiting for its restart", self.name, why)
        self._changed("restarting", f"{why} and is restarting")
        self._revival = asyncio.get_running_loop().create_task(self._revive())

    async def _revive(self) -> None:
        from ray.exceptions import ActorDiedError

        loop = asyncio.get_running_loop()
        begun = loop.time()
        last = ""
        while (left := begun + self._restart_s - loop.time()) > 0:
            await asyncio.sleep(_REVIVE_PAUSE_S)
            try:
                await asyncio.wait_for(self._call("check"), left)
                if self._renew is not None:
                    await self._renew(self)
            except (ModelError, TimeoutError) as error:
                if isinstance(error.__cause__, ActorDiedError):  # Ray does not start it again
                    last = explained(error.__cause__)
                    break
                last = str(error)
                continue
            logger.warning("%s answers again, after %.0f s", self.name, loop.time() - begun)
            self._changed("ready", "is ready")
            return
        self._give_up(f"is given up: it did not come back: {last}")

    def _give_up(self, why: str) -> None:
        logger.error("%s %s", self.name, why)
        self._kill(no_restart=True)
        self._changed("lost", why)

    def _kill(self, *, no_restart: bool) -> None:
        import ray

        ray.kill(self._handle, no_restart=no_restart)

    async def close(self) -> None:
        """Ends the engine, whatever it does; a replica that is to go without a loss is drained before."""
        from ray.exceptions import RayError

        if self._revival is not None:
            self._revival.cancel()
        was_ready = self.state == "ready"
        self._changed("lost", "is closed")
        try:
            if was_ready:
                await asyncio.wait_for(self._call("close"), _CLOSE_S)
        except (RayError, ModelError, TimeoutError):
            logger.warning("%s did not end in time", self.name)
        self._kill(no_restart=True)


def _reply(answer: ActorReply) -> EngineReply:
    outputs = tuple(_output(output) for output in answer.outputs)
    return EngineReply(outputs, answer.cached, answer.prompt_logprobs, handoff=answer.handoff)


def _output(output: ActorOutput) -> EngineOutput:
    finish, sequence = _finish(output)
    return EngineOutput(output.index, _trace(output), output.text, finish, sequence)


def _finish(output: ActorOutput) -> tuple[Finish, str | None]:
    finish = _FINISHES.get(output.finish or "")
    if finish is None:
        # A19: an engine that ends with abort, error or nothing has failed; it has not stopped.
        words = f"the engine ended a generation with {output.finish or 'no reason'!r}"
        if output.finish == "abort":
            raise ModelError(503, "overloaded", words, code=ABORTED, retry_after=0.0)
        raise ModelError(502, "backend", words)
    return ("stop_sequence", output.stop) if isinstance(output.stop, str) else (finish, None)


def _trace(output: ActorOutput) -> TokenTrace:
    return TokenTrace(
        ids=output.ids,
        logprobs=output.logprobs,
        versions=output.versions,
        texts=output.texts,
        top=output.top,
    )
