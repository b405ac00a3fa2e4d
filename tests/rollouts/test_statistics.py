import itertools
import math
import random
import statistics

import pytest

from nemo_gym.rollouts.statistics import (
    best_of,
    distribution,
    histogram,
    majority_of,
    mean_interval,
    numeric_fields,
    pass_at,
    pass_hat,
    quantile,
    t_quantile,
    worst_of,
)


@pytest.mark.parametrize(("n", "c"), [(4, 0), (4, 1), (4, 3), (4, 4), (8, 3)])
def test_pass_at_k_is_the_unbiased_estimator(n, c):
    values = [1.0] * c + [0.0] * (n - c)
    for k in range(1, n + 1):
        assert best_of(values, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k))
    assert best_of(values, n + 1) is None
    assert best_of(values, 0) is None


def test_best_of_any_rewards_is_the_mean_over_all_subsets():
    values = [0.1, 0.7, -0.3, 0.7, 2.0]
    for k in range(1, 6):
        bests = [max(chosen) for chosen in itertools.combinations(values, k)]
        assert best_of(values, k) == pytest.approx(statistics.mean(bests))


def test_tasks_with_too_few_rollouts_do_not_count():
    assert pass_at([[1.0], [1.0, 0.0]], 2) == 1.0
    assert pass_at([[1.0]], 2) is None


def test_one_rollout_a_task_is_the_plain_standard_error():
    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    interval = mean_interval([[value] for value in values])
    assert interval.error == pytest.approx(statistics.stdev(values) / math.sqrt(5))
    assert interval.low == pytest.approx(interval.mean - t_quantile(4) * interval.error)


def test_repeats_that_agree_do_not_narrow_the_interval():
    once = mean_interval([[0.0], [1.0], [1.0], [0.0]])
    often = mean_interval([[0.0] * 8, [1.0] * 8, [1.0] * 8, [0.0] * 8])
    assert often.error == pytest.approx(once.error)
    assert (often.rollouts, often.tasks) == (32, 4)


def test_the_interval_covers_the_truth():
    draw = random.Random(3)
    covered = 0
    for _ in range(400):
        chances = [draw.betavariate(2, 2) for _ in range(30)]
        interval = mean_interval([[float(draw.random() < chance) for _ in range(4)] for chance in chances])
        covered += interval.low <= 0.5 <= interval.high
    assert 0.92 <= covered / 400 <= 0.98


def test_little_data():
    assert mean_interval([]) is None
    assert mean_interval([[]]) is None
    alone = mean_interval([[1.0, 0.0]])
    assert (alone.mean, alone.low, alone.high) == (0.5, None, None)


def test_numeric_fields():
    rows = [{"reward": 1, "ok": True, "_ng_task_index": 3, "text": "x", "bad": math.nan}, {"reward": 0.5}]
    assert numeric_fields(rows) == {"reward": [1.0, 0.5], "ok": [1.0]}


@pytest.mark.parametrize(("n", "c"), [(4, 0), (4, 1), (4, 3), (4, 4), (8, 5)])
def test_pass_hat_k_is_the_chance_that_all_of_k_succeed(n, c):
    values = [0.0] * (n - c) + [1.0] * c
    for k in range(1, n + 1):
        assert worst_of(values, k) == pytest.approx(math.comb(c, k) / math.comb(n, k))
    assert worst_of(values, n + 1) is None
    assert math.copysign(1, worst_of([0.0], 1)) == 1.0


def test_worst_of_any_rewards_is_the_mean_over_all_subsets():
    values = [0.1, 0.7, -0.3, 0.7, 2.0]
    for k in range(1, 6):
        worsts = [min(chosen) for chosen in itertools.combinations(values, k)]
        assert worst_of(values, k) == pytest.approx(statistics.mean(worsts))


def test_pass_hat_is_averaged_over_the_tasks_that_have_k():
    # by hand: C(3,2)/C(4,2) = 1/2, C(4,2)/C(4,2) = 1, and a task of one rollout that does not count
    assert pass_hat([[1.0, 1.0, 1.0, 0.0], [1.0] * 4, [0.0]], 2) == pytest.approx(0.75)
    assert pass_hat([[1.0]], 2) is None


@pytest.mark.parametrize(
    ("votes", "score"),
    [
        ([("a", 1.0), ("b", 0.0), ("a", 1.0)], 1.0),
        ([("b", 0.0), ("b", 0.0), ("a", 1.0)], 0.0),
        ([("b", 0.0), ("a", 1.0)], 0.5),  # equally common
        ([(None, 1.0), (None, 1.0), ("b", 0.0)], 0.0),  # no answer is no vote
        ([(None, 1.0)], 0.0),
        ([], 0.0),
    ],
)
def test_the_majority(votes, score):
    assert majority_of(votes) == score


def test_quantiles_and_distribution_are_numpys():
    numpy = pytest.importorskip("numpy")
    draw = random.Random(5)
    for size in (1, 2, 3, 10, 101):
        values = [draw.gauss(0, 3) for _ in range(size)]
        for share in (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1):
            assert quantile(sorted(values), share) == pytest.approx(numpy.quantile(values, share))
        found = distribution(values)
        assert (found.count, found.min, found.max) == (size, min(values), max(values))
        assert found.mean == pytest.approx(numpy.mean(values))
        assert found.std == pytest.approx(numpy.std(values, ddof=1) if size > 1 else 0.0)
        assert found.p95 == pytest.approx(numpy.percentile(values, 95))
    assert distribution([]) is None


def test_the_histogram_is_numpys():
    numpy = pytest.importorskip("numpy")
    values = [0.0, 0.1, 0.25, 0.5, 0.5, 1.0]
    found = histogram(values, bins=4)
    assert list(found.counts) == numpy.histogram(values, bins=4)[0].tolist()
    assert (found.low, found.high) == (0.0, 1.0)
    assert histogram([2.0, 2.0]).counts == (2,)
    assert histogram([]) is None
