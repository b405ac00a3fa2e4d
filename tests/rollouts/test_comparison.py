import math
import random

import pytest

from nemo_gym.rollouts.comparison import compare, sign_flip_p
from nemo_gym.rollouts.results import Fields, read
from tests.rollouts import stored


def both(tmp_path, first, second, fields=None, **more):
    runs = [stored.run_of(tmp_path / name, rewards, **more) for name, rewards in (("a", first), ("b", second))]
    return [read([run], fields) for run in runs]


def test_the_paired_test_is_scipys(tmp_path):
    """scipy.stats.ttest_rel and permutation_test of these six pairs."""
    a, b = [0.2, 0.5, 1, 0, 0.75, 0.25], [0.4, 0.5, 1, 0.5, 1, 0.25]
    found = compare(*both(tmp_path, {n: [x] for n, x in enumerate(a)}, {n: [x] for n, x in enumerate(b)}))
    reward = found.reward
    assert found.test == "paired t-test over tasks"
    assert reward.difference == pytest.approx(0.95 / 6)
    assert reward.p == pytest.approx(0.11161069975050937, rel=1e-9)
    assert (reward.low, reward.high) == pytest.approx((-0.052644124725517244, 0.3693107913921839))
    assert reward.p_sign_flip == 0.25
    assert (reward.tasks, reward.better, reward.worse) == (6, 3, 0)
    assert [(one.task, one.second - one.first) for one in found.moved] == [
        ("3", 0.5),
        ("4", 0.25),
        ("0", pytest.approx(0.2)),
    ]


def test_each_task_counts_once_however_many_repeats(tmp_path):
    found = compare(*both(tmp_path, {0: [1, 0, 1, 0], 1: [0]}, {0: [1, 1], 1: [1, 0]}))
    assert (found.reward.first, found.reward.second) == (0.25, 0.75)


def test_pass_figures_at_the_k_that_all_tasks_have(tmp_path):
    found = compare(*both(tmp_path, {0: [1, 0, 0], 1: [1, 1, 0]}, {0: [1, 1], 1: [1, 1]}))
    by_name = {one.figure: one for one in found.others}
    assert by_name["pass@2"].first == pytest.approx((2 / 3 + 1) / 2)
    assert by_name["pass^2"].first == pytest.approx((0 + 1 / 3) / 2)
    assert by_name["pass^2"].second == 1.0
    assert by_name["output_tokens"].difference == pytest.approx(-0.5)
    assert "log_prob" not in by_name  # neither run knows it


def test_tasks_that_one_run_lacks_are_left_out_and_counted(tmp_path):
    found = compare(*both(tmp_path, {0: [1], 1: [1], 2: [0]}, {1: [0], 7: [1]}))
    assert (found.reward.tasks, found.only_first, found.only_second) == (1, 2, 1)
    assert (found.reward.low, found.reward.p, found.reward.difference) == (None, None, -1.0)
    nothing = compare(*both(tmp_path, {0: [1]}, {1: [1]}))
    assert nothing.reward is None
    assert nothing.others == []


def test_masked_rollouts_are_no_measurement(tmp_path):
    masked = stored.write(tmp_path, [stored.row(0, 0, 0.0, mask_sample=True), stored.row(0, 1, 1.0)])
    assert compare(read([masked]), read([masked])).reward.first == 1.0


def test_tasks_by_a_field(tmp_path):
    a = stored.write(tmp_path / "a", [stored.row(0, 0, 1, name="x"), stored.row(1, 0, 0, name="y")])
    b = stored.write(tmp_path / "b", [stored.row(0, 0, 0, name="y"), stored.row(1, 0, 1, name="x")])
    runs = [read([run], Fields("name", "")) for run in (a, b)]
    assert compare(*runs).reward.difference == 0.0
    assert compare(*runs).reward.worse == 1
    found = compare(*runs, key=lambda one: one.subset)
    assert (found.reward.better, found.reward.worse) == (0, 0)


def test_alike_and_all_by_the_same_amount(tmp_path):
    alike = compare(*both(tmp_path, {0: [1], 1: [0]}, {0: [1], 1: [0]})).reward
    assert (alike.difference, alike.p, alike.p_sign_flip) == (0.0, 1.0, 1.0)
    shifted = compare(*both(tmp_path, {n: [0.0] for n in range(4)}, {n: [1.0] for n in range(4)})).reward
    assert (shifted.p, shifted.p_sign_flip, shifted.low) == (0.0, 2 / 16, 1.0)


def test_the_three_ways_of_the_permutation_test_agree():
    draw = random.Random(2)
    fourteen = [draw.gauss(0.4, 1) for _ in range(14)]
    exact = sign_flip_p(fourteen)
    drawn = sign_flip_p([*fourteen, 1e-12])  # one more that changes nothing but the way
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact / 10_000))
    assert sign_flip_p([*fourteen, 1e-12]) == drawn  # the seed is fixed
    five_hundred = [draw.gauss(0.07, 1) for _ in range(500)]
    limit = sign_flip_p([*five_hundred, 1e-12])
    drawn = sign_flip_p(five_hundred)
    assert limit == pytest.approx(drawn, abs=4 * math.sqrt(drawn / 10_000) + 0.005)


def test_chance_alone_is_found_as_often_as_is_said():
    """Of runs that do not differ one in twenty is said to, whichever the test."""
    draw = random.Random(7)
    small = [sign_flip_p([draw.choice((-1.0, -0.5, 0.0, 0.5, 1.0)) for _ in range(9)]) for _ in range(400)]
    assert sum(p <= 0.05 for p in small) / 400 <= 0.08
