"""Whether the socket took an answer to its end. # A16"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from nemo_gym.model_server.deadlines import Deadlines
from nemo_gym.model_server.delivery import Delivery


class Wire:
    """An answer's way into a real socket, as uvicorn's."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self.transport = transport

    async def send(self, message: dict[str, Any]) -> None:
        self.transport.write(message.get("body", b""))


@pytest.mark.parametrize("reads", [True, False])
async def test_a_small_last_piece_waits_for_what_is_before_it(reads: bool) -> None:
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    _, writer = await asyncio.open_connection(sock=ours)
    delivery = Delivery({}, Wire(writer.transport).send, Deadlines(30.0), keepalive_s=15.0)
    text = b"x" * 4_000_000
    writer.transport.write(text)  # more than a socket holds
    ending = asyncio.create_task(delivery._last(b"the end"))
    done, _ = await asyncio.wait({ending}, timeout=0.3)
    assert not done
    if not reads:
        theirs.close()
        assert await asyncio.wait_for(ending, 30) is False
        return
    loop, size = asyncio.get_running_loop(), 0
    while size < len(text) + len(b"the end"):
        size += len(await loop.sock_recv(theirs, 1 << 20))
    assert await asyncio.wait_for(ending, 30) is True
    theirs.close()
    writer.close()
