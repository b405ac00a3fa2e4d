"""A provider's limits and the places for calls are those of the whole server, however its calls fall among workers."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

import httpx
import pytest

from nemo_gym.capture import CaptureStore
from tests.bench import HELLO
from tests.model_server.test_workers import metric
from tests.processes import process
from tests.scripted import Answer, Request, chat_reply, scripted

CHAT = "/v1/chat/completions"
COUNT, LIMIT = 2, 10


def of_worker(index: int, number: int) -> list[str]:
    """So many rollouts that belong to one worker."""
    found = [f"r{n}" for n in range(1000) if zlib.crc32(f"r{n}".encode()) % COUNT == index]
    return found[:number]


@pytest.mark.ci
@pytest.mark.parametrize(("ours", "theirs"), [(LIMIT + 4, 0), (8, 8)])
async def test_requests_a_minute_are_the_servers(tmp_path: Path, ours: int, theirs: int) -> None:
    """One worker may have all of them; both together have no more. What is beyond waits for as long as it may."""
    async with (
        scripted([Answer(chat_reply())]) as backend,
        process(tmp_path, backend.url, num_workers=COUNT, requests_per_minute=LIMIT, timeout_s=20) as at,
        httpx.AsyncClient(base_url=at.url, timeout=120) as client,
    ):

        async def ask(rollout_id: str) -> int:
            answer = await client.post(f"/ng-rollout/{rollout_id}{CHAT}", json={"messages": HELLO})
            if answer.status_code == 429:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
            return answer.status_code

        asked = [*of_worker(0, ours), *of_worker(1, theirs)]
        statuses = await asyncio.gather(*map(ask, asked))
    calls = list(CaptureStore(tmp_path / "captures").calls())
    assert len(calls) == len(asked)  # refused ones too  # C1
    begun = sorted(attempt.started for call in calls for attempt in call.attempts)
    assert len(begun) == statuses.count(200) >= LIMIT
    assert set(statuses) <= {200, 429}
    assert all(later - earlier > 59.9 for earlier, later in zip(begun, begun[LIMIT:], strict=False))
    if begun[-1] - begun[0] < 30:  # so it is, unless the machine sleeps meanwhile
        assert statuses.count(429) == len(asked) - LIMIT


PLACES = {
    "max_in_flight": ({"max_in_flight": 6, "max_queue": 2}, "ng_calls_queued"),
    "max_concurrent_requests": ({"max_concurrent_requests": 6}, "ng_replica_queue"),
}


@pytest.mark.ci
@pytest.mark.parametrize("key", PLACES)
async def test_a_busy_worker_may_have_all_places(tmp_path: Path, key: str) -> None:
    """The other one's call waits, though nothing of its own is in flight, and is told when there is a place."""
    settings, waiting = PLACES[key]
    go_on = asyncio.Event()

    def answer(request: Request) -> Answer:
        return Answer(chat_reply(), held=go_on) if request.asks else Answer({"object": "list", "data": []})

    async with (
        scripted(answer) as backend,
        process(tmp_path, backend.url, num_workers=COUNT, **settings) as at,
        httpx.AsyncClient(base_url=at.url, timeout=120) as client,
    ):

        async def ask(rollout_id: str) -> httpx.Response:
            return await client.post(f"/ng-rollout/{rollout_id}{CHAT}", json={"messages": HELLO})

        async def until_waiting(count: int) -> None:
            for _ in range(600):
                if metric((await client.get("/metrics")).text, waiting) == count:
                    return
                await asyncio.sleep(0.1)
            raise AssertionError(f"{count} calls do not wait")

        busy, idle = of_worker(0, 8), of_worker(1, 2)
        asked = [asyncio.create_task(ask(rollout_id)) for rollout_id in busy[:6]]
        for _ in range(600):
            if len(backend.calls) == 6:
                break
            await asyncio.sleep(0.1)
        assert len(backend.calls) == 6  # one worker has all there are
        asked.append(asyncio.create_task(ask(idle[0])))
        await until_waiting(1)
        asked.append(asyncio.create_task(ask(busy[6])))
        await until_waiting(2)
        if key == "max_in_flight":  # and so is the queue the whole server's
            for rollout_id in (busy[7], idle[1]):
                refused = await ask(rollout_id)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert len(backend.calls) == 6
        go_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 8
        assert len(backend.calls) == 8
        await until_waiting(0)
