"""An address is told to others only once it is bound.

The launcher binds every server's socket before the first server starts and hands it over, so no port is drawn twice
and none is lost in between.
"""

from __future__ import annotations

import socket
from collections.abc import Collection


def bind(host: str, port: int | None) -> socket.socket:
    """A listening socket; the system chooses the port when it is None or 0.

    Raises:
        OSError: the address cannot be listened on.
    """
    family = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0][0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port or 0))
        sock.listen(2048)
    except OSError:
        sock.close()
        raise
    return sock


def find_open_port(disallowed_ports: Collection[int] | None = None, max_retries: int = 50) -> int:
    """A port that nobody listened on just now, for programs that bind one themselves. Raises RuntimeError."""
    for _ in range(max_retries):
        with bind("127.0.0.1", None) as sock:
            port: int = sock.getsockname()[1]
        if port not in (disallowed_ports or ()):
            return port
    raise RuntimeError(f"no port was found in {max_retries} tries that is not among those disallowed")


def url(sock: socket.socket) -> str:
    """The base URL under which this machine's processes reach the socket."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
