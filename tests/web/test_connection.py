# LEAD'S DECISION (read, then delete this comment): no HTTP client of our own, neither connection.py nor connections.py. The
# project's rule is that a well-kept library, even a slower one (aiohttp is named), beats own code here; the benchmark's bare
# server uses "the same aiohttp client", and jobs cost 7.8 ms a rollout quiet with aiohttp (asked 10: met, /tmp/job/jobs6.log).
# Go back to aiohttp in this working tree (git checkout of your own hunks), keep what else you gained, tune aiohttp instead
# (prebuilt URL and headers, skip_auto_headers, read_bufsize, one session), and spend the time on our own code's cost.
"""Whole answers over kept connections: however they are cut, and whatever the peer does."""

import asyncio
import contextlib

import pytest
import uvloop
from aiohttp import web

from nemo_gym.web import client
from nemo_gym.web.body import dumps, loads
from nemo_gym.web.peers import ServerClient

LONG_S = 60
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer:
    """Answers each request on a connection with the next of these; None closes it. Keeps what it was sent."""

    def __init__(self, *answers, pieces=False):
        self.answers = list(answers)
        self.pieces = pieces
        self.seen = []
        self.connections = 0
        self.serving = []
        self.gone = asyncio.Event()

    async def serve(self, reader, writer):
        self.connections += 1
        self.serving.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line[15:]) for line in head.split(b"\r\n") if line[:15] == b"content-length:"), 0)
                self.seen.append((head, await reader.readexactly(length)))
                if not self.answers:  # nothing is said
                    await reader.read()
                    break
                if (answer := self.answers.pop(0)) is None:
                    break
                for piece in [bytes([byte]) for byte in answer] if self.pieces else [answer]:
                    writer.write(piece)
                    await writer.drain()
                if b"connection: close" in answer or (b"content-length" not in answer and b"chunked" not in answer):
                    break
        self.gone.set()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def up(self):
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield ServerClient({"it": f"http://127.0.0.1:{port}"})
        finally:
            await client.close()
            server.close()
            await asyncio.wait_for(asyncio.gather(*self.serving), LONG_S)


async def test_one_connection_for_calls_in_turn_and_more_for_those_at_once():
    peer = Peer(*[OK] * 5)
    async with peer.up() as call:
        for _ in range(3):
            answer = await call.ask("it", "/x", {"a": 1})
            assert (answer.status, answer.ok, answer.body, answer.text()) == (200, True, b"ok", "ok")
        assert peer.connections == 1
        await asyncio.gather(call.ask("it", "/y"), call.ask("it", "/y", method="GET"))
        assert peer.connections == 2
    head, body = peer.seen[0]
    assert head.startswith(b"POST /x HTTP/1.1\r\nhost: 127.0.0.1:") and body == b'{"a":1}'
    assert sorted(head.split(b" ")[0] for head, _ in peer.seen[3:]) == [b"GET", b"POST"]


@pytest.mark.parametrize("pieces", [False, True])
async def test_an_answer_however_it_is_cut(pieces):
    cut = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n[\r\n4\r\n1, 2\r\n1\r\n]\r\n0\r\n\r\n"
    before = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK
    until_the_end = b'HTTP/1.1 404 Not Found\r\nset-cookie: a=b; Path=/\r\nSet-Cookie: c="d e"\r\n\r\nnothing here'
    peer = Peer(cut, before, until_the_end, OK, pieces=pieces)
    async with peer.up() as call:
        assert (await call.ask("it", "/x")).json() == [1, 2]
        assert (await call.ask("it", "/x")).body == b"ok"
        answer = await call.ask("it", "/x")
        assert (answer.status, answer.ok, answer.body) == (404, False, b"nothing here")
        assert answer.cookies() == {"a": "b", "c": "d e"}
        assert (await call.ask("it", "/x")).body == b"ok"
        assert peer.connections == 2


async def test_a_connection_that_is_closed_meanwhile_is_not_used_again():
    peer = Peer(OK, b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", OK)
    async with peer.up() as call:
        for _ in range(3):
            assert (await call.ask("it", "/x")).body == b"ok"
        assert peer.connections == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "closed the connection before its answer was whole"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nok", "before its answer was whole"),
        (b"\x00\x01 garbage\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "no HTTP answer"),
    ],
)
async def test_what_is_no_whole_answer_fails_that_call_alone(answer, words):
    peer = Peer(answer, OK)
    async with peer.up() as call:
        with pytest.raises(ConnectionError, match=words):
            async with asyncio.timeout(LONG_S):
                await call.ask("it", "/x", {})
        assert len(peer.seen) == 1  # it is not tried again
        assert (await call.ask("it", "/x", {})).body == b"ok"


async def test_a_late_answer_and_a_caller_that_gives_up_end_the_connection():
    for late in (True, False):
        peer = Peer()
        async with peer.up() as call:
            asking = asyncio.create_task(call.ask("it", "/x", {}, within=0.05 if late else None))
            while not peer.seen:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if not late:
                asking.cancel()
            with pytest.raises(TimeoutError if late else asyncio.CancelledError):
                await asking
            await asyncio.wait_for(peer.gone.wait(), LONG_S)


def test_large_bodies_both_ways_on_the_loop_of_the_servers():
    text = "ä" * 3_000_000

    async def echo(request):
        return web.Response(body=await request.read())

    async def both_ways():
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/echo", echo)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        call = ServerClient({"it": f"http://127.0.0.1:{runner.addresses[0][1]}/"})
        answers = await asyncio.gather(*(call.ask("it", "/echo", {"n": n, "text": text}) for n in range(4)))
        assert [answer.json() for answer in answers] == [{"n": n, "text": text} for n in range(4)]
        await client.close()
        await runner.cleanup()

    uvloop.run(both_ways())


async def test_what_may_not_stand_in_a_head():
    peer = Peer(OK, OK)
    async with peer.up() as call:
        await call.ask("it", "/a b\r\nx: y/ü?q=1 2", cookies={"plain": "v", "odd": 'a "b"; c'})
        call.headers = {"authorization": "Bearer x\r\nevil: 1"}
        with pytest.raises(ValueError, match="authorization"):
            await call.ask("it", "/x")
    (head, _), *rest = peer.seen
    assert not rest
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /a%20bx:%20y/%C3%BC?q=1+2 HTTP/1.1"
    assert [line.partition(b":")[0] for line in lines if line] == [lines[0].partition(b":")[0], b"host", b"cookie"]


@pytest.mark.parametrize(
    "value", [2**70, -(2**64), "\ud800", {"a": [1.5, None, True, "ü"]}, 9007199254740993, "x" * 10, {}]
)
def test_a_body_is_read_back_as_it_was(value):
    assert loads(dumps(value)) == value


def test_what_is_no_json():
    for body in (b"", b"\x00<html>", b"\xff", b"[1", b"[" * 100_000 + b"]" * 100_000):
        with pytest.raises(ValueError, match=r"decode|Expecting|too deeply"):
            loads(body)
