"""A set of equal replicas: started together, watched, restarted by Ray, ended with the server.

The deployment owns actors and placement groups; calls go through its `engine`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from ..exchange.errors import ModelError
from . import cluster
from .placement import Placement, placement
from .ray_engine import RayEngine
from .replica import Replica
from .weights import InFlight

logger = logging.getLogger(__name__)

_WATCH_S = 15.0
_PLACEMENT_S = 60.0
_CONCURRENCY = 4096


class Deployment:
    """Args:
    engine_args: vLLM's AsyncEngineArgs, `model` among them.
    gpus: of each worker; 0 runs vLLM's CPU build.
    ray_address: `local`, `auto` or host:port.
    max_restarts: of each replica, by Ray.
    start_s: how long a replica may take to start, or to come back.
    in_flight: what becomes of running calls when new weights are loaded.
    """

    def __init__(
        self,
        engine_args: Mapping[str, Any],
        *,
        replicas: int = 1,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        gpus: float = 1.0,
        ray_address: str = "local",
        max_restarts: int = 3,
        start_s: float = 600.0,
        tries: int = 3,
        in_flight: InFlight = "wait",
    ) -> None:
        model = str(engine_args["model"])
        self.engine = RayEngine(tries=tries, ready_wait_s=start_s, model=model, in_flight=in_flight)
        self._engine_args = dict(engine_args)
        self._replicas = replicas
        self._placement = placement(tensor_parallel, pipeline_parallel, gpus)
        self._gpus = gpus
        self._address = ray_address
        self._max_restarts = max_restarts
        self._start_s = start_s
        self._groups: list[Any] = []
        self._watch: asyncio.Task[None] | None = None
        self._connected = False

    async def start(self) -> None:
        """Returns when every replica has given a token; whatever fails, nothing of it is left."""
        try:
            cpus = self._replicas * int(sum(bundle["CPU"] for bundle in self._placement.bundles))
            await cluster.connect(self._address, cpus)
            self._connected = True
            for number in range(self._replicas):
                self.engine.replicas.append(await self._place(f"vllm-{number}"))
            await asyncio.gather(*(replica.start(self._start_s) for replica in self.engine.replicas))
        except BaseException:
            await self.close()
            raise
        self._watch = asyncio.get_running_loop().create_task(self._watch_replicas())

    async def _place(self, name: str) -> Replica:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from .vllm_actor import VllmActor

        where = self._placement
        group = placement_group(list(where.bundles), strategy=where.strategy)
        self._groups.append(group)
        try:
            await asyncio.wait_for(group.ready(), _PLACEMENT_S)
        except TimeoutError:
            raise RuntimeError(_no_room(name, where)) from None
        actor = ray.remote(VllmActor).options(
            num_cpus=1,
            num_gpus=where.actor_gpus,
            max_restarts=self._max_restarts,
            max_task_retries=0,
            max_concurrency=_CONCURRENCY,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
            ),
        )
        handle = actor.remote(self._engine_args | where.engine_args, self._gpus)
        return Replica(
            name,
            handle,
            restart_s=self._start_s,
            on_ready=self.engine.replica_is_ready,
            renew=self.engine.weights.renew,
        )

    async def _watch_replicas(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            for replica in self.engine.replicas:
                # Its own calls say the same of a busy one.
                if replica.state == "ready" and replica.in_flight == 0 and self.engine.weights.state == "serving":
                    with contextlib.suppress(ModelError):
                        await replica.check()

    async def close(self) -> None:
        """Ends the replicas, gives the places back, and ends a Ray of our own."""
        if self._watch is not None:
            self._watch.cancel()
        if not self._connected:
            return
        self._connected = False
        from ray.util.placement_group import remove_placement_group

        await asyncio.gather(*(replica.close() for replica in self.engine.replicas))
        for group in self._groups:
            remove_placement_group(group)
        await cluster.disconnect()


def _no_room(name: str, where: Placement) -> str:
    wanted = ", ".join(f"{bundle}" for bundle in where.bundles)
    return f"Ray has no room for {name} (wants {wanted}; strategy {where.strategy})"
