"""Ten minutes of bad weather on a virtual clock: four endpoints turn slow, refuse, fail, drop, die and come back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from msgspec import Struct

from nemo_gym.exchange.call import Call
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.reply import ModelReply, Usage
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.pool.attempts import Attempts
from nemo_gym.pool.limits import Limits
from nemo_gym.pool.pool import Pool
from tests.pool import virtual

pytestmark = pytest.mark.ci

MINUTES, TRIES, DEADLINE_S, MOST, A_MINUTE = 10, 4, 45.0, 12, 900
KINDS = ("well", "slow", "429", "500", "drop", "dead", "hang")
REPLY = ModelReply("id", "m", 1, (), Usage(100, 50))


class Phase(Struct):
    kind: str
    begin: float
    end: float


class Endpoint:
    """As HttpBackend sees one: it gives a reply, raises a ModelError, or takes its time."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.random = random.Random(seed)
        self.phases: list[Phase] = []
        at = 20.0 + 5.0 * seed  # fair at first
        while at < 60.0 * MINUTES:
            kind = self.random.choice(KINDS[1:])
            bad, good = self.random.uniform(8, 40), self.random.uniform(15, 60)
            self.phases.append(Phase(kind, at, at + bad))
            at += bad + good
        self.in_flight = self.most = 0
        self.asked: list[float] = []
        self.answered: list[float] = []

    def weather(self) -> str:
        now = asyncio.get_running_loop().time()
        return next((one.kind for one in self.phases if one.begin <= now < one.end), "well")

    async def ask(self) -> ModelReply:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        self.asked.append(asyncio.get_running_loop().time())
        try:
            return await self._answer()
        finally:
            self.in_flight -= 1

    async def _answer(self) -> ModelReply:
        weather = self.weather()
        if weather == "dead":
            await asyncio.sleep(0.01)
            raise ModelError(503, "unreachable", "refused", retry_after=2.0)
        if weather == "429":
            raise ModelError(429, "rate_limit", "slow down", retry_after=self.random.choice([None, 1.0, 5.0, 30.0]))
        if weather == "500":
            await asyncio.sleep(self.random.uniform(0.01, 2))
            raise ModelError(500, "backend", "broke")
        if weather == "drop":
            await asyncio.sleep(self.random.uniform(0.1, 1))
            raise ModelError(502, "backend", "the connection broke")
        if weather == "hang":
            await asyncio.sleep(15.0)  # the limit of one try
            raise ModelError(504, "timeout", "no answer")
        await asyncio.sleep(self.random.uniform(0.2, 1.0) * (20 if weather == "slow" else 1))
        self.answered.append(asyncio.get_running_loop().time())
        return REPLY


class Ended(Struct):
    call: Call
    began: float
    seconds: float
    error: ModelError | None


class HungUp(Struct):
    call: Call
    seconds: float
    """From the hang-up until all behind it had ended."""


async def storm(seed: int) -> tuple[list[Ended], list[HungUp], dict[str, Endpoint], Pool[Endpoint]]:
    endpoints = {name: Endpoint(name, number) for number, name in enumerate("abcd", start=4 * seed)}
    pool = Pool(endpoints, most=MOST, max_queue=200, limits=Limits(requests=A_MINUTE * 4))
    attempts = Attempts(tries=TRIES, seconds=DEADLINE_S, repeatable=lambda error: error.status >= 429)
    loop = asyncio.get_running_loop()
    seeded = random.Random(seed)
    ended: list[Ended] = []
    hung_up: list[HungUp] = []
    left_at: dict[object, float] = {}

    async def one(rollout: str) -> None:
        call = Call(ModelRequest(messages=()), rollout_id=rollout)
        began, failed = loop.time(), None
        try:
            await attempts.answer(pool, call, Endpoint.ask)
        except ModelError as error:
            failed = error
        except asyncio.CancelledError:
            hung_up.append(HungUp(call, loop.time() - left_at[asyncio.current_task()]))
            raise
        ended.append(Ended(call, began, loop.time() - began, failed))

    tasks = []
    while loop.time() < 60.0 * MINUTES:
        tasks.append(asyncio.create_task(one(f"rollout-{seeded.randrange(300)}")))
        await asyncio.sleep(seeded.expovariate(12.0))
        running = [task for task in tasks[-60:] if not task.done()]
        if running and seeded.random() < 0.02:
            left = seeded.choice(running)
            left_at[left] = loop.time()
            left.cancel()  # a client hangs up
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(ended) + sum(task.cancelled() for task in tasks) == len(tasks)
    return ended, hung_up, endpoints, pool


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_minutes(seed: int) -> None:
    ended, hung_up, endpoints, pool = virtual.run(storm(seed))
    assert len(ended) > 5000
    assert max(one.seconds for one in ended) <= DEADLINE_S + 1e-6
    assert max(len(one.call.attempts) for one in ended) <= TRIES
    assert pool.queued == 0
    for replica in pool.replicas:
        endpoint = replica.item
        assert (replica.in_flight, endpoint.in_flight) == (0, 0)
        assert endpoint.most <= MOST
        assert replica.given == len(endpoint.asked)
    asked = sorted(at for endpoint in endpoints.values() for at in endpoint.asked)
    for place in range(A_MINUTE * 4, len(asked)):
        assert asked[place] - asked[place - A_MINUTE * 4] >= 60.0 - 1e-6
    recorded = Counter(attempt.replica for one in (*ended, *hung_up) for attempt in one.call.attempts)
    assert recorded == {name: len(endpoint.asked) for name, endpoint in endpoints.items()}  # every try, to the last one
    at_an_endpoint = [one for one in hung_up if "disconnected" in [attempt.error for attempt in one.call.attempts]]
    assert len(at_an_endpoint) > 20
    assert max(one.seconds for one in hung_up) <= 1.0  # and the endpoint is rid of it, or its places would be taken
    for one in ended:
        kinds = [attempt.error for attempt in one.call.attempts]
        assert None not in kinds[:-1]
        assert (one.error is None) == (bool(kinds) and kinds[-1] is None)
    lost = [one for one in ended if one.error is not None and one.error.code != "queue_full"]
    for one in lost:  # only where no endpoint has been well for as long as a breaker or a rest lasts
        end = one.began + one.seconds
        assert not any(well(endpoint, one.began - 45.0, end) for endpoint in endpoints.values()), one
    assert len(ended) - len(lost) > 0.9 * len(ended)
    for endpoint in endpoints.values():
        assert_none_is_starved(endpoint)


def well(endpoint: Endpoint, begin: float, end: float) -> bool:
    return all(end <= phase.begin or phase.end <= begin for phase in endpoint.phases)


def assert_none_is_starved(endpoint: Endpoint) -> None:
    """Each is used while it is well, and soon again when it has come back."""
    for phase, following in zip(endpoint.phases, [*endpoint.phases[1:], None], strict=True):
        until = following.begin if following is not None else 60.0 * MINUTES
        if until - phase.end > 45.0:  # the longest that a breaker stays open, and a little
            assert any(phase.end <= at < phase.end + 45.0 for at in endpoint.answered), (endpoint.name, phase)
