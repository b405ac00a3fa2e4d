import json

import pytest

from nemo_gym.rollouts.profile import plain, powers, profile
from nemo_gym.rollouts.results import Fields, read
from tests.rollouts import stored


def at(figures, sign, k):
    return {one.k: one for one in getattr(figures, sign)}[k]


def test_by_hand(tmp_path):
    """Two tasks of four rollouts: c = 1 and c = 3 of n = 4."""
    folder = stored.run_of(tmp_path, {0: [0, 1, 0, 0], 1: [1, 1, 0, 1]})
    found = profile(read([folder])).overall
    assert found.reward.mean == 0.5
    # residuals by task: -1 and +1; sqrt((1 + 1) * 2 / 1) / 8
    assert found.reward.error == pytest.approx(0.25)
    assert at(found, "pass_at", 1).mean == pytest.approx(0.5)
    assert at(found, "pass_at", 2).mean == pytest.approx(((1 - 3 / 6) + 1) / 2)
    assert at(found, "pass_hat", 2).mean == pytest.approx((0 + 3 / 6) / 2)
    assert at(found, "pass_hat", 4).mean == 0.0
    assert at(found, "pass_at", 4).mean == 1.0
    assert found.majority_at == ()
    assert (found.measures["output_tokens"].mean, found.measures["output_tokens"].max) == (3.5, 5)
    assert found.rewards.counts[0] == 4
    assert found.rewards.counts[-1] == 4


def test_the_majority_of_the_first_k(tmp_path):
    answers = {0: "AABB", 1: "CDDD"}
    right = {0: "A", 1: "D"}
    rows = [
        stored.row(task, n, float(letter == right[task]), extracted_answer=letter)
        for task, letters in answers.items()
        for n, letter in enumerate(letters)
    ]
    folder = stored.write(tmp_path, reversed(rows))  # repeats count in their own order, not in that of the file
    found = profile(read([folder])).overall
    assert at(found, "majority_at", 1).mean == 0.5  # A is right, C is not
    assert at(found, "majority_at", 2).mean == pytest.approx((1 + 0.5) / 2)
    assert at(found, "majority_at", 4).mean == pytest.approx((0.5 + 1) / 2)


def test_agents_and_subsets(tmp_path):
    other = {"agent_ref": {"name": "other"}}
    rows = [
        stored.row(0, 0, 1, category="easy"),
        stored.row(1, 0, 0, category="hard"),
        stored.row(0, 0, 0, category="easy") | other | {"_ng_task_index": 2},  # one row, a number for each agent
        stored.row(1, 0, 0, category="hard") | other | {"_ng_task_index": 3},
    ]
    found = profile(read([stored.write(tmp_path, rows)]))
    assert {name: one.reward.mean for name, one in found.agents.items()} == {"agent": 0.5, "other": 0.0}
    assert {name: one.reward.mean for name, one in found.subsets.items()} == {"easy": 0.5, "hard": 0.0}
    assert (found.overall.reward.tasks, found.overall.reward.rollouts) == (2, 4)  # two agents do not make tasks
    assert [(task.agent, task.task, task.mean) for task in found.tasks] == [
        ("agent", 0, 1.0),
        ("agent", 1, 0.0),
        ("other", 2, 0.0),
        ("other", 3, 0.0),
    ]
    assert [one.k for one in found.overall.pass_at] == [1]  # nor do they make repeats


def test_masked_rollouts_are_counted_and_not_measured(tmp_path):
    rows = [stored.row(0, 0, 0.0, mask_sample=True), stored.row(0, 1, 1.0), stored.row(1, 0, 0.0, mask_sample=True)]
    found = profile(read([stored.write(tmp_path, rows)]))
    assert (found.overall.rollouts, found.overall.masked, found.overall.reward.mean) == (3, 2, 1.0)
    assert [task.task for task in found.tasks] == [0]


def test_nothing_measured(tmp_path):
    found = profile(read([stored.write(tmp_path, [stored.row(0, 0, 0.0, mask_sample=True)])]))
    assert (found.overall.reward, found.overall.pass_at, found.overall.rewards) == (None, (), None)


def test_as_json(tmp_path):
    folder = stored.run_of(tmp_path, {0: [0, 1], 1: [1, 1]}, category="x")
    found = json.loads(json.dumps(plain(profile(read([folder], Fields())))))
    assert found["overall"]["pass@2"]["mean"] == 1.0
    assert found["overall"]["pass^2"] == {
        "mean": 0.5,
        "low": 0.0,
        "high": 1.0,
        "tasks": 2,
    }
    assert found["subsets"]["x"]["rollouts"] == 4
    assert "pass_at" not in found["overall"]


def test_powers():
    assert [powers(n) for n in (0, 1, 2, 3, 8, 10)] == [[], [1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 10]]


def test_an_interval_of_chances_ends_where_chances_do(tmp_path):
    few = profile(read([stored.run_of(tmp_path / "few", {0: [1, 1], 1: [1, 1], 2: [0, 1]})])).overall
    one = at(few, "pass_at", 1)
    assert (one.mean, one.high) == (pytest.approx(5 / 6), 1.0)
    assert 0 < one.low < one.mean
    other = profile(read([stored.run_of(tmp_path / "other", {0: [5, 5], 1: [5, 5], 2: [0, 5]})])).overall
    assert at(other, "pass_at", 1).high > 5  # a reward has no bound
