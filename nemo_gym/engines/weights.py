"""The policy's weights in all replicas of a deployment: one version at a time, raised by loading, borne by every token.

New weights are compared with the model in every replica before anything stops; then no call begins, what is in flight
is finished, frozen or ended, all replicas load, and all go on. What fails then is undone: replicas serve the old
version or the new one, never something in between. One that restarts is given the current version before any call.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from ..exchange.errors import ModelError
from .packed import ActorFailure
from .replica import Replica

logger = logging.getLogger(__name__)

InFlight = Literal["wait", "keep", "abort"]
"""What becomes of running calls: they end first; they are frozen, and go on with the new weights; they are ended, and
asked anew."""
State = Literal["serving", "loading", "asleep"]

_AGREE = 0.05
"""Nats by which replicas' log-probs of the same tokens may differ."""
LEVELS = (0, 1, 2)


class Loaded(Struct, frozen=True):
    policy_version: int
    replicas: int
    seconds: float
    """In all, the look at the files included."""
    paused_s: float
    """For so long no call went on."""


class Weights:
    """Args:
    replicas: all of the deployment's, whatever their state.
    model: the folder that version 0 is in.
    in_flight: what becomes of running calls where nothing else is asked for.
    seconds: that each step may take.
    """

    def __init__(
        self, replicas: Sequence[Replica], model: str, *, in_flight: InFlight = "wait", seconds: float = 600.0
    ) -> None:
        self.version = 0
        self.state: State = "serving"
        self.in_flight = in_flight
        self._replicas = replicas
        self._source: Any = model
        self._stamp: Any = None
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._level: int | None = None
        """While it is asleep."""

    async def admitted(self) -> None:
        """Returns when calls may begin."""
        await self._open.wait()

    async def load(self, source: Any, version: int | None = None, in_flight: InFlight | None = None) -> Loaded:
        """Weights from a folder of safetensors, or from the bytes of one file of them, given as such or as a Ray
        object's reference; all tokens sampled after it returns bear `version`.

        Args:
            version: above the current one; None: the next.

        Raises:
            ModelError: 400 when they are not this model's; nothing has changed then.
        """
        begun = time.monotonic()
        async with self._lock:
            if version is None:
                version = self.version + 1
            elif version == self.version and source is not None and source == self._source:
                return Loaded(version, len(self._ready()), 0.0, 0.0)  # asked again: it was done
            elif version <= self.version:
                words = f"policy_version: expected one above {self.version}, which the engines have, found {version}"
                raise ModelError(400, "invalid", words, param="policy_version")
            targets = self._ready()
            if not targets:
                raise ModelError(503, "overloaded", "no engine replica is ready", retry_after=5.0)
            stamp = await self._stage(targets, source)
            self._close("loading")
            paused = time.monotonic()
            try:
                if self._level is not None:
                    await self._wake(targets)
                await self._replace(targets, source, stamp, version, in_flight or self.in_flight)
            finally:
                await self._go_on()
            ended = time.monotonic()
            logger.info("policy version %d in %d replicas", version, len(targets))
            return Loaded(version, len(targets), ended - begun, ended - paused)

    async def sleep(self, level: int = 1, in_flight: InFlight | None = None) -> None:
        """Hands the GPUs' memory over: the caches, and the weights too, which at level 1 are kept in main memory and
        at level 2 loaded again; at level 0 nothing but the work stops. Calls wait until `wake` or `load`."""
        mode = in_flight or self.in_flight
        async with self._lock:
            if self.state == "asleep":
                return
            self._close("asleep")
            try:
                # What is frozen would need the caches that are given up.
                await self._all(self._ready(), "sleep", level, "abort" if mode == "abort" else "wait")
            except BaseException:
                self._reopen()
                raise
            self._level = level

    async def wake(self) -> None:
        async with self._lock:
            if self.state != "asleep":
                return
            targets = self._ready()
            again = self._level == max(LEVELS)
            await self._wake(targets)
            try:
                if again:
                    await self._stage(targets, self._source)
                    await self._all(targets, "pause", "wait")
                    await self._all(targets, "load", self.version)
            finally:
                await self._go_on()

    async def renew(self, replica: Replica) -> None:
        """A replica that was started anew, brought to the current version and state. Raises ModelError."""
        async with self._lock:
            if self.version > 0:
                stamp = await self._ask(replica, "stage", self._source)
                if stamp != self._stamp:
                    raise ModelError(409, "invalid", f"the weights of version {self.version} have changed since")
                await self._ask(replica, "pause", "wait")
                await self._ask(replica, "load", self.version)
                await self._ask(replica, "resume")
                await self._ask(replica, "unstage")
            if self._level is not None:
                await self._ask(replica, "sleep", self._level, "wait")

    # ---- steps

    async def _stage(self, targets: Sequence[Replica], source: Any) -> Any:
        found = await self._results(targets, "stage", source)
        failures = [one for one in found if isinstance(one, ModelError)]
        if failures:
            await self._results(targets, "unstage")
            refused = next((one for one in failures if one.status == 400), failures[0])
            if refused.status == 400:
                where = f"path: {source}: " if isinstance(source, str) else "weights: "
                raise ModelError(400, "invalid", where + refused.message, param="path")
            raise refused
        return found[0]

    async def _replace(
        self, targets: Sequence[Replica], source: Any, stamp: Any, version: int, in_flight: InFlight
    ) -> None:
        try:
            await self._all(targets, "pause", in_flight)
            loaded = await self._results(targets, "load", version)
            failures = [one for one in loaded if isinstance(one, ModelError)]
            if len(failures) == len(targets):
                raise failures[0]
            for replica, one in zip(targets, loaded, strict=True):
                if isinstance(one, ModelError):
                    replica.restart(f"new weights could not be loaded: {one.message}")
            good = [replica for replica, one in zip(targets, loaded, strict=True) if one is None]
            await self._all(good, "resume")
            _agree(await self._all(good, "probe"))
        except ModelError as error:
            logger.error("policy version %d is undone: %s", version, error.message)
            await self._undo(targets)
            raise
        self._source, self._stamp, self.version = source, stamp, version

    async def _undo(self, targets: Sequence[Replica]) -> None:
        """The current version again, in replicas that may hold anything."""

        async def undone(replica: Replica) -> None:
            try:
                await self._ask(replica, "stage", self._source)
                await self._ask(replica, "pause", "keep")
                await self._ask(replica, "load", self.version)
            except ModelError as error:
                replica.restart(f"version {self.version} could not be loaded again: {error.message}")

        await asyncio.gather(*(undone(replica) for replica in targets if replica.state == "ready"))

    async def _wake(self, targets: Sequence[Replica]) -> None:
        await self._all(targets, "wake", self._level)
        self._level = None

    async def _go_on(self) -> None:
        targets = self._ready()
        await self._results(targets, "resume")
        await self._results(targets, "unstage")
        self._reopen()

    def _close(self, state: State) -> None:
        self._open.clear()
        self.state = state
        for replica in self._replicas:
            replica.paused_until = math.inf

    def _reopen(self) -> None:
        for replica in self._replicas:
            replica.paused_until = asyncio.get_running_loop().time()
        self.state = "serving"
        self._open.set()

    def _ready(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.state == "ready"]

    # ---- asking replicas

    async def _all(self, targets: Sequence[Replica], step: str, *args: Any) -> list[Any]:
        """Raises the first failure, when all have ended."""
        found = await self._results(targets, step, *args)
        failure = next((one for one in found if isinstance(one, ModelError)), None)
        if failure is not None:
            raise failure
        return found

    async def _results(self, targets: Sequence[Replica], step: str, *args: Any) -> list[Any]:
        async def result(replica: Replica) -> Any:
            try:
                return await self._ask(replica, step, *args)
            except ModelError as error:
                return error

        return list(await asyncio.gather(*(result(replica) for replica in targets)))

    async def _ask(self, replica: Replica, step: str, *args: Any) -> Any:
        try:
            answer = await asyncio.wait_for(replica.ask("weights", step, *args), self._seconds)
        except TimeoutError:
            words = f"{replica.name} did not {step} within {self._seconds:g} s"
            raise ModelError(504, "timeout", words) from None
        if isinstance(answer, ActorFailure):
            raise ModelError(400 if answer.refused else 502, "invalid" if answer.refused else "backend", answer.message)
        return answer


def _agree(probes: Sequence[Sequence[float]]) -> None:
    """Raises ModelError unless the log-probs of each replica are numbers, and the same."""
    if not all(math.isfinite(value) for probe in probes for value in probe):
        raise ModelError(400, "invalid", "weights: the model gives log-probs that are not finite", param="path")
    # The last one is of a token that each replica drew for itself.
    for probe in probes:
        if any(abs(mine - first) > _AGREE for mine, first in zip(probe[:-1], probes[0][:-1], strict=True)):
            raise ModelError(502, "backend", "the replicas do not agree after loading: their log-probs differ")
