"""Large requests take turns to be written, not to be answered; what fails gives its place back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from nemo_gym.backends.sending import AT_ONCE, LARGE, Turn
from tests.bench import bench
from tests.scripted import Answer, chat_reply


async def test_at_most_so_many_are_made_at_a_time() -> None:
    places = asyncio.Semaphore(2)
    made: list[int] = []
    go = asyncio.Event()

    async def send(number: int, size: int) -> None:
        async with Turn(places, size) as turn:
            made.append(number)
            assert bytes(getattr(turn.noted(b"x" * size), "_value", b"x" * size)) == b"x" * size
            await go.wait()

    large = [asyncio.ensure_future(send(number, LARGE)) for number in range(5)]
    small = [asyncio.ensure_future(send(10 + number, LARGE - 1)) for number in range(5)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert sorted(made) == [0, 1, 10, 11, 12, 13, 14]
    large[0].cancel()  # a try that ends gives its place back
    for _ in range(10):
        await asyncio.sleep(0)
    assert 2 in made
    go.set()
    await asyncio.gather(*large[1:], *small)
    assert not places.locked()


@pytest.mark.ci
async def test_slow_answers_hold_nobody_up(tmp_path: Path) -> None:
    count = AT_ONCE + 8
    body = {"messages": [{"role": "user", "content": "x" * 2 * LARGE}]}
    async with (
        bench(tmp_path, [Answer(chat_reply(), delay=8.0)]) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60, limits=httpx.Limits(max_connections=count)) as client,
    ):
        asked = [asyncio.ensure_future(client.post("/v1/chat/completions", json=body)) for _ in range(count)]
        while len(at.backend.calls) < count:  # every one is there, though the first have no answer yet
            assert not all(one.done() for one in asked[:AT_ONCE])
            await asyncio.sleep(0.01)
        answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} == {200}
