"""The servers of a run as Ray actors over the nodes of a cluster.

Where each goes is Ray's to decide. The actors belong to this process's job, so Ray ends them when this process is gone,
however it went; each server ends with its actor. What a node cannot write to the launcher's folders is brought while it
grows, so that captures and logs are in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config.compose import Instance
from ..config.types import ClusterConfig, PlaceConfig
from ..engines import cluster
from .failure import LaunchError
from .host import Host, Place, Start, Wish
from .remote import Remote

_BRING_EVERY_S = 1.0
_START_S = 60.0
_PASSED_ON = ("NEMO_GYM_",)
"""Environment variables of the launcher's that its servers have on any node."""
_WORKER = {"RAY_kill_child_processes_on_worker_exit": "0"}
"""Ray would kill the keeper, which then could not end what is below it."""


class Cluster:
    """Args:
    logs: the folder of the servers' logs.
    captures: that of the run's captures; None where nothing is recorded.
    """

    def __init__(self, config: ClusterConfig, run_id: str, logs: Path, captures: str | None) -> None:
        self._config = config
        self._run_id = run_id
        self._logs = logs
        self._captures = None if captures is None else Path(captures)
        self._connected = False
        self._remotes: list[Remote] = []
        self._actors: list[Any] = []
        self._bringing: asyncio.Task[None] | None = None
        self.address = ""
        """By which servers on any node join it."""

    async def connect(self) -> None:
        """Raises LaunchError."""
        if find_spec("ray") is None:  # it is imported once the environment says how
            raise LaunchError("ray.address: needs Ray (pip install 'nemo-gym[ray]')")
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # whoever asks after the end is told, not connected
        try:
            await cluster.connect(self._config.address, 0, quiet=True)
        except Exception as error:
            words = str(error).strip().splitlines()
            reason = words[0] if words else type(error).__name__
            raise LaunchError(f"ray.address: no Ray at {self._config.address} can be joined: {reason}") from None
        import ray

        self._connected = True
        self.address = str(ray.get_runtime_context().gcs_address)

    async def place(self, instances: Sequence[Instance]) -> dict[str, Remote]:
        """Every server's address, bound, on its node. Raises LaunchError for the first that gets no place."""
        import ray

        nodes = [node for node in ray.nodes() if node["Alive"]]
        with self._probes() as seen:
            placing = [asyncio.create_task(self._placed(one, nodes, seen)) for one in instances]
            try:
                remotes = await asyncio.gather(*placing)
            finally:
                for task in placing:
                    task.cancel()
                await asyncio.gather(*placing, return_exceptions=True)
        self._bringing = asyncio.create_task(self._bring_as_they_grow())
        return {remote.name: remote for remote in remotes}

    async def _placed(self, instance: Instance, nodes: list[dict[str, Any]], seen: list[str] | None) -> Remote:
        import ray
        from ray.exceptions import RayError

        wanted = PlaceConfig.model_validate(
            {
                key: value
                for key, value in (instance.settings.get("ray") or {}).items()
                if key in PlaceConfig.model_fields
            }
        )
        actor = ray.remote(Host).options(
            max_concurrency=64,
            max_restarts=0,
            runtime_env={"env_vars": _WORKER},
            **_asked_of_ray(instance.name, wanted, nodes),
        )
        wish = Wish(
            name=instance.name,
            run_id=self._run_id,
            host=instance.settings.get("host"),
            port=instance.settings.get("port"),
            folder=os.getcwd(),
            seen=seen,
            node_dir=self._config.node_dir,
        )
        host = actor.remote()
        self._actors.append(host)
        try:
            async with asyncio.timeout(self._config.place_timeout_s):
                place: Place = await host.bind.remote(wish)
        except TimeoutError:
            raise LaunchError(_no_place(wanted, nodes, self._config.place_timeout_s), instance.name) from None
        except OSError as error:
            where = f"{wish.host or 'its node'}:{wish.port or 'a free port'}"
            raise LaunchError(f"{where} cannot be listened on: {_reason(error)}", instance.name) from None
        except RayError as error:
            raise LaunchError(_not_run(error), instance.name) from None
        captures = None if self._captures is None else self._captures / self._run_id
        remote = Remote(instance.name, host, place, self._logs / f"{instance.name}.log", captures)
        self._remotes.append(remote)
        return remote

    async def start(self, remote: Remote, instance: Instance, context: bytes) -> None:
        """Raises LaunchError."""
        from ray.exceptions import RayError

        folder = remote.place.own_folder
        what = Start(
            context=context,
            kind=instance.kind,
            implementation=instance.implementation,
            entrypoint=instance.settings.get("entrypoint", "app.py"),
            log=str(remote.log_path if folder is None else Path(folder) / remote.log_path.name),
            env=self._config.env,
            keep={name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)},
        )
        try:
            async with asyncio.timeout(_START_S):
                await remote.start(what)
        except (RayError, OSError) as error:
            where = f"on node {remote.node[:12]} ({remote.place.address})"
            raise LaunchError(f"could not be started {where}: {_reason(error)}", remote.name) from None
        except TimeoutError:
            raise LaunchError(f"was not started by its node within {_START_S:g} s", remote.name) from None

    def captures_of(self, remote: Remote) -> str | None:
        """The folder that it records to, on its node."""
        if self._captures is None or remote.place.own_folder is None:
            return None if self._captures is None else str(self._captures)
        return f"{remote.place.own_folder}/captures"

    async def collect(self, *, last: bool = False) -> None:
        """All that was recorded by now is in the launcher's folders."""
        await asyncio.gather(*(remote.bring(last=last) for remote in self._remotes))

    async def close(self) -> None:
        """After the servers have ended."""
        if self._bringing is not None:
            self._bringing.cancel()
            await asyncio.gather(self._bringing, return_exceptions=True)
        if not self._connected:
            return
        import ray

        await self.collect(last=True)
        for remote in self._remotes:
            remote.release()
        for host in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(host, no_restart=True)
        self._connected = False
        await cluster.disconnect()

    async def _bring_as_they_grow(self) -> None:
        while any(remote.brings for remote in self._remotes):
            await asyncio.sleep(_BRING_EVERY_S)
            await self.collect()

    @contextlib.contextmanager
    def _probes(self) -> Any:
        """Files that a node which shares the launcher's folders sees; None where none is to be asked."""
        if self._config.files == "brought":
            yield None
            return
        if self._config.files == "shared":
            yield []
            return
        folders = [self._logs] if self._captures is None else [self._logs, self._captures]
        made = [folder / f".{uuid.uuid4().hex}" for folder in folders]
        try:
            for path in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            yield [str(path) for path in made]
        finally:
            for path in made:
                path.unlink(missing_ok=True)


def _asked_of_ray(name: str, wanted: PlaceConfig, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {"num_gpus": wanted.num_gpus, "resources": dict(wanted.resources)}
    if wanted.num_cpus is not None:
        options["num_cpus"] = wanted.num_cpus
    if wanted.node is None:
        return options | {"scheduling_strategy": "SPREAD"}
    found = [
        node["NodeID"]
        for node in nodes
        if node["NodeManagerAddress"] == wanted.node or node["NodeID"].startswith(wanted.node)
    ]
    if len(found) != 1:
        there = ", ".join(_shown(node) for node in nodes)
        raise LaunchError(f"ray.node: {wanted.node!r} names {len(found)} nodes of {there}", name)
    return options | {"scheduling_strategy": NodeAffinitySchedulingStrategy(found[0], soft=False)}


def _shown(node: Mapping[str, Any]) -> str:
    return f"{node['NodeID'][:12]} ({node['NodeManagerAddress']})"


def _no_place(wanted: PlaceConfig, nodes: Sequence[Mapping[str, Any]], seconds: float) -> str:
    asked = wanted.model_dump(exclude_defaults=True) or {"num_cpus": 1}
    has = "; ".join(
        f"{_shown(node)}: "
        + ", ".join(f"{name} {amount:g}" for name, amount in sorted(node["Resources"].items()) if _countable(name))
        for node in nodes
    )
    return f"Ray found no place for it within {seconds:g} s: it asks for {asked}, and the nodes have {has}"


def _countable(resource: str) -> bool:
    return not resource.startswith("node:") and "memory" not in resource


def _not_run(error: Exception) -> str:
    """Why the actor could not be made."""
    text = str(error)
    if "ModuleNotFoundError" in text or "No module named" in text:
        missing = next((line.strip() for line in text.splitlines() if "No module named" in line), "")
        return f"its node cannot import this project ({missing}): expected the same installation on every node"
    return f"its actor could not be started: {_reason(error)}"


def _reason(error: BaseException) -> str:
    """The last line of a remote traceback is the one that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
