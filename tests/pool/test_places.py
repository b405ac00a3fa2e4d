"""Places that processes share: never more than there are, all of them for whoever comes; who waits is told of one."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_gym.pool.limits import Limits
from nemo_gym.pool.places import OwnPlaces, Places, places
from nemo_gym.pool.pool import Pool
from tests.pool.test_limits import in_processes

KINDS = [1, pytest.param(2, marks=pytest.mark.skipif(sys.platform != "linux", reason="shared by an eventfd"))]
shared = pytest.mark.skipif(sys.platform != "linux", reason="shared by an eventfd")


def taken(of: Places, most: int = 1000) -> int:
    return sum(of.take() for _ in range(most))


@pytest.mark.parametrize("processes", KINDS)
def test_so_many_and_no_more(processes: int) -> None:
    of = places(3, processes)
    assert of.free
    assert taken(of) == 3
    assert not of.free
    of.give()
    assert (of.free, taken(of)) == (True, 1)


@pytest.mark.parametrize("processes", KINDS)
def test_none_at_all(processes: int) -> None:
    of = places(0, processes)
    assert (of.free, of.take()) == (False, False)


@shared
def test_processes_have_them_together() -> None:
    of = places(1000, 4)
    assert in_processes(4, lambda: taken(of, 700)) == 1000
    assert not of.free


@shared
def test_one_process_may_have_them_all() -> None:
    of = places(1000, 4)
    assert in_processes(1, lambda: taken(of, 2000)) == 1000


@pytest.mark.parametrize("processes", KINDS)
async def test_who_waits_is_told_once(processes: int) -> None:
    of, told = places(1, processes), list[int]()
    assert of.take()
    of.when_free(lambda: told.append(1))
    of.give()
    for _ in range(5):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)  # the loop looks at its descriptors; shared ones stay readable
    await asyncio.sleep(0.01)
    assert told == [1]


@pytest.mark.parametrize("processes", KINDS)
async def test_who_waits_no_more_is_not_told(processes: int) -> None:
    of, told = places(1, processes), list[int]()
    assert of.take()
    of.when_free(lambda: told.append(1))()
    of.give()
    await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    assert told == []


def giving(of: Places) -> int:
    of.give()
    return 1


async def queued(pool: Pool[Any]) -> None:
    for _ in range(10):
        await asyncio.sleep(0)  # a call that finds no place waits before it first gives way
    assert pool.queued == 1


@shared
async def test_told_of_another_process() -> None:
    of = places(1, 2)
    assert of.take()
    told = asyncio.Event()
    of.when_free(told.set)
    assert in_processes(1, lambda: giving(of)) == 1
    await asyncio.wait_for(told.wait(), 60)
    assert of.take()


@shared
async def test_a_pool_waits_for_a_place_that_another_process_has() -> None:
    """Nothing of its own is in flight, and still it is no reason to refuse."""
    of = places(1, 2)
    assert in_processes(1, lambda: int(of.take())) == 1
    pool = Pool({"a": "a"}, places={"a": of})
    until = asyncio.get_running_loop().time() + 60
    waiting = asyncio.create_task(pool.take(None, until=until))
    await queued(pool)
    assert in_processes(1, lambda: giving(of)) == 1
    place = await waiting
    assert not of.free
    pool.give_back(place)
    assert of.free


@shared
async def test_a_pool_takes_what_another_process_left() -> None:
    first, second = places(1, 2), places(1, 2)
    assert in_processes(1, lambda: int(first.take())) == 1
    pool = Pool({"a": "a", "b": "b"}, places={"a": first, "b": second})
    place = await pool.take("any", until=asyncio.get_running_loop().time() + 60)
    assert place.replica.name == "b"


@shared
async def test_a_call_that_a_limit_holds_up_keeps_no_place() -> None:
    of = places(2, 2)
    pool = Pool({"a": "a"}, places={"a": of}, limits=Limits(requests=1))
    loop = asyncio.get_running_loop()
    await pool.take(None, until=loop.time() + 60)
    waiting = asyncio.create_task(pool.take(None, until=loop.time() + 300))
    await queued(pool)
    assert in_processes(1, lambda: int(of.take())) == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not pool.queued


def test_a_part_each_where_nothing_can_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_gym.pool.places.sys", SimpleNamespace(platform="darwin"))
    of = places(10, 4)
    assert isinstance(of, OwnPlaces)
    assert taken(of) == 3
