"""How one server calls another: by its name in the configuration.

A peer's address is known from the start of the run. A refused connection is tried again, a few times; nothing else is,
since a request that reached a peer may have had its effect.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from aiohttp import ClientConnectorError, ClientResponse, ClientResponseError
from pydantic import BaseModel, ConfigDict, PrivateAttr

from . import client
from .body import dumps, loads
from .correlation import ROLLOUT_PREFIX
from .rollout import rollout_headers
from .runs import Run

_TRIES = 6
_FIRST_WAIT_S = 0.1
_PLAIN = re.compile(r"[!#-+\--:<-\[\]-~]*")
"""What a cookie's value may hold unquoted (RFC 6265, cookie-octet)."""


class ServerClient(BaseModel):
    """Calls the servers of this run by name.

    Args:
        base_urls: instance name to base URL.
        kinds: instance name to kind, where it is known.
        key: given with each call that has none, where the run's servers ask for one.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    head_server_config: Any = None
    """Kept for callers that give it; addresses are never asked of a head server here."""
    global_config_dict: Any = None
    """The run's servers in the three levels of a configuration: as it was given, else with their addresses only. One
    that is given may name servers with a host and a port, in the place of `base_urls` and `kinds`."""
    _server_base_urls: dict[str, str] = PrivateAttr(default_factory=dict)
    _kinds: dict[str, str] = PrivateAttr(default_factory=dict)
    _headers: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(
        self,
        base_urls: Mapping[str, str] | None = None,
        kinds: Mapping[str, str] | None = None,
        *,
        key: str = "",
        **fields: Any,
    ) -> None:
        super().__init__(**fields)
        found = _servers(self.global_config_dict or {})
        self._server_base_urls = {name: url for name, (_, url) in found.items()} | dict(base_urls or {})
        self._kinds = {name: kind for name, (kind, _) in found.items()} | dict(kinds or {})
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        if self.global_config_dict is None:
            self.global_config_dict = _described(self._server_base_urls, self._kinds)

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [("servers", sorted(self._server_base_urls))]

    @property
    def base_urls(self) -> dict[str, str]:
        return self._server_base_urls

    @property
    def kinds(self) -> dict[str, str]:
        return self._kinds

    @property
    def headers(self) -> dict[str, str]:
        return self._headers

    @classmethod
    def of_run(cls, run: Run, answer: Mapping[str, Any]) -> ServerClient:
        """A client of a run that is up.

        Args:
            answer: what its head says.
        """
        servers = answer["servers"]
        urls = {server["name"]: server["url"] for server in servers}
        return cls(urls, {server["name"]: server["kind"] for server in servers}, key=run.key)

    @classmethod
    def load_from_global_config(cls, head_server_config: Any = None) -> ServerClient:
        """A client of this process' run."""
        from .service import client_of, context

        told = context()
        return client_of(told) if told is not None else cls()

    @classmethod
    def load_head_server_config(cls) -> Any:
        """Raises LookupError: a server of a run is told of its peers when it starts, and of no head server."""
        raise LookupError("servers of a run know no head server here: peers are called by name")

    async def request(self, server_name: str, url_path: str, method: str, **kwargs: Any) -> ClientResponse:
        """A call that says which rollout it is made in, unless its path does."""
        if not url_path.startswith(ROLLOUT_PREFIX) and (about := rollout_headers()):
            kwargs["headers"] = about | dict(kwargs.get("headers") or {})
        if self._headers and not any(name.lower() == "authorization" for name in kwargs.get("headers") or {}):
            kwargs["headers"] = self._headers | dict(kwargs.get("headers") or {})
        return await request(method, self.base_url(server_name) + url_path, **kwargs)

    async def get(self, server_name: str, url_path: str, **kwargs: Any) -> ClientResponse:
        return await self.request(server_name, url_path, "GET", **kwargs)

    async def post(self, server_name: str, url_path: str, **kwargs: Any) -> ClientResponse:
        return await self.request(server_name, url_path, "POST", **kwargs)

    def base_url(self, server_name: str) -> str:
        known = self._server_base_urls
        url = known.get(server_name)
        if url is None:
            near = get_close_matches(server_name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known)) or 'none'}"
            raise ValueError(f"no server of this run is named {server_name!r}: {hint}")
        return url.rstrip("/")

    def _resolve_base_url(self, server_name: str) -> str:
        return self.base_url(server_name)

    def _build_server_base_url(self, server_config: Mapping[str, Any]) -> str:
        return f"http://{server_config['host']}:{server_config['port']}"


def _described(base_urls: Mapping[str, str], kinds: Mapping[str, str]) -> dict[str, Any]:
    described = {}
    for name, url in base_urls.items():
        host, _, port = url.rstrip("/").rpartition("://")[2].rpartition(":")
        address = _Attributes(host=host, port=int(port) if port.isdigit() else port)
        described[name] = {kinds.get(name, "resources_servers"): {name: address}}
    return described


def _servers(config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Kind and base URL of each server of a configuration that has an address."""
    found = {}
    for name, kinds in config.items():
        for kind, implementations in kinds.items() if isinstance(kinds, Mapping) else ():
            for settings in implementations.values() if isinstance(implementations, Mapping) else ():
                if isinstance(settings, Mapping) and settings.get("host") and settings.get("port"):
                    found[str(name)] = (str(kind), f"http://{settings['host']}:{settings['port']}")
    return found


class _Attributes(dict):
    """A dict whose keys are attributes too, as an OmegaConf node's are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


async def request(method: str, url: str, **kwargs: Any) -> ClientResponse:
    """One request by the pooled client; `json` may be a plain value or a pydantic object.

    Of NeMo Gym's own keywords, `_max_connection_retries` counts; `_internal` and `_server_name` change nothing here.
    """
    tries = _tries(kwargs.pop("_max_connection_retries", None))
    kwargs = {key: value for key, value in kwargs.items() if key not in ("_internal", "_server_name")}
    if (body := kwargs.pop("json", None)) is not None:
        kwargs["data"] = dumps(body)
        kwargs["headers"] = {"Content-Type": "application/json", **(kwargs.get("headers") or {})}
    if "cookies" in kwargs and (header := _plain_cookies(kwargs["cookies"])) is not None:
        del kwargs["cookies"]
        kwargs["headers"] = {**(kwargs.get("headers") or {}), **({"Cookie": header} if header else {})}
    wait = _FIRST_WAIT_S
    for attempt in range(1, tries + 1):
        try:
            return await client.session().request(method, url, **kwargs)
        except ClientConnectorError as error:
            if attempt == tries or not isinstance(error.os_error, ConnectionRefusedError):
                raise
        await asyncio.sleep(wait)
        wait *= 2
    raise AssertionError("unreachable")


def _tries(retries: int | None) -> int:
    return _TRIES if retries is None else min(_TRIES, 1 + max(0, retries))


def _plain_cookies(cookies: Any) -> str | None:
    """Cookies as one header, where nothing needs quoting: aiohttp would make a jar for them, and search it."""
    if not cookies:
        return ""
    if not isinstance(cookies, Mapping):
        return None
    pairs = [(name, value) for name, value in cookies.items() if isinstance(value, str) and _PLAIN.fullmatch(value)]
    return "; ".join(f"{name}={value}" for name, value in pairs) if len(pairs) == len(cookies) else None


async def get_response_json(response: ClientResponse) -> Any:
    """The body as JSON, exact for integers of any size."""
    return loads(await response.read())


async def raise_for_status(response: ClientResponse, content: bytes | None = None) -> None:
    """Raise a ClientResponseError that carries the answer's body as `response_content`."""
    if response.ok:
        return
    if content is None:
        content = await response.content.read() or await response.read()  # the latter has what was read before
    try:
        response.raise_for_status()
    except ClientResponseError as error:
        error.response_content = content  # type: ignore[attr-defined]
        raise
