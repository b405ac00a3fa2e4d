"""A server killed under load: every answer that a client had whole is in the capture, whole (C6, A8)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.upkeep import repair
from tests.processes import process
from tests.scripted import Answer, chat_reply, scripted

CLIENTS = 12


def answer(request: Any) -> Answer:
    """What was asked, said back: each reply is one of its kind."""
    if not request.asks:
        return Answer({"data": []})
    asked = request.json()["messages"][-1]["content"]
    return Answer(chat_reply(f"You said {asked}. " * 20, id=f"chatcmpl-{asked}"))


async def ask_until_the_end(url: str, number: int, generation: int, received: dict[str, str]) -> None:
    """One rollout after another; what was received whole, by what was asked."""
    async with aiohttp.ClientSession() as client:
        for turn in range(100_000):
            asked = f"{generation}-{number}-{turn}"
            body = {"messages": [{"role": "user", "content": asked}], "stream": turn % 2 == 1}
            path = f"{url}/ng-rollout/g{generation}c{number}r{turn // 4}/v1/chat/completions"
            async with client.post(path, json=body) as got:
                text = await got.text()
                assert got.status == 200, text
            if not body["stream"]:
                received[asked] = json.loads(text)["choices"][0]["message"]["content"]
            elif text.endswith("data: [DONE]\n\n"):
                chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
                received[asked] = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


@pytest.mark.parametrize("times", [pytest.param(4, marks=pytest.mark.ci), pytest.param(60, marks=pytest.mark.nightly)])
async def test_a_server_killed_under_load(tmp_path: Path, times: int) -> None:
    chance = random.Random(5)
    received: dict[str, str] = {}
    async with scripted(answer) as backend:
        for generation in range(times):
            workers = 1 + generation % 2
            async with process(tmp_path, backend.url, num_workers=workers) as at:
                load = [
                    asyncio.ensure_future(ask_until_the_end(at.url, number, generation, received))
                    for number in range(CLIENTS)
                ]
                had = len(received)
                while len(received) < had + 30:  # noqa: ASYNC110 - it is under load by now, on any machine
                    await asyncio.sleep(0.01)
                await asyncio.sleep(chance.uniform(0, 0.3))
                at.child.send_signal(signal.SIGKILL)
                for one in load:
                    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                        await asyncio.wait_for(one, 60)
    store = CaptureStore(tmp_path / "captures")

    def check() -> None:
        recorded = {
            record.received.origin.body["messages"][-1]["content"]: record.reply.choices[0].parts[0].text
            for record in store.calls()
            if record.status == "answered" and record.relation != "repeat"
        }
        assert {asked: recorded.get(asked) for asked in received} == received
        assert store.verify().problems == []

    check()
    list(repair(store))
    assert store.verify().torn == []
    check()
