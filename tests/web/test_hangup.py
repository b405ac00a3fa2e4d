"""A caller's hang-up cancels the work, but not what follows an answer; told by a real connection."""

import asyncio
from contextlib import asynccontextmanager

from nemo_gym.web.hangup import CancelOnHangUp
from nemo_gym.web.serve import BackgroundServer
from tests.loopback import listening

LONG_S = 60
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


async def answer(send, body=b"ok"):
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def lifespan(receive, send):
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": message["type"] + ".complete"})
    await send({"type": "lifespan.shutdown.complete"})


def served(app):
    """The port of a server as every server is served."""
    return served_bare(CancelOnHangUp(app))


@asynccontextmanager
async def served_bare(app):
    """The port of a server of this app and nothing else."""

    async def whole(scope, receive, send):
        await (lifespan(receive, send) if scope["type"] == "lifespan" else app(scope, receive, send))

    sock = listening()
    server = BackgroundServer(whole, sock)
    await server.start()
    try:
        yield sock.getsockname()[1]
    finally:
        await server.stop()


async def connected(port):
    return await asyncio.open_connection("127.0.0.1", port)


async def test_work_ends_with_the_caller(caplog):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        assert (await receive())["body"] == b"{}"
        begun.set()
        try:
            await asyncio.sleep(LONG_S)
        finally:
            ended.set()

    async with served(app) as port:
        _, writer = await connected(port)
        writer.write(REQUEST)
        await asyncio.wait_for(begun.wait(), LONG_S)
        assert not ended.is_set()
        writer.close()
        await asyncio.wait_for(ended.wait(), LONG_S / 2)
    assert not [record for record in caplog.records if "Exception in ASGI" in record.message]


async def test_background_work_after_the_answer_goes_on():
    goes_on, done = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        await answer(send)
        await goes_on.wait()
        done.set()

    async with served(app) as port:
        reader, writer = await connected(port)
        writer.write(REQUEST)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.05)
        goes_on.set()
        await asyncio.wait_for(done.wait(), LONG_S)


async def test_a_connection_that_goes_on_ends_the_request_it_carries_and_no_earlier_one():
    seen = []
    second = asyncio.Event()

    async def app(scope, receive, send):
        number = len(seen)
        seen.append("begun")
        try:
            if number == 1:
                second.set()
                await asyncio.sleep(LONG_S)
            await answer(send)
        except asyncio.CancelledError:
            seen[number] = "cancelled"
            raise
        seen[number] = "answered"

    async with served(app) as port:
        reader, writer = await connected(port)
        writer.write(REQUEST)
        await reader.readuntil(b"ok")
        writer.write(REQUEST)
        await asyncio.wait_for(second.wait(), LONG_S)
        writer.close()
        async with asyncio.timeout(LONG_S):
            while seen != ["answered", "cancelled"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_failures_pass_through():
    failed = []

    async def app(scope, receive, send):
        raise KeyError("x")

    async def outer(scope, receive, send):
        try:
            await CancelOnHangUp(app)(scope, receive, send)
        except KeyError as error:
            failed.append(error)

    await outer({"type": "http", "nemo_gym.on_hang_up": lambda when: None}, None, None)
    assert len(failed) == 1
