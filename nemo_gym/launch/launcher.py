"""Every server of a run up, or one culprit's last words; all of them down, at any end.

Sockets are bound first, then all servers start side by side, each under a keeper that ends its whole tree when this
process ends, in order or by SIGKILL; with a cluster (cluster.py) they do so on its nodes. `up` returns when each server
has answered that it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec
from rich.console import Console

from nemo_gym.config import paths
from nemo_gym.config.compose import Composed, Instance
from nemo_gym.web.peers import ServerClient
from nemo_gym.web.service import ServerContext

from . import forkserver, ports, venv
from .board import Board
from .failure import LaunchError as LaunchError
from .failure import own_reason
from .start import start

if TYPE_CHECKING:
    from .cluster import Cluster

State = Literal["starting", "ready", "ended"]

_ASK_EVERY_S = (0.05, 0.5)  # at first, and after a while
_ANSWER_S = 35.0  # a probe of a backend may take its time
_WATCH_EVERY_S = 0.2
_LAST_LINES = 25
START_TIMEOUT_S = 1800.0


class Running(Protocol):
    """What the launcher asks of a server's process: a `Child` here, a `Remote` on a cluster."""

    lost: str
    log_path: Path

    @property
    def node(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def last_words(self, lines: int) -> str: ...
    def ask_to_stop(self, grace_s: float) -> None: ...
    def stop(self, grace_s: float) -> int | None: ...


class Server:
    """One server of the run, as the launcher knows it."""

    def __init__(self, instance: Instance, url: str, child: Running) -> None:
        self.instance = instance
        self.url = url
        self.child = child
        self.state: State = "starting"
        self.note = ""
        self.started = time.time()
        self.ready_at: float | None = None

    @property
    def name(self) -> str:
        return self.instance.name

    @property
    def question(self) -> str:
        """The URL that answers 200 once the server can be used."""
        return self.url + ("/ready" if self.instance.kind == "responses_api_models" else "/health")

    @property
    def missing(self) -> str:
        """Why it is not ready, for who started it: he may read where its backend should be, and a client may not."""
        addresses = upstreams(self.instance.settings)
        return f"{self.note}: {addresses}" if addresses and "cannot be reached" in self.note else self.note

    def describe(self) -> dict[str, Any]:
        """What may be told to others: nothing of its settings."""
        return {
            "name": self.name,
            "kind": self.instance.kind,
            "implementation": self.instance.implementation,
            "url": self.url,
            "state": "ended" if self.child.poll() is not None else self.state,
            "note": self.note,
            "pid": self.child.pid,
            "started": self.started,
            "ready_after_s": None if self.ready_at is None else round(self.ready_at - self.started, 2),
            "log": str(self.child.log_path),
            "node": self.child.node or None,
        }


class Launcher:
    """Starts and ends the servers of one composed configuration."""

    def __init__(
        self, composed: Composed, run_id: str, log_dir: str | Path, start_timeout_s: float = START_TIMEOUT_S
    ) -> None:
        self._composed = composed
        self._run_id = run_id
        self._log_dir = Path(log_dir)
        self._start_timeout_s = start_timeout_s
        self._running: dict[str, Server] = {}
        self._session_secret = secrets.token_urlsafe(32)
        self.admin_key = secrets.token_urlsafe(24)
        self._cluster: Cluster | None = None
        self._forks: forkserver.ForkServer | None = None
        ray, self._capture = composed.cluster(), composed.capture()
        if ray.joined:
            from .cluster import Cluster

            self._cluster = Cluster(ray, run_id, self._log_dir, self._capture.dir if self._capture.enabled else None)
        asked = ray.joined or any(instance.settings.get("api_keys") for instance in composed.instances)
        self._call_key = secrets.token_urlsafe(24) if asked else ""

    @property
    def servers(self) -> dict[str, str]:
        """Instance name to base URL."""
        return {name: server.url for name, server in self._running.items()}

    @property
    def kinds(self) -> dict[str, str]:
        return {name: server.instance.kind for name, server in self._running.items()}

    def describe(self) -> list[dict[str, Any]]:
        return [server.describe() for server in self._running.values()]

    async def up(self, console: Console | None = None) -> None:
        """Start every server and wait until each is ready; from the main thread.

        Raises:
            LaunchError: a server ended, or was not ready in time. Every server is down by then.
        """
        try:
            if self._cluster is not None:
                await self._start_on(self._cluster)
            else:
                with self._bound() as socks:
                    await self._start(socks)
            with Board(console or Console(stderr=True), self._running) as board:
                await self._all_ready(board)
        except BaseException:
            await self.down(grace_s=2.0)
            raise

    async def watch(self) -> LaunchError:
        """Returns when a server has ended by itself, with what there is to say about it."""
        while True:
            for server in self._running.values():
                if server.child.poll() is not None:
                    return self._ended(server)
            await asyncio.sleep(_WATCH_EVERY_S)

    async def down(self, grace_s: float = 8.0) -> None:
        """End every server and its tree, and return when they are gone."""
        servers = list(self._running.values())
        for server in servers:
            server.child.ask_to_stop(grace_s)
        await asyncio.shield(asyncio.gather(*(asyncio.to_thread(server.child.stop, grace_s) for server in servers)))
        for server in servers:
            server.state = "ended"
        if self._forks is not None:
            self._forks.close()
        if self._cluster is not None:
            await asyncio.shield(self._cluster.close())

    @property
    def client_key(self) -> str:
        """What the servers ask of each other; empty where none asks for a key."""
        return self.admin_key if self._call_key else ""

    @property
    def client(self) -> ServerClient:
        """Calls the servers as one of their own."""
        return ServerClient(self.servers, self.kinds, key=self.client_key)

    async def collect(self) -> None:
        """What was recorded on other machines by now is in the folder of captures."""
        if self._cluster is not None:
            await self._cluster.collect()

    # ---- starting

    @contextlib.contextmanager
    def _bound(self) -> Iterator[dict[str, socket.socket]]:
        """A listening socket for each instance; our copies are closed again, so a dead server refuses connections."""
        socks: dict[str, socket.socket] = {}
        try:
            for instance in self._composed.instances:
                host, port = instance.settings.get("host") or "127.0.0.1", instance.settings.get("port")
                try:
                    socks[instance.name] = ports.bind(host, port)
                except OSError as error:
                    raise LaunchError(f"{host}:{port} cannot be listened on: {error.strerror}", instance.name) from None
            yield socks
        finally:
            for sock in socks.values():
                sock.close()

    def _context(self, instance: Instance, urls: Mapping[str, str], listens: tuple[str, int], **more: Any) -> bytes:
        """What one server is told."""
        host, port = listens
        context = ServerContext(
            name=instance.name,
            kind=instance.kind,
            implementation=instance.implementation,
            settings={**instance.settings, "host": host, "port": port},
            servers=dict(urls),
            kinds={one.name: one.kind for one in self._composed.instances},
            run_id=self._run_id,
            session_secret=self._session_secret,
            capture=self._capture.model_dump() | more.pop("capture", {}) if self._capture.enabled else None,
            admin_key=self.admin_key,
            call_key=self._call_key,
            **more,
        )
        return msgspec.json.encode(context)

    async def _start_on(self, cluster: Cluster) -> None:
        forkserver.end()
        await cluster.connect()
        placed = await cluster.place(self._composed.instances)
        urls = {name: remote.place.url for name, remote in placed.items()}
        for instance in self._composed.instances:
            remote = placed[instance.name]
            capture = {"dir": cluster.captures_of(remote)}
            told = self._context(instance, urls, remote.place.listens, capture=capture, ray_address=cluster.address)
            self._running[instance.name] = Server(instance, remote.place.url, remote)
            await cluster.start(remote, instance, told)

    async def _start(self, socks: dict[str, socket.socket]) -> None:
        self._forks = forkserver.taken()
        urls = {name: ports.url(sock) for name, sock in socks.items()}
        for instance in sorted(self._composed.instances, key=_is_forked):  # the others take longer: they begin at once
            file, sock = _file(instance), socks[instance.name]
            told = self._context(instance, urls, sock.getsockname()[:2])
            log_path = self._log_dir / f"{instance.name}.log"
            child = None
            if self._forks is not None and _is_forked(instance):
                child = await self._forks.start(file, venv.command(file), sock, told, log_path)
            if child is None:
                child = start(file, sock, told, os.environ, log_path)
            self._running[instance.name] = Server(instance, ports.url(sock), child)
        self._running = {one.name: self._running[one.name] for one in self._composed.instances}

    async def _all_ready(self, board: Board) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session:
            waiting = [asyncio.create_task(self._ready(s, session, board)) for s in self._running.values()]
            watching = asyncio.create_task(self.watch())
            try:
                async with asyncio.timeout(self._start_timeout_s):
                    remaining: set[asyncio.Task[Any]] = set(waiting)
                    while remaining:
                        done, _ = await asyncio.wait({*remaining, watching}, return_when=asyncio.FIRST_COMPLETED)
                        if watching in done:
                            error = watching.result()
                            board.failed(error.server)
                            raise error
                        for task in done:
                            task.result()
                        remaining -= done
            except TimeoutError:
                late = next(server for server in self._running.values() if server.state != "ready")
                board.failed(late.name)
                reason = f": {late.missing}" if late.note else ""
                raise LaunchError(
                    f"was not ready after {self._start_timeout_s:g} s{reason}",
                    late.name,
                    late.child.last_words(_LAST_LINES),
                ) from None
            finally:
                for task in (*waiting, watching):
                    task.cancel()
                await asyncio.gather(*waiting, watching, return_exceptions=True)

    async def _ready(self, server: Server, session: aiohttp.ClientSession, board: Board) -> None:
        wait, longest = _ASK_EVERY_S
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(server.question) as answer:
                    if answer.status == 200:
                        server.state, server.note, server.ready_at = "ready", "", time.time()
                        board.ready(server.name, server.url)
                        return
                    server.note = _reason(await answer.text()) or f"answers {answer.status}"
                    board.note(server.name, server.missing)
            await asyncio.sleep(wait)
            wait = min(wait * 1.3, longest)

    def _ended(self, server: Server) -> LaunchError:
        starting, server.state = server.state == "starting", "ended"
        how = (server.child.lost or _status(server.child.poll())) + (" before it was ready" if starting else "")
        words = server.child.last_words(_LAST_LINES)
        if starting and (why := own_reason(words)):
            return LaunchError(f"could not start: {why}", server.name)
        return LaunchError(how, server.name, words)


def upstreams(settings: Mapping[str, Any]) -> str:
    """The addresses behind a model server, without what may be a key in them."""
    said = settings.get("base_url")
    parts = [urlsplit(url) for url in (said if isinstance(said, list) else [said]) if isinstance(url, str)]
    return ", ".join(f"{one.scheme}://{one.netloc.rpartition('@')[2]}{one.path}" for one in parts)


def _file(instance: Instance) -> Path:
    return paths.entrypoint(instance.kind, instance.implementation, instance.settings.get("entrypoint", "app.py"))


def _is_forked(instance: Instance) -> bool:
    return not venv.needed(_file(instance))


def _status(code: int | None) -> str:
    if code is not None and code > 128:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(code - 128).name}"
    return f"ended with status {code}"


def _reason(body: str) -> str:
    """Why a server says that it is not ready."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.strip()[:200]
    for holder in (found.get("error"), found) if isinstance(found, dict) else ():
        for key in ("message", "reason", "detail"):
            if isinstance(holder, dict) and isinstance(holder.get(key), str):
                return holder[key][:200]
    return ""
