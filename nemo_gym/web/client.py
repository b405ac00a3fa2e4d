"""One pooled HTTP client per event loop; every wait in it has an end.

Cookies are never kept: each rollout carries its own session, and a shared jar would mix them.
"""

from __future__ import annotations

import asyncio
import socket
from weakref import WeakKeyDictionary

import aiohttp
from pydantic import BaseModel, Field

TIMEOUT = aiohttp.ClientTimeout(total=3600, sock_connect=10)
_KEEPALIVE_S = 15  # shorter than a server's own (serve.py), so that no request meets a connection being closed

_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = WeakKeyDictionary()


class GlobalAIOHTTPAsyncClientConfig(BaseModel):
    """How many connections there may be at a time; 0: any number. Under the name that scripts import."""

    global_aiohttp_connector_limit: int = Field(default=4096, ge=0)
    global_aiohttp_connector_limit_per_host: int = Field(default=0, ge=0)


def session() -> aiohttp.ClientSession:
    """The session of the running loop."""
    found = _sessions.get(asyncio.get_running_loop())
    return begin() if found is None or found.closed else found


def begin(config: GlobalAIOHTTPAsyncClientConfig | None = None) -> aiohttp.ClientSession:
    """A session of the running loop, from now on."""
    limits = config or GlobalAIOHTTPAsyncClientConfig()
    made = _sessions[asyncio.get_running_loop()] = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=limits.global_aiohttp_connector_limit,
            limit_per_host=limits.global_aiohttp_connector_limit_per_host,
            keepalive_timeout=_KEEPALIVE_S,
            socket_factory=_socket,
            enable_cleanup_closed=False,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=TIMEOUT,
        auto_decompress=True,
    )
    return made


def tells_of_requests() -> bool:
    """Whether each request is printed; never, here."""
    return False


async def close() -> None:
    """Close the running loop's session, if there is one."""
    found = _sessions.pop(asyncio.get_running_loop(), None)
    if found is not None:
        await found.close()


def _socket(address: tuple) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a reply may be minutes away; a dead peer is noticed
    for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
