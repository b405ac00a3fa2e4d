"""A rollout keeps to its replica as long as that is fair."""

from __future__ import annotations

import random

from msgspec import Struct

from nemo_gym.pool.routing import SLACK, choose, point_of

REPLICAS, IN_FLIGHT = 64, 10_000
MEAN = IN_FLIGHT / REPLICAS


class One(Struct):
    name: str
    point: int
    load: float = 0.0


def replicas(count: int) -> list[One]:
    return [One(name, point_of(name)) for name in (f"http://node{number}:8000/v1" for number in range(count))]


def test_fair_within_a_tenth_with_ten_thousand_in_flight() -> None:
    seeded = random.Random(8)
    pool = replicas(REPLICAS)
    placed: list[tuple[str, One]] = []
    for number in range(IN_FLIGHT):
        one = choose(pool, f"rollout-{number}")
        one.load += 1
        placed.append((f"rollout-{number}", one))
    kept = 0
    for turn in range(IN_FLIGHT):  # each rollout's next turn, some time
        place = seeded.randrange(IN_FLIGHT)
        rollout, before = placed[place]
        before.load -= 1
        after = choose(pool, rollout)
        after.load += 1
        placed[place] = (rollout, after)
        kept += after is before
        if turn % 500 == 0:
            loads = [one.load for one in pool]
            assert min(loads) >= 0.9 * MEAN - 1
            assert max(loads) <= 1.1 * MEAN
    assert kept > 0.95 * IN_FLIGHT


def test_calls_of_no_rollout_go_where_there_is_least_to_do() -> None:
    pool = replicas(5)
    for _ in range(50):
        choose(pool, None).load += 1
    assert [one.load for one in pool] == [10.0] * 5


def test_a_rollout_keeps_to_its_replica_until_that_is_much_busier() -> None:
    pool = replicas(4)
    own = choose(pool, "r1")
    own.load = SLACK
    assert choose(pool, "r1") is own
    own.load = SLACK + 1
    assert choose(pool, "r1") is not own
    own.load = 0
    assert choose(pool, "r1") is own


def test_a_replica_that_goes_moves_only_its_own_rollouts() -> None:
    pool = replicas(8)
    rollouts = [f"rollout-{number}" for number in range(2000)]
    before = {rollout: choose(pool, rollout).name for rollout in rollouts}
    gone = pool.pop(3)
    for rollout in rollouts:
        after = choose(pool, rollout).name
        assert after == before[rollout] or before[rollout] == gone.name
    share = sum(name == gone.name for name in before.values()) / len(rollouts)
    assert 0.09 < share < 0.16  # an eighth
