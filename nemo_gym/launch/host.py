"""On a node of the cluster: one server's process, under a keeper of its own, and the files that it leaves there.

A Ray actor. What it is told comes as arguments of its methods, never of its constructor, which Ray writes down. Its
server ends with it: the keeper's pipe is this process's, so it ends however this process does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..config import paths
from ..process import Child
from . import mirror, ports
from .start import start

OF_RAYS_WORKERS = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE", "RAY_LD_PRELOAD_ON_WORKERS", "OMP_NUM_THREADS")
"""What Ray sets for its own worker; OpenMP's number is one where no CPU was asked for."""
_LAST_LINES = 25
_FOREVER_S = 1e9


class Wish(msgspec.Struct, frozen=True):
    """What is asked of a node before a server starts there."""

    name: str
    run_id: str
    host: str | None
    port: int | None
    folder: str
    """Where the launcher was called; it is this process's folder too, where there is one of that name."""
    seen: list[str] | None
    """Files of the launcher's: whether all of them are here is asked. None: they are not shared, whatever is here."""
    node_dir: str


class Place(msgspec.Struct, frozen=True):
    """Where a server is, and where its files go."""

    node: str
    address: str
    url: str
    listens: tuple[str, int]
    own_folder: str | None
    """On the node; None where it shares the launcher's."""


class Start(msgspec.Struct, frozen=True):
    context: bytes
    kind: str
    implementation: str
    entrypoint: str
    log: str
    env: dict[str, str]
    keep: dict[str, str]
    """Environment variables that the node's own do not replace."""


class Host:
    """Made by Ray."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        self._child: Child | None = None
        self._folder: Path | None = None
        self._captures: Path | None = None

    async def bind(self, wish: Wish) -> Place:
        """Its address is told once it is bound. Raises OSError."""
        import ray

        address = ray.util.get_node_ip_address()
        host = wish.host or address
        self._sock = ports.bind(host, wish.port)
        self._folder = await asyncio.to_thread(_folder_of_its_own, wish)
        if self._folder is not None:
            self._captures = self._folder / "captures" / wish.run_id
        port = self._sock.getsockname()[1]
        reached = address if host in ("0.0.0.0", "::") else host
        return Place(
            node=ray.get_runtime_context().get_node_id(),
            address=address,
            url=f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}",
            listens=(host, port),
            own_folder=None if self._folder is None else str(self._folder),
        )

    async def start(self, what: Start) -> int:
        """The keeper's pid. Raises FileNotFoundError where the server's code is not here."""
        assert self._sock is not None
        file = paths.entrypoint(what.kind, what.implementation, what.entrypoint)
        if not file.is_file():
            raise FileNotFoundError(f"{what.kind}/{what.implementation}/{what.entrypoint} is not on this node")
        own = {name: value for name, value in os.environ.items() if name not in OF_RAYS_WORKERS}
        env = own | what.keep | what.env
        self._child = await asyncio.to_thread(start, file, self._sock, what.context, env, what.log)
        self._sock.close()
        return self._child.pid

    async def ended(self) -> tuple[int, str]:
        """Returns when the server has ended by itself or was told to: its status, and its last words."""
        assert self._child is not None
        while (status := await self._child.ended(_FOREVER_S)) is None:
            pass
        return status, self._child.last_words(_LAST_LINES)

    async def ask_to_stop(self, grace_s: float) -> None:
        if self._child is not None:
            self._child.ask_to_stop(grace_s)

    async def stop(self, grace_s: float) -> None:
        """Returns when the server and its tree are gone."""
        if self._child is not None:
            await asyncio.to_thread(self._child.stop, grace_s)

    async def pieces(self, log: Mapping[str, int], captures: Mapping[str, int]) -> list[list[mirror.Piece]]:
        """Of the log and of the capture, what the launcher does not have yet."""
        if self._folder is None or self._captures is None:
            return [[], []]
        return await asyncio.to_thread(
            lambda folder, shards: [mirror.pieces(folder, log), mirror.pieces(shards, captures)],
            self._folder,
            self._captures,
        )

    async def shards(self) -> list[str]:
        return [] if self._captures is None else await asyncio.to_thread(mirror.names, self._captures)

    async def forget(self) -> None:
        """All is brought."""
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, True)


def _folder_of_its_own(wish: Wish) -> Path | None:
    """None where the launcher's folders are here too."""
    if Path(wish.folder).is_dir():
        os.chdir(wish.folder)
    if wish.seen is not None and all(Path(path).exists() for path in wish.seen):
        return None
    node_dir = Path(wish.node_dir).expanduser()
    node_dir.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{wish.run_id}-{wish.name}-", dir=node_dir))
