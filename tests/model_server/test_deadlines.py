"""Deadlines of many calls by one timer: each once, in order, and none of a call that has ended."""

from __future__ import annotations

import asyncio

from nemo_gym.model_server.deadlines import Deadlines


async def test_who_is_late_is_told_once_and_in_order() -> None:
    told: list[str] = []
    all_told = asyncio.Event()
    deadlines = Deadlines(0.05)

    def late_of(name: str) -> None:
        told.append(name)
        if name == "last":
            all_told.set()

    calls = {name: (lambda name=name: late_of(name)) for name in ("first", "ended", "last")}
    for name, late in calls.items():
        deadlines.begin(late)
        await asyncio.sleep(0.01 if name == "first" else 0)
    deadlines.end(calls["ended"])
    deadlines.end(calls["ended"])  # twice is no fault
    await asyncio.wait_for(all_told.wait(), 30)
    assert told == ["first", "last"]
    deadlines.begin(calls["last"])  # the timer is set anew after nobody was left
    all_told.clear()
    await asyncio.wait_for(all_told.wait(), 30)
    assert told == ["first", "last", "last"]


async def test_nobody_is_late_early() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(0.05)
    at: asyncio.Future[float] = loop.create_future()

    def late() -> None:
        at.set_result(loop.time())

    until = deadlines.begin(late)
    assert await asyncio.wait_for(at, 30) >= until
