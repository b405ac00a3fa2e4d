"""The real Claude Code over each backend dialect: a task with a tool, a stop for length, a stream that is cut."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import clients
from tests.live.conftest import Servers
from tests.live.test_clients import PLAN, PROMPT, finished, written
from tests.player import Player, Turn

pytestmark = [pytest.mark.live, pytest.mark.ci]


@pytest.mark.parametrize("backend", ["chat", "responses", "messages"])
def test_a_tool_using_task(servers: Servers, tmp_path: Path, backend: str) -> None:
    rollout_id = f"claude-{backend}"
    calls = written(servers, clients.claude(servers.urls[backend]), tmp_path, rollout_id)
    assert {call.dialect for call in calls} == {"messages"}
    assert [call.relation for call in calls] == ["first", "turn"]


@pytest.mark.parametrize("backend", ["chat", "messages"])
def test_a_stop_for_length_is_continued(servers: Servers, tmp_path: Path, backend: str) -> None:  # M3
    rollout_id = f"claude-length-{backend}"
    turns = [Turn(text="The first half", cut=True), Turn(text="and the second.")]
    servers.play(Player(turns, order=True))
    ended = clients.run(clients.claude(servers.urls[backend]), tmp_path, rollout_id, "Say it.")
    first, second = finished(servers, ended, rollout_id)
    assert "and the second." in ended.said
    asked = [call.received.sampling.max_tokens for call in (first, second)]
    assert asked[0] < asked[1]
    assert [call.reply.choices[0].finish for call in (first, second)] == ["length", "stop"]
    assert (first.relation, second.relation, second.parent_call_id) == ("first", "turn", first.call_id)


class Cutting:
    """A wire to a server that ends the first event stream after its first events: the body is whole, the stream not."""

    def __init__(self, url: str) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port = int(port)
        self.cuts = 0
        self.url = ""

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        ways = [
            asyncio.create_task(self._pass(reader, back, False)),
            asyncio.create_task(self._pass(there, writer, True)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, back):
            end.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, cutting: bool) -> None:
        streams = False
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
                streams = streams or b"text/event-stream" in data
                if cutting and streams and not self.cuts and b"data: " in data:
                    self.cuts += 1
                    sink.write(b"0\r\n\r\n")  # the last chunk; a server writes whole ones
                    await sink.drain()
                    return
                await sink.drain()


@contextlib.contextmanager
def cut(url: str) -> Iterator[Cutting]:
    loop, at = asyncio.new_event_loop(), Cutting(url)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(at.connect, "127.0.0.1", 0), loop).result(10)
    at.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield at
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def test_a_cut_stream_is_no_second_sample(servers: Servers, tmp_path: Path) -> None:  # A16 A7
    rollout_id = "claude-cut"
    servers.play(Player(PLAN, delay=3.0))
    with cut(servers.urls["early"]) as wire:
        ended = clients.run(clients.claude(wire.url), tmp_path, rollout_id, PROMPT)
    assert ended.code == 0, ended.said
    first, again, second = servers.calls(rollout_id)
    assert wire.cuts == 1
    assert len(servers.backend.calls) == 2
    assert [call.relation for call in (first, again, second)] == ["first", "repeat", "turn"]
    assert [call.streamed for call in (first, again, second)] == [True, False, True]
    assert again.reply.choices == first.reply.choices
    assert ended.note() == "written by a tool"
