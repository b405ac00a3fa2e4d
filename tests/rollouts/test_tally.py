"""What is counted as a job goes is what the figures at its end say."""

import random

import pytest

from nemo_gym.config.types import Price
from nemo_gym.rollouts.entries import Done, Entries, Entry
from nemo_gym.rollouts.statistics import mean_interval
from nemo_gym.rollouts.tally import RunningMean, Tally


def entry(task=0, repeat=0, reward=1.0, **more):
    told = {"masked": False, "seconds": 1.5, "calls": 2, "prompt_tokens": 100, "output_tokens": 10}
    return Entry(task=task, repeat=repeat, reward=reward, **told | more)


def test_the_running_interval_is_the_one_of_all_values():
    draw = random.Random(3)
    running, groups = RunningMean(), {}
    assert running.interval() is None
    for _ in range(500):
        task, value = draw.randrange(40), draw.choice([0.0, 1.0, 0.25])
        running.add(task, value)
        groups.setdefault(task, []).append(value)
        expected, found = mean_interval(groups.values()), running.interval()
        assert (found.tasks, found.rollouts) == (expected.tasks, expected.rollouts)
        assert found.mean == pytest.approx(expected.mean)
        if expected.low is None:
            assert found.low is None
        else:
            assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_what_is_remembered_is_what_was_told():
    told = [
        entry(),
        entry(task=3, repeat=2, reward=-0.25, calls=None, incomplete="unsealed", agent="a", model="m"),
        entry(task=1, masked=True, cached_tokens=40, agent="b", model="m"),
    ]
    entries = Entries()
    for one in told:
        entries.append(one)
    assert list(entries) == told
    assert len(entries) == 3
    assert list(entries) == told  # and again


def test_done():
    done = Done()
    done.add(5, 0, "a")
    done.add(0, 3, "b")
    done.add(7, 0, "")
    asked = [(5, 0, "a"), (0, 3, "b"), (4, 0, "a"), (6, 0, "a"), (0, 0, "a"), (5, 3, "b"), (0, 9, "a"), (5, 0, "b")]
    assert [which for which in asked if which in done] == asked[:2]
    assert (7, 0, "a") in done and (7, 0, "b") in done


def test_cost_by_model():
    prices = {"big": Price(input=10, output=30, cached=1), "small-*": Price(input=1, output=2)}
    tally = Tally(prices)
    tally.add(entry(model="big", prompt_tokens=1000, output_tokens=100, cached_tokens=400))
    assert tally.cost == pytest.approx((600 * 10 + 400 * 1 + 100 * 30) / 1e6)
    tally.add(entry(task=1, model="small-2026", prompt_tokens=1000, output_tokens=100, cached_tokens=400))
    assert tally.cost == pytest.approx((9400 + 1000 * 1 + 100 * 2) / 1e6)
    assert tally.unpriced is None
    tally.add(entry(task=2, model="other"))
    assert tally.unpriced == "other"
    assert tally.tokens == 2 * 1100 + 110


def test_what_is_masked_is_no_measurement():
    tally = Tally({})
    tally.add(entry(reward=0.0, masked=True))
    assert tally.reward.interval() is None
    assert (tally.rollouts, tally.tokens) == (1, 110)
