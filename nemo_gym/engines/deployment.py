"""A set of equal replicas: started together, watched, restarted by Ray, ended with the server.

The deployment owns actors and placement groups; calls go through its `engine`. Replicas may be added and taken away
while it serves: one that goes ends its calls first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from . import cluster
from .arguments import check_arguments, written_arguments
from .placement import Placement, placement
from .ray_engine import RayEngine
from .replica import Replica
from .split import PREFILL, Order, SplitEngine
from .start import said
from .vllm_actor import VllmActor
from .weights import InFlight

logger = logging.getLogger(__name__)

_WATCH_S = 15.0
_TELL_S = 5.0
_PLACEMENT_S = 60.0
_DRAIN_S = 600.0
_CONCURRENCY = 4096
_ALWAYS = -1
"""Ray restarts an actor whenever it ends; how often that may be is counted here."""


class Prefill(Struct, frozen=True):
    """Args:
    engine_args: of its replicas, `model` among them.
    order, handoff: see split.py.
    """

    engine_args: dict[str, Any]
    replicas: int = 1
    order: Order = "prefill_first"
    handoff: dict[str, Any] = {}


class Deployment:
    """Args:
    engine_args: vLLM's AsyncEngineArgs, `model` among them, and what makes room for the adapters.
    gpus: of each worker; 0 runs vLLM's CPU build.
    spread: where a replica's workers sit; see placement.py.
    ray_address: `local`, `auto` or host:port.
    max_restarts: of each replica, within `window_s`; with one more it is given up.
    start_s: how long a replica may take to start, or to come back.
    seconds: that one call may take, its waits and its other tries included.
    tries: of one call.
    most_tokens: in flight at one replica; None: as many as its cache holds.
    max_queue: calls that may wait for a place at a replica.
    in_flight: what becomes of running calls when new weights are loaded.
    adapters: LoRA's, name -> folder.
    spare: replicas that may be added later, where Ray is a local one.
    prefill: a pool that computes prompts for the others; None: each computes its own.
    """

    actor: type[VllmActor] = VllmActor
    """What each replica runs."""

    def __init__(
        self,
        engine_args: Mapping[str, Any],
        *,
        replicas: int = 1,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        gpus: float = 1.0,
        spread: Literal["pack", "spread"] = "pack",
        ray_address: str = "local",
        max_restarts: int = 3,
        window_s: float = 600.0,
        start_s: float = 600.0,
        seconds: float = 600.0,
        tries: int = 3,
        most_tokens: int | None = None,
        max_queue: int = 4096,
        in_flight: InFlight = "wait",
        adapters: Mapping[str, str] | None = None,
        spare: int = 0,
        prefill: Prefill | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "tries": tries,
            "seconds": seconds,
            "most_tokens": most_tokens,
            "max_queue": max_queue,
            "model": str(engine_args["model"]),
            "in_flight": in_flight,
        }
        self.engine: RayEngine = (
            RayEngine(**options)
            if prefill is None
            else SplitEngine(order=prefill.order, handoff=prefill.handoff, **options)
        )
        self._prefill_args = None if prefill is None else prefill.engine_args
        self._prefills = 0 if prefill is None else prefill.replicas
        self._adapters = dict(adapters or {})
        self._engine_args = dict(engine_args)
        self._spare = spare
        self._replicas = replicas
        self._placement = placement(tensor_parallel, pipeline_parallel, gpus, spread)
        self._gpus = gpus
        self._address = ray_address
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._start_s = start_s
        self._groups: dict[str, Any] = {}
        self._watch: asyncio.Task[None] | None = None
        self._connected = False
        self._numbers = 0
        self.progress = "Ray is starting"
        """What a start is waiting for."""

    async def start(self) -> None:
        """Returns when every replica has given a token; whatever fails, nothing of it is left."""
        if known := await asyncio.to_thread(written_arguments):
            check_arguments(self._engine_args, known)  # the actor does so too, once it has imported vLLM
            check_arguments(self._prefill_args or {}, known, "prefill.engine_args")
        telling = asyncio.get_running_loop().create_task(self._tell())
        try:
            await cluster.connect(self._address, self._cpus)
            self._connected = True
            for _ in range(self._prefills):
                await self._place(PREFILL)
            for _ in range(self._replicas):
                await self._place()
            await asyncio.gather(*(replica.start(self._start_s) for replica in self.engine.replicas))
        except BaseException:
            self.progress = ""
            await self.close()
            raise
        finally:
            telling.cancel()
        self.progress = ""
        self._watch = asyncio.get_running_loop().create_task(self._watch_replicas())

    async def add(self, kind: Literal["vllm", "prefill"] = "vllm") -> str:
        """One more replica, with the current weights; its name when it is ready."""
        replica = await self._place(kind)
        try:
            await replica.start(self._start_s)
        except BaseException:
            await self._end(replica)
            raise
        return replica.name

    async def remove(self, name: str, seconds: float = _DRAIN_S) -> bool:
        """Ends a replica when its calls have ended; False when some had not in time, and are asked anew elsewhere."""
        replica = next(one for one in self.engine.replicas if one.name == name)
        drained = await self.engine.pool_of(replica).drain(name, until=asyncio.get_running_loop().time() + seconds)
        await self._end(replica)
        return drained

    async def _place(self, kind: str = "vllm") -> Replica:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        name = f"{kind}-{self._numbers}"
        self._numbers += 1
        where = self._placement
        arguments = self._prefill_args if self._prefill_args is not None and kind == PREFILL else self._engine_args
        self.progress = f"Ray is asked for {name}'s place"
        if self._address == "local" and _short(where, ray.cluster_resources()):  # it never grows: no need to wait
            raise RuntimeError(_no_room(name, where, ray.cluster_resources()))
        group = self._groups[name] = placement_group(list(where.bundles), strategy=where.strategy)
        try:
            await asyncio.wait_for(group.ready(), _PLACEMENT_S)
        except TimeoutError:
            raise RuntimeError(_no_room(name, where, ray.cluster_resources())) from None
        actor = ray.remote(self.actor).options(
            num_cpus=1,
            num_gpus=where.actor_gpus,
            max_restarts=_ALWAYS,
            max_task_retries=0,
            max_concurrency=_CONCURRENCY,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
            ),
        )
        replica = Replica(
            name,
            actor.remote(arguments | where.engine_args, self._gpus, name, self._adapters, self._threads()),
            restart_s=self._start_s,
            restarts=self._max_restarts,
            window_s=self._window_s,
            on_change=self.engine.changed,
            renew=self.engine.weights.renew,
        )
        self.engine.replicas.append(replica)
        return replica

    @property
    def _cpus(self) -> int:
        """That the replicas ask for, all together."""
        replicas = self._prefills + self._replicas + self._spare
        return replicas * int(sum(bundle["CPU"] for bundle in self._placement.bundles))

    def _threads(self) -> int | None:
        """Of each worker, where there is no GPU and several share this machine: all would keep to the same cores, those
        that vLLM chooses for a worker that is alone. None: it may choose."""
        if self._gpus > 0 or self._address != "local" or self._cpus < 2:
            return None
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        return max(1, cores // self._cpus)

    async def _tell(self) -> None:
        """What a start is waiting for, for whoever waits for it."""
        begun = time.monotonic()
        told = ""
        while True:
            await asyncio.sleep(_TELL_S)
            starting = [replica.name for replica in self.engine.replicas if replica.state == "starting"]
            if starting:
                steps = await asyncio.to_thread(lambda names: {name: said(name) for name in names}, starting)
                self.progress = "; ".join(f"{name}: {step}" for name, step in steps.items())
            if self.progress != told:
                told = self.progress
                logger.warning("%.0f s: %s", time.monotonic() - begun, told)

    async def _watch_replicas(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            if self.engine.weights.state == "serving":
                await asyncio.gather(*(replica.watch() for replica in self.engine.replicas))

    async def close(self) -> None:
        """Ends the replicas, gives the places back, and ends a Ray of our own."""
        if self._watch is not None:
            self._watch.cancel()
        if not self._connected:
            return
        self._connected = False
        await asyncio.gather(*(self._end(replica) for replica in list(self.engine.replicas)))
        for name in list(self._groups):
            self._give_back(name)
        await cluster.disconnect()

    async def _end(self, replica: Replica) -> None:
        await replica.close()
        with contextlib.suppress(ValueError):
            self.engine.replicas.remove(replica)
        self._give_back(replica.name)

    def _give_back(self, name: str) -> None:
        from ray.util.placement_group import remove_placement_group

        if (group := self._groups.pop(name, None)) is not None:
            remove_placement_group(group)


def _short(where: Placement, has: Mapping[str, float]) -> list[str]:
    """The kinds of which all of Ray has too little."""
    return [kind for kind in ("CPU", "GPU") if sum(one.get(kind, 0) for one in where.bundles) > has.get(kind, 0)]


def _no_room(name: str, where: Placement, has: Mapping[str, float]) -> str:
    wanted = ", ".join(f"{bundle}" for bundle in where.bundles)
    found = ", ".join(f"{kind} {has.get(kind, 0):g}" for kind in ("CPU", "GPU"))
    words = f"Ray has no room for {name}: it wants {wanted} ({where.strategy.lower()}), and all of Ray has {found}"
    return words + ("\nno GPU: num_gpus: 0 runs vLLM's CPU build" if "GPU" in _short(where, has) else "")
