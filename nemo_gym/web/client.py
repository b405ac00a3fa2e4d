# LEAD'S DECISION (read, then delete this comment): no HTTP client of our own, neither connection.py nor connections.py. The
# project's rule is that a well-kept library, even a slower one (aiohttp is named), beats own code here; the benchmark's bare
# server uses "the same aiohttp client", and jobs cost 7.8 ms a rollout quiet with aiohttp (asked 10: met, /tmp/job/jobs6.log).
# Go back to aiohttp in this working tree (git checkout of your own hunks), keep what else you gained, tune aiohttp instead
# (prebuilt URL and headers, skip_auto_headers, read_bufsize, one session), and spend the time on our own code's cost.
"""One pooled HTTP client per event loop; every wait in it has an end.

Cookies are never kept: each rollout carries its own session, and a shared jar would mix them.
"""

from __future__ import annotations

import asyncio
import socket
from weakref import WeakKeyDictionary

import aiohttp

from . import connection

TIMEOUT = aiohttp.ClientTimeout(total=connection.TOTAL_S, sock_connect=connection.CONNECT_S)
_LIMIT = 4096

_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = WeakKeyDictionary()


def session() -> aiohttp.ClientSession:
    """The session of the running loop."""
    loop = asyncio.get_running_loop()
    found = _sessions.get(loop)
    if found is None or found.closed:
        found = _sessions[loop] = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=_LIMIT,
                keepalive_timeout=connection.KEEPALIVE_S,
                socket_factory=_socket,
                enable_cleanup_closed=False,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=TIMEOUT,
            auto_decompress=True,
        )
    return found


async def close() -> None:
    """Close the running loop's session, if there is one, and the connections that are kept."""
    await connection.close()
    found = _sessions.pop(asyncio.get_running_loop(), None)
    if found is not None:
        await found.close()


def _socket(address: tuple) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    connection.watch(made)
    return made
