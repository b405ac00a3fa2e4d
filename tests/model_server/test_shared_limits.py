"""A provider's limits a minute are those of the whole server, however its calls fall among the workers."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

import httpx
import pytest

from nemo_gym.capture import CaptureStore
from tests.bench import HELLO
from tests.processes import process
from tests.scripted import Answer, chat_reply, scripted

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
