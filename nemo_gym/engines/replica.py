"""One vLLM actor as the server sees it: its load, its state, and its failures as ModelErrors.

A replica that fails in a way that a restart mends is not asked again until it has answered.
"""

from __future__ import annotations

import asyncio
import logging
import math
from array import array
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import numpy as np

from ..exchange.errors import ModelError
from ..exchange.reply import Finish, TokenTrace
from .engine import EngineOutput, EngineReply, EngineRequest
from .vllm_actor import ActorFailure, ActorOutput, ActorReply

logger = logging.getLogger(__name__)

CHECK_S = 30.0
"""A hung worker passes vLLM's own health check; only a token that comes in time tells."""
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
    on_ready: called when it answers again.
    renew: brings a restarted one to the current weights; raises ModelError.
    """

    def __init__(
        self,
        name: str,
        handle: Any,
        *,
        restart_s: float,
        on_ready: Callable[[], None],
        renew: Callable[[Replica], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.state: Literal["starting", "ready", "restarting", "lost"] = "starting"
        self.in_flight = 0
        self.context: int | None = None
        self.restarts = 0
        self.paused_until = -math.inf
        """Of the loop's clock: until then no token can be expected of it."""
        self._renew = renew
        self._handle = handle
        self._restart_s = restart_s
        self._on_ready = on_ready
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
            raise RuntimeError(f"{self.name} could not start: {_reason(error)}") from None
        self._ready()

    async def _answered(self) -> None:
        from ray.exceptions import ActorUnavailableError

        while True:
            try:
                self.context = (await self._call("describe"))["context"]
                await self._call("check")
                return
            except ActorUnavailableError:  # between a kill and the start after it
                await asyncio.sleep(_REVIVE_PAUSE_S)

    async def generate(self, call_id: str, request: EngineRequest) -> EngineReply:
        self.in_flight += 1
        try:
            prompt = np.frombuffer(request.prompt_ids, dtype=np.int32)
            answer = await self._call(
                "generate", call_id, prompt, request.sampling, request.guide, request.prompt_logprobs
            )
        finally:
            self.in_flight -= 1
        if isinstance(answer, ActorFailure):
            if answer.refused:
                raise ModelError(400, "invalid", answer.message)
            raise ModelError(502, "backend", f"the engine failed ({answer.message})")
        return _reply(answer)

    async def check(self) -> int:
        """One real token. A replica that does not give one is restarted."""
        try:
            return await asyncio.wait_for(self._call("check"), CHECK_S)
        except TimeoutError:
            if asyncio.get_running_loop().time() < self.paused_until + CHECK_S:
                raise ModelError(503, "overloaded", "the engine is paused", retry_after=1.0) from None
            self.restart("it hangs")
            raise ModelError(503, "timeout", "the engine hangs and is restarted", retry_after=10.0) from None

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
        from ray.exceptions import RayActorError, RayTaskError

        ref = getattr(self._handle, method).remote(*args)
        try:
            return await ref
        except asyncio.CancelledError:
            ray.cancel(ref)
            raise
        except RayActorError as error:
            if self.state != "starting":
                self._lost_for_now(type(error).__name__)
                raise ModelError(503, "unreachable", "the engine is restarting", retry_after=5.0) from None
            raise
        except RayTaskError as error:
            if self.state != "starting":
                raise ModelError(502, "backend", f"the engine failed ({type(error.cause).__name__})") from None
            raise

    def _ready(self) -> None:
        self.state = "ready"
        self._on_ready()

    def _lost_for_now(self, why: str) -> None:
        if self.state != "ready":
            return
        logger.warning("%s: %s; waiting for its restart", self.name, why)
        self.state = "restarting"
        self.restarts += 1
        self._revival = asyncio.get_running_loop().create_task(self._revive())

    async def _revive(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._restart_s
        while loop.time() < deadline:
            await asyncio.sleep(_REVIVE_PAUSE_S)
            try:
                await asyncio.wait_for(self._call("check"), deadline - loop.time())
                if self._renew is not None:
                    await self._renew(self)
            except (ModelError, TimeoutError):
                continue
            logger.warning("%s answers again", self.name)
            self._ready()
            return
        self.state = "lost"
        logger.error("%s did not come back within %g s and is given up", self.name, self._restart_s)

    def _kill(self, *, no_restart: bool) -> None:
        import ray

        ray.kill(self._handle, no_restart=no_restart)

    async def close(self) -> None:
        from ray.exceptions import RayError

        if self._revival is not None:
            self._revival.cancel()
        was_ready, self.state = self.state == "ready", "lost"
        try:
            if was_ready:
                await asyncio.wait_for(self._call("close"), _CLOSE_S)
        except (RayError, ModelError, TimeoutError):
            logger.warning("%s did not end in time", self.name)
        self._kill(no_restart=True)


def _reply(answer: ActorReply) -> EngineReply:
    prompt = None if answer.prompt_logprobs is None else _array("f", answer.prompt_logprobs)
    return EngineReply(tuple(_output(output) for output in answer.outputs), answer.cached, prompt)


def _output(output: ActorOutput) -> EngineOutput:
    finish = _FINISHES.get(output.finish or "")
    if finish is None:
        # A19: an engine that ends with abort, error or nothing has failed; it has not stopped.
        code = ABORTED if output.finish == "abort" else None
        raise ModelError(
            502, "backend", f"the engine ended a generation with {output.finish or 'no reason'!r}", code=code
        )
    sequence = output.stop if isinstance(output.stop, str) else None
    tokens = TokenTrace(
        ids=_array("i", output.ids),
        logprobs=_array("f", output.logprobs),
        versions=output.versions,
        texts=output.texts,
        top=output.top,
    )
    return EngineOutput(output.index, tokens, output.text, "stop_sequence" if sequence else finish, sequence)


def _array(typecode: str, values: np.ndarray) -> array:
    whole = array(typecode)
    whole.frombytes(values.tobytes())
    return whole


def _reason(error: Exception) -> str:
    """The last line that says something: Ray wraps the cause in a page of traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
