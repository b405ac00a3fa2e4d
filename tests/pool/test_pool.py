"""A place on a replica: in turn, bounded, healthy; limits hold over every minute. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nemo_gym.exchange.call import Call
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.reply import ModelReply, Usage
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.pool.attempts import Attempts
from nemo_gym.pool.health import FAILURES
from nemo_gym.pool.limits import Limits
from nemo_gym.pool.pool import Place, Pool
from tests.pool import virtual

FAILED = ModelError(500, "backend", "it broke")


def timed(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs on the virtual clock."""

    def run() -> None:
        virtual.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def now() -> float:
    return asyncio.get_running_loop().time()


def pool(*names: str, **settings: Any) -> Pool[str]:
    return Pool({name: name for name in names}, **settings)


async def placed(on: Pool[str], **how: Any) -> Place[str]:
    return await on.take(how.pop("affinity", None), until=now() + how.pop("seconds", 10.0), **how)


# ---- places


@timed
async def test_who_waits_is_served_in_turn_and_can_be_seen() -> None:
    on = pool("a", most=1)
    held = await placed(on)
    order: list[int] = []

    async def one(number: int) -> None:
        place = await placed(on)
        order.append(number)
        await asyncio.sleep(1)
        on.give_back(place)

    waiting = [asyncio.create_task(one(number)) for number in range(3)]
    await asyncio.sleep(1)
    assert (on.queued, on.replicas[0].in_flight) == (3, 1)
    on.give_back(held)
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2]
    assert now() == pytest.approx(4.0)
    assert (on.queued, on.replicas[0].in_flight) == (0, 0)


@timed
async def test_a_full_queue_refuses_with_the_time_to_come_back() -> None:
    on = pool("a", most=1, max_queue=1)
    await placed(on)
    waiting = asyncio.create_task(placed(on))
    await asyncio.sleep(0)
    with pytest.raises(ModelError) as raised:
        await placed(on)
    error = raised.value
    assert (error.status, error.kind, error.code, error.retry_after) == (429, "rate_limit", "queue_full", 1.0)
    with pytest.raises(ModelError) as late:
        await waiting
    assert (late.value.code, now()) == ("no_place", 10.0)


@timed
async def test_one_who_leaves_the_queue_holds_nobody_up() -> None:
    on = pool("a", most=1)
    held = await placed(on)
    first, second = (asyncio.create_task(placed(on)) for _ in range(2))
    await asyncio.sleep(0.1)
    first.cancel()
    on.give_back(held)
    assert (await second).replica.in_flight == 1
    assert on.queued == 0


# ---- health


@timed
async def test_a_breaker_opens_tries_once_and_closes() -> None:
    on = pool("a", "b")
    a = on.replicas[0]
    for _ in range(FAILURES):
        on.give_back(await placed(on, avoid={"b"}), FAILED)
    assert a.health.state == "open"
    assert [(await placed(on)).replica.name for _ in range(4)] == ["b"] * 4
    await asyncio.sleep(1.0)
    trial = await placed(on)
    assert (trial.replica, a.health.state) == (a, "trial")
    assert (await placed(on)).replica.name == "b"  # one at a time
    on.give_back(trial, FAILED)
    await asyncio.sleep(1.0)
    assert (await placed(on)).replica.name == "b"  # twice as long now
    await asyncio.sleep(1.0)
    on.give_back(await placed(on))
    assert a.health.state == "closed"


@timed
async def test_a_trial_that_is_cancelled_decides_nothing() -> None:
    on = pool("a", "b")
    for _ in range(FAILURES):
        on.give_back(await placed(on, avoid={"b"}), FAILED)
    await asyncio.sleep(1.0)
    on.abandon(await placed(on, avoid={"b"}))
    assert on.replicas[0].health.state == "open"
    assert (await placed(on)).replica.name == "a"


@timed
async def test_a_replica_that_asks_for_a_rest_gets_it() -> None:
    on = pool("a", "b")
    on.give_back(await placed(on, avoid={"b"}), ModelError(429, "rate_limit", "slow down", retry_after=7.0))
    assert on.replicas[0].health.failures == 0
    assert {(await placed(on)).replica.name for _ in range(3)} == {"b"}
    await asyncio.sleep(7.0)
    assert (await placed(on)).replica.name == "a"


@timed
async def test_where_none_is_well_one_is_asked_all_the_same() -> None:
    on = pool("a")
    for _ in range(FAILURES + 2):
        on.give_back(await placed(on), FAILED)
    assert now() == 0.0


@timed
async def test_a_rest_beyond_the_deadline_is_told_at_once() -> None:
    on = pool("a")
    on.give_back(await placed(on), ModelError(429, "rate_limit", "slow down", retry_after=40.0))
    with pytest.raises(ModelError) as raised:
        await placed(on, seconds=10.0)
    assert (raised.value.status, raised.value.retry_after, now()) == (429, 40.0, 0.0)


# ---- limits


@timed
async def test_no_minute_has_more_requests_than_the_limit() -> None:
    on = pool("a", "b", limits=Limits(requests=30))
    begun: list[float] = []

    async def one(at: float) -> None:
        await asyncio.sleep(at)
        place = await placed(on, seconds=600.0)
        begun.append(now())
        await asyncio.sleep(0.5)
        on.give_back(place)

    await asyncio.gather(*(one(number * 0.7) for number in range(200)))
    for first in begun:
        assert sum(first <= other < first + 60.0 for other in begun) <= 30
    assert max(begun) < 60.0 * 200 / 30 + 1  # and what is allowed is used


@timed
async def test_tokens_count_as_what_they_were() -> None:
    on = pool("a", limits=Limits(tokens=10_000))
    begun: list[float] = []
    for _ in range(40):
        place = await placed(on, seconds=600.0)
        begun.append(now())
        await asyncio.sleep(0.1)
        on.give_back(place, tokens=500)
    for first in begun[5:]:
        assert sum(first <= other < first + 60.0 for other in begun) <= 20


# ---- tries


async def answered(on: Pool[str], ask: Any, **bounds: Any) -> tuple[Call, ModelReply | ModelError]:
    call = Call(ModelRequest(messages=()), rollout_id="r1")
    attempts = Attempts(**{"tries": 3, "seconds": 60.0, "repeatable": lambda error: error.status >= 429} | bounds)
    try:
        return call, await attempts.answer(on, call, ask)
    except ModelError as error:
        return call, error


REPLY = ModelReply("id", "m", 1, (), Usage(3, 4))


@timed
async def test_the_next_try_is_elsewhere_and_at_once() -> None:
    on = pool("a", "b", "c")

    async def ask(name: str) -> ModelReply:
        if name != last:
            raise FAILED
        return REPLY

    own = (await placed(on, affinity="r1")).replica.name
    last = next(name for name in "abc" if name != own)
    call, reply = await answered(on, ask)
    assert reply is REPLY
    assert [attempt.error for attempt in call.attempts][-1] is None
    assert call.attempts[0].replica == own
    assert len({attempt.replica for attempt in call.attempts}) == len(call.attempts) <= 3
    assert now() == 0.0


@timed
async def test_tries_never_grow_under_429() -> None:
    on = pool("a")

    async def ask(name: str) -> ModelReply:
        raise ModelError(429, "rate_limit", "slow down", retry_after=2.0)

    call, error = await answered(on, ask, tries=4)
    assert (error.status, [attempt.error for attempt in call.attempts]) == (429, ["rate_limit"] * 4)
    assert 6.0 <= now() <= 6.4  # three pauses, as asked


@timed
async def test_a_hanging_replica_costs_no_more_than_the_call_may_take() -> None:
    on = pool("a")

    async def ask(name: str) -> ModelReply:
        await asyncio.sleep(1e6)
        return REPLY

    call, error = await answered(on, ask, seconds=20.0)
    assert (error.status, error.kind, now()) == (504, "timeout", 20.0)
    assert [attempt.error for attempt in call.attempts] == ["timeout"]


@timed
async def test_a_replica_that_a_call_s_own_deadline_ends_has_failed() -> None:
    """Whoever took the call cancels it, and a replica that let it hang is none the better for it."""
    on = pool("a")
    call = Call(ModelRequest(messages=()))
    call.until = 20.0

    async def ask(name: str) -> ModelReply:
        await asyncio.sleep(1e6)
        return REPLY

    task = asyncio.create_task(Attempts(tries=3, seconds=5.0, repeatable=lambda error: True).answer(on, call, ask))
    await asyncio.sleep(20.0)
    assert not task.done()  # the tries' own limit is for calls that have none
    call.late = True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [attempt.error for attempt in call.attempts] == ["timeout"]
    assert (on.replicas[0].in_flight, on.replicas[0].health.failures) == (0, 1)


@timed
async def test_what_must_not_be_repeated_is_not() -> None:
    on = pool("a", "b")

    async def ask(name: str) -> ModelReply:
        raise ModelError(400, "invalid", "bad")

    call, error = await answered(on, ask)
    assert (error.status, len(call.attempts)) == (400, 1)
    assert {one.health.state for one in on.replicas} == {"closed"}


@timed
async def test_a_hang_up_frees_the_place() -> None:
    on = pool("a", most=1)
    call = Call(ModelRequest(messages=()))

    async def ask(name: str) -> ModelReply:
        await asyncio.sleep(1e6)
        return REPLY

    attempts = Attempts(tries=3, seconds=60.0, repeatable=lambda error: True)
    task = asyncio.create_task(attempts.answer(on, call, ask))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert on.replicas[0].in_flight == 0
    assert [attempt.error for attempt in call.attempts] == ["disconnected"]


# ---- replicas that come and go; tokens


@timed
async def test_one_that_goes_keeps_its_calls_and_gets_no_more() -> None:
    on = pool("a", "b")
    held = await placed(on, avoid={"b"})
    draining = asyncio.create_task(on.drain("a", until=now() + 60))
    await asyncio.sleep(1)
    assert {(await placed(on)).replica.name for _ in range(20)} == {"b"}
    assert not draining.done()
    on.give_back(held)
    assert await draining is True
    assert [one.name for one in on.replicas] == ["b"]
    assert await on.drain("gone", until=now()) is True
    await placed(on)
    assert await on.drain("b", until=now() + 5) is False


@timed
async def test_calls_wait_for_a_replica_to_come() -> None:
    on = pool()
    waiting = [asyncio.create_task(placed(on, seconds=60)) for _ in range(3)]
    await asyncio.sleep(20)
    assert on.queued == 3
    on.add("a", "a")
    assert [(await one).replica.name for one in waiting] == ["a"] * 3
    on.remove("a")
    with pytest.raises(ModelError) as late:
        await placed(on, seconds=5)
    assert (late.value.status, late.value.code) == (503, "no_place")
    for one in waiting:
        on.give_back(one.result(), FAILED)
    assert on._unwell == set()  # of one that is gone nothing is remembered


@timed
async def test_nobody_waits_where_none_will_come() -> None:
    on = pool()
    waiting = asyncio.create_task(placed(on, seconds=600))
    await asyncio.sleep(1)
    on.refuse(FAILED)
    with pytest.raises(ModelError, match="it broke"):
        await waiting
    with pytest.raises(ModelError, match="it broke"):
        await placed(on)
    assert now() == 1.0
    on.refuse(None)
    on.add("a", "a")
    assert (await placed(on)).replica.name == "a"


@timed
async def test_tokens_in_flight_are_bounded_and_waited_for_in_turn() -> None:
    on = pool()
    on.add("a", "a", most_tokens=100)
    first = await placed(on, tokens=60)
    large = asyncio.create_task(placed(on, tokens=90))
    small = asyncio.create_task(placed(on, tokens=10))
    await asyncio.sleep(1)
    assert not large.done() and not small.done()  # first come, first served
    on.give_back(first)
    place = await large
    assert (await small).replica.tokens == 100
    on.give_back(place)
    huge = asyncio.create_task(placed(on, tokens=5000))
    await asyncio.sleep(1)
    assert not huge.done()
    on.give_back(await small)
    assert (await huge).replica.tokens == 5000  # larger than all: it has the replica for itself


@timed
async def test_few_long_calls_weigh_as_many_short_ones() -> None:
    on = pool("a", "b")
    for _ in range(40):  # what a call usually takes
        on.give_back(await placed(on, tokens=100), tokens=100)
    long = await placed(on, tokens=3000)
    others = [await placed(on, tokens=100) for _ in range(12)]
    assert {one.replica.name for one in others} == {"a", "b"} - {long.replica.name}
    for one in (long, *others):
        on.give_back(one)
    assert [one.load for one in on.replicas] == [0.0, 0.0]
    assert [one.tokens for one in on.replicas] == [0, 0]
