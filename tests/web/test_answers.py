"""An answer that is there whole is one write, and on the wire what uvicorn itself would have written."""

import pytest

from nemo_gym.web.answers import write_whole
from tests.web.test_hangup import answer, connected, served_bare

TYPE = (b"content-type", b"application/json")
BODY = b'{"a": 1}'


async def asked(port, request, until):
    reader, writer = await connected(port)
    writer.write(request)
    data = await reader.readuntil(until)
    writer.close()
    return data


class Noting:
    """A connection's transport, and what is written to it."""

    def __init__(self, transport):
        self.transport, self.writes = transport, []

    def __getattr__(self, name):
        return getattr(self.transport, name)

    def write(self, data):
        self.writes.append(data)
        self.transport.write(data)


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
async def test_one_write(closes, chunked):
    noted = []

    async def app(scope, receive, send):
        cycle = send.__self__
        cycle.transport = Noting(cycle.transport)
        noted.append(cycle.transport)
        assert write_whole(send, 200, [TYPE], BODY, chunked=chunked)
        assert not write_whole(send, 200, [TYPE], BODY)

    head = b"connection: close\r\n" if closes else b""
    end = b"0\r\n\r\n" if chunked else BODY
    async with served_bare(app) as port:
        data = await asked(port, b"GET / HTTP/1.1\r\nhost: x\r\n%b\r\n" % head, end)
    assert noted[0].writes == [data]
    fields, _, body = data.partition(b"\r\n\r\n")
    first, *lines = fields.split(b"\r\n")
    assert first == b"HTTP/1.1 200 OK"
    length = b"transfer-encoding: chunked" if chunked else b"content-length: 8"
    expected = {b"content-type: application/json", length} | ({b"connection: close"} if closes else set())
    assert {line for line in lines if not line.startswith(b"date: ")} == expected
    assert body == (b"8\r\n%b\r\n0\r\n\r\n" % BODY if chunked else BODY)


async def test_requests_that_were_sent_ahead_are_answered_in_order():
    async def app(scope, receive, send):
        assert write_whole(send, 200, [TYPE], scope["path"].encode())

    requests = b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(5))
    async with served_bare(app) as port:
        data = await asked(port, requests, b"/4")
    assert [line[-2:] for line in data.split(b"HTTP/1.1 200 OK")[1:]] == [b"/%d" % number for number in range(5)]


async def test_what_goes_by_send():
    async def app(scope, receive, send):
        async def through(message):
            await send(message)

        assert not write_whole(through, 200, [TYPE], BODY)  # another's `send`
        assert write_whole(send, 200, [TYPE], BODY) == (scope["method"] != "HEAD")
        if scope["method"] == "HEAD":
            await answer(send)

    async with served_bare(app) as port:
        assert b"content-length: 2\r\n" in await asked(port, b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n\r\n")
        assert (await asked(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", BODY)).endswith(BODY)


@pytest.mark.parametrize("upgrade", [b"Upgrade: h2c\r\n", b"upgrade : H2C\r\n"])
async def test_a_wish_to_change_the_protocol_costs_no_body(upgrade):
    """A1: a Java client asks for it with each request, and takes no answer for a no."""

    async def app(scope, receive, send):
        message = await receive()
        assert write_whole(send, 200, [TYPE], message["body"])

    settings = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    head = b"POST / HTTP/1.1\r\n%b%bContent-Length: 8\r\n\r\n" % (settings, upgrade)
    async with served_bare(app) as port:
        data = await asked(port, head + BODY, BODY)
    assert data.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("pieces", [[BODY], [b"data: a\n\n", b"", b"data: bc\n\n"]])
async def test_a_client_of_http_1_0_is_sent_no_chunks(pieces):
    """It does not know them (RFC 9112, 6.1): what has no length ends with the connection."""
    seen = []

    async def app(scope, receive, send):
        seen.append(write_whole(send, 200, [TYPE], BODY, chunked=True))
        await send({"type": "http.response.start", "status": 200, "headers": [TYPE]})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})

    async with served_bare(app) as port:
        reader, writer = await connected(port)
        writer.write(b"POST / HTTP/1.0\r\ncontent-length: 0\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert seen == [False]
    assert b"connection: close" in head and b"transfer-encoding" not in head
    assert body == b"".join(pieces) + b"end"


async def test_an_answer_with_a_length_has_it_over_http_1_0_too():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [TYPE, (b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": BODY})

    async with served_bare(app) as port:
        reader, writer = await connected(port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.count(b"content-length: 8") == 1 and body == BODY
