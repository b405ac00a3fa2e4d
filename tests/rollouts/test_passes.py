import pytest

from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, highest_k_metrics

TASKS = [
    [{"reward": 1.0, "answer": "a", "level": "easy"}, {"reward": 0.0, "answer": "b", "level": "easy"}],
    [{"reward": 0.0, "answer": None, "level": "hard"}, {"reward": 0.0, "answer": "c", "level": "hard"}],
]


def test_figures_are_percentages():
    figures, scores, names, most = compute_pass_majority_metrics(TASKS)
    assert (names, most, scores[0]) == (["accuracy"], 2, [{"accuracy": 1.0}, {"accuracy": 0.0}])
    assert figures["pass@1/accuracy"] == 25.0
    assert figures["pass@2/accuracy"] == 50.0
    assert figures["pass@1[avg-of-1]/accuracy"] == 50.0
    assert figures["pass@1[avg-of-2]/accuracy"] == 25.0
    assert figures["per_sample_aggregate"] == {"accuracy": [50.0, 0.0]}
    assert figures["pass@1[avg-of-2]/accuracy/std_dev_across_runs"] == pytest.approx(35.355, abs=1e-3)
    assert figures["pass@1[avg-of-2]/accuracy/std_err_across_runs"] == pytest.approx(25.0)
    assert compute_pass_majority_metrics([]) == ({}, [], [], 0)


def test_majorities_need_an_answer():
    figures, *_ = compute_pass_majority_metrics(TASKS, answer_key="answer")
    assert figures["majority@1/accuracy"] == 50.0
    assert figures["majority@2/accuracy"] == 25.0  # one of two answers, and a wrong one
    assert figures["pass@1/no_answer"] == 25.0


def test_scores_of_ones_own():
    figures, *_ = compute_pass_majority_metrics(
        [[{"x": 0.2}, {"x": 0.6}]], score_fn=lambda rollout: {"x": rollout["x"], "ok": rollout["x"] > 0.5}
    )
    assert figures["pass@2/x"] == pytest.approx(60.0)
    assert figures["pass@1/ok"] == pytest.approx(50.0)


def test_subsets():
    figures = compute_subset_metrics(TASKS, "level")
    assert (figures["easy/pass@2/accuracy"], figures["hard/pass@2/accuracy"]) == (100.0, 0.0)
    assert not any("per_sample_aggregate" in key for key in figures)


def test_the_highest_k():
    figures, *_ = compute_pass_majority_metrics(TASKS, answer_key="answer")
    assert highest_k_metrics(figures, "pass@{k}", score_names=["accuracy"]) == {"pass@2/accuracy": 50.0}
    found = highest_k_metrics(figures, "pass@1[avg-of-{k}]", exclude_names=["no_answer"])
    assert found == {"pass@1[avg-of-2]/accuracy": 25.0}
    assert highest_k_metrics(figures, "nothing@{k}") == {}
