"""Places for calls: in turn, with a bound on who waits, and none lost to those who leave."""

from __future__ import annotations

import asyncio

import pytest

from nemo_gym.exchange.errors import ModelError
from nemo_gym.model_server.admission import Admission
from nemo_gym.pool.places import places


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("processes", [1, 2])
async def test_in_turn_and_no_more_than_may_wait(processes: int) -> None:
    admission = Admission(places(1, processes), places(3, processes))
    order, go_on = list[int](), [asyncio.Event() for _ in range(4)]

    async def call(number: int) -> None:
        async with admission:
            order.append(number)
            await go_on[number].wait()

    calls = [asyncio.create_task(call(number)) for number in range(4)]
    await settled()
    assert (order, admission.in_flight, admission.queued) == ([0], 1, 3)
    with pytest.raises(ModelError) as refused:
        async with admission:
            pass
    assert (refused.value.status, refused.value.code, refused.value.retry_after) == (429, "queue_full", 1.0)
    calls[1].cancel()
    for number in (0, 2, 3):
        go_on[number].set()
    ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert [type(end) for end in ended] == [type(None), asyncio.CancelledError, type(None), type(None)]
    assert (order, admission.in_flight, admission.queued) == ([0, 2, 3], 0, 0)
    async with admission:  # what was waited in is free again too
        waits = [asyncio.create_task(call(number)) for number in (0, 2, 3)]
        await settled()
        assert admission.queued == 3
    await asyncio.wait_for(asyncio.gather(*waits), 60)


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_call_that_leaves_as_it_is_told_passes_the_place_on(processes: int) -> None:
    admission = Admission(places(1, processes), places(2, processes))
    entered = asyncio.Event()

    async def call() -> None:
        async with admission:
            entered.set()

    async with admission:
        first, second = asyncio.create_task(call()), asyncio.create_task(call())
        await settled()
    first.cancel()  # its turn has come, and it has not run since
    await asyncio.wait_for(second, 60)
    assert entered.is_set()
    assert (admission.in_flight, admission.queued) == (0, 0)
