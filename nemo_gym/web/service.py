"""What all three kinds of server share: how one is made from what the launcher hands over, and served.

The launcher writes one JSON document to the server's standard input and leaves it a listening socket. Nothing secret
is in argv or in the environment. `setup_webserver` gives the ASGI app; all else is the same for every server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from aiohttp import ClientResponseError
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from nemo_gym.config import paths
from nemo_gym.config.secrets import secret_values
from nemo_gym.config.types import BaseRunServerInstanceConfig

from . import client, logs, workers
from .bugs import AnswersBugs
from .guard import Guard
from .hangup import CancelOnHangUp
from .peers import ServerClient
from .session import add_sessions

LISTEN_FD = "NG_LISTEN_FD"
_OPEN_FILES = 65535

logger = logging.getLogger("nemo_gym")


class ServerContext(msgspec.Struct, frozen=True):
    """What the launcher tells one server. `settings` hold secrets: never logged, never in a repr."""

    name: str
    kind: str
    implementation: str
    settings: dict[str, Any]
    servers: dict[str, str] = {}
    kinds: dict[str, str] = {}
    run_id: str = ""
    session_secret: str = ""
    capture: dict[str, Any] | None = None
    admin_key: str = ""
    call_key: str = ""
    """Where servers are on several machines, or one has keys of its own: what the run's own calls may give besides the
    admin key, which peers give."""
    ray_address: str = ""
    """The cluster that the run is on."""

    def __repr__(self) -> str:
        return f"ServerContext({self.kind} {self.name!r}, run {self.run_id!r})"


def client_of(told: ServerContext) -> ServerClient:
    """How a server calls its peers."""
    return ServerClient(told.servers, told.kinds, key=told.admin_key if told.call_key else "")


_context: ServerContext | None = None


def context() -> ServerContext | None:
    """What this process was told by the launcher; None outside of a server."""
    return _context


def get_global_config_dict() -> dict[str, Any]:
    """The run's servers in the three levels of a configuration, with their addresses only."""
    return client_of(_context).global_config_dict if _context else {}


def maybe_get_global_config_dict() -> dict[str, Any] | None:
    """The same; None outside of a server."""
    return get_global_config_dict() if _context else None


def get_hf_token() -> str | None:
    """For data sets that are not open to all: from the environment, since servers are told no secret but their own."""
    return os.environ.get("HF_TOKEN") or None


def get_first_server_config_dict(config: Mapping[str, Any], name: str) -> Any:
    """A server's innermost level: `instance -> kind -> implementation`."""
    (implementations,) = config[name].values()
    (settings,) = implementations.values()
    return settings


def get_server_url(name: str) -> str:
    """A peer's base URL; by `server_utils.get_global_config_dict`, where a test of an environment has replaced that."""
    said = getattr(sys.modules.get("nemo_gym.server_utils"), "get_global_config_dict", get_global_config_dict)
    if said is not get_global_config_dict:
        return ServerClient(global_config_dict=said()).base_url(name)
    return ServerClient(_context.servers if _context else {}).base_url(name)


def is_nemo_gym_fastapi_entrypoint(file: str) -> bool:
    """Whether an entrypoint is imported as a worker of itself; never so here: a worker is a server like any other."""
    return False


def enter_own_folder(told: ServerContext) -> None:
    """Servers open files by paths below their own folder, since NeMo Gym runs them there; paths that a configuration
    has go on to mean what they meant."""
    folder = paths.locate(Path(told.kind) / told.implementation)
    if folder.is_dir():
        paths.move_to(folder)


class SimpleServer(BaseModel):
    """A server with routes. Subclasses name their own config class in `config`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    config: BaseRunServerInstanceConfig
    server_client: ServerClient
    ray_enabled: ClassVar[bool | None] = None
    """Kept for environments that set it; nothing here starts Ray for them."""

    @property
    def context(self) -> ServerContext | None:
        return _context

    def setup_webserver(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no setup_webserver")

    def get_session_middleware_key(self) -> str:
        return f"{type(self).__name__}___{self.config.name}"

    def setup_session_middleware(self, app: FastAPI) -> None:
        """Sessions by cookie, signed with the secret of this run."""
        secret = _context.session_secret if _context else None
        add_sessions(app, self.get_session_middleware_key(), secret)

    def setup_exception_middleware(self, app: FastAPI) -> None:
        """A failure in a route is logged whole and answered with a body that says what kind it was."""
        app.add_exception_handler(ClientResponseError, _peer_failed)
        app.add_exception_handler(Exception, _failed)

    def setup_cancellation_middleware(self, app: FastAPI) -> None:
        """A caller that hangs up ends what its request does."""
        app.add_middleware(CancelOnHangUp)

    @classmethod
    def config_class(cls) -> type[BaseRunServerInstanceConfig]:
        found = cls.model_fields["config"].annotation
        assert isinstance(found, type)
        return found

    @classmethod
    def run_webserver(cls) -> None:
        """Read the context, build the server, serve it until SIGTERM."""
        global _context
        from .serve import serve

        logs.setup()
        if LISTEN_FD not in os.environ:
            sys.exit(f"{cls.__name__} is started by ng_run, which hands it a socket and its settings")
        sock = socket.socket(fileno=int(os.environ.pop(LISTEN_FD)))
        sock.set_inheritable(False)
        _context = msgspec.json.decode(sys.stdin.buffer.read(), type=ServerContext)
        enter_own_folder(_context)
        server = cls.from_context(_context)
        hidden = secret_values(_context.settings) | {_context.admin_key, _context.session_secret, _context.call_key}
        logs.setup(hidden, server.config.log_format)
        _raise_file_limit()
        if (count := server.processes()) > 1:
            workers.fork(count, sock)
        serve(server.guarded(server.asgi()), sock)

    @classmethod
    def from_context(cls, told: ServerContext) -> SimpleServer:
        """The server as it was told to be; a config that does not fit ends the process with words."""
        try:
            config = cls.config_class().model_validate({**cls._keyed(told), "name": told.name})
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False)]
            sys.exit(f"{told.name}: " + "; ".join(faults))
        return cls(config=config, server_client=client_of(told))

    @classmethod
    def _keyed(cls, told: ServerContext) -> dict[str, Any]:
        """Its settings. A server that asks for keys takes the run's besides; beyond one machine each asks for them,
        unless it is told to take none."""
        settings = told.settings
        own = settings.get("api_keys") or []
        asks = own or (told.ray_address and not settings.get("allow_unauthenticated"))
        if not told.call_key or not cls._has_keys() or not asks:
            return settings
        return {**settings, "api_keys": [*own, told.call_key, told.admin_key]}

    @classmethod
    def _has_keys(cls) -> bool:
        return "api_keys" in cls.config_class().model_fields

    def guarded(self, app: Any) -> Any:
        """The app with what the run's machines ask of each other in front of it."""
        if _context is None or not _context.ray_address or self._has_keys():
            return app
        return Guard(app, (_context.admin_key, _context.call_key))

    def processes(self) -> int:
        """How many processes serve it. Sessions are in memory, so more than one is for servers that know of it."""
        if (self.config.num_workers or 1) > 1:
            logger.warning("%s: num_workers: this kind of server runs in one process", self.config.name)
        return 1

    def asgi(self) -> Any:
        """The app as it is served: `setup_webserver`'s, and what every FastAPI one gets besides."""
        app = self.setup_webserver()
        if isinstance(app, FastAPI):
            _add_liveness(app)
            self.setup_exception_middleware(app)
            _close_client_at_end(app)
            app.add_middleware(AnswersBugs)  # here, since a test of an app by itself wants the exception
            self.setup_cancellation_middleware(app)
        return app


def _add_liveness(app: FastAPI) -> None:
    async def alive() -> dict[str, str]:
        return {"status": "ok"}

    known = {getattr(route, "path", None) for route in app.routes}
    for path in ("/health", "/healthz", "/livez", "/readyz", "/"):
        if path not in known:
            app.get(path, include_in_schema=False)(alive)


def _close_client_at_end(app: FastAPI) -> None:
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state:
            try:
                yield state
            finally:
                await client.close()

    app.router.lifespan_context = lifespan


async def _peer_failed(request: Request, error: Exception) -> JSONResponse:
    body = getattr(error, "response_content", b"")[:4096].decode("utf-8", "replace")
    status = getattr(error, "status", 500)
    logger.error("%s: a peer answered %s: %s", request.url.path, status, body)
    return JSONResponse(f"a server that {request.url.path} calls answered {status}: {body}", status_code=500)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(repr(error), status_code=500)  # a model that called the tool reads it; uvicorn logs the rest


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
