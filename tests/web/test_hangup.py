"""A caller's hang-up cancels the work, but not what follows an answer."""

import asyncio

from nemo_gym.web.hangup import CancelOnHangUp


class Wire:
    """One request's receive and send, hung up when told."""

    def __init__(self, *messages):
        self.messages = [{"type": "http.request", "body": b"", "more_body": False}, *messages]
        self.hung_up = asyncio.Event()
        self.sent = []

    async def receive(self):
        if self.messages:
            return self.messages.pop(0)
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message["type"])


async def answer(send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_work_ends_with_the_caller():
    ended = asyncio.Event()

    async def app(scope, receive, send):
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    wire = Wire()
    serving = asyncio.create_task(CancelOnHangUp(app)({"type": "http"}, wire.receive, wire.send))
    await asyncio.sleep(0.01)
    assert not ended.is_set()
    wire.hung_up.set()
    await asyncio.wait_for(serving, 1)
    assert ended.is_set()
    assert wire.sent == []


async def test_background_work_after_the_answer_goes_on():
    done = asyncio.Event()

    async def app(scope, receive, send):
        await answer(send)
        await asyncio.sleep(0.05)
        done.set()

    wire = Wire()
    wire.hung_up.set()
    await asyncio.wait_for(CancelOnHangUp(app)({"type": "http"}, wire.receive, wire.send), 1)
    assert done.is_set()
    assert wire.sent == ["http.response.start", "http.response.body"]


async def test_failures_pass_through():
    async def app(scope, receive, send):
        raise KeyError("x")

    wire = Wire()
    try:
        await CancelOnHangUp(app)({"type": "http"}, wire.receive, wire.send)
    except KeyError:
        return
    raise AssertionError("the failure was swallowed")
