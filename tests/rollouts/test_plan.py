"""What is to be made: numbers through the whole job, repeats by whoever has the word, faults that cost one row."""

import json

import pytest
from pydantic import ValidationError

from nemo_gym.config.types import JobConfig
from nemo_gym.rollouts.plan import Plan

ROW = {"responses_create_params": {"input": "hi"}}


def written(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(ROW | row)) + "\n" for row in rows))
    return str(path)


def seen(plan):
    return [(task.number, task.agent, task.repeats, task.fault is None) for task in plan]


def asked(plan):
    plan.measure()
    return plan.asked


def test_datasets_and_agents_are_numbered_through(tmp_path):
    a, b = written(tmp_path / "a.jsonl", {}, {}), written(tmp_path / "b.jsonl", {"x": 1}, {}, {})
    job = JobConfig(
        agent=["one", "two"],
        output="out",
        repeats={"one": 2, "two": 3},
        datasets=[{"input": a}, {"input": b, "agent": "three", "repeats": 5, "limit": 2, "name": "second"}],
    )
    plan = Plan(job)
    assert seen(plan) == [
        (0, "one", 2, True),
        (1, "two", 3, True),
        (2, "one", 2, True),
        (3, "two", 3, True),
        (4, "three", 5, True),
        (5, "three", 5, True),
    ]
    assert [task.data["_ng_dataset"] for task in plan] == ["a"] * 4 + ["second"] * 2
    identity = plan.measure()
    assert plan.asked == 2 * 5 + 2 * 5
    assert identity["second.rows"] == 2
    assert identity["a.repeats"] == {"one": 2, "two": 3}
    assert identity["a.dataset_sha256"] != identity["second.dataset_sha256"]
    assert plan.identity().items() <= identity.items()


def test_two_datasets_of_one_name_are_told_apart(tmp_path):
    (tmp_path / "x").mkdir()
    a, b = written(tmp_path / "a.jsonl", {}), written(tmp_path / "x" / "a.jsonl", {})
    job = JobConfig(agent="one", output="out", datasets=[{"input": a}, {"input": b}])
    assert [part.name for part in job.parts()] == ["a", "a-2"]


def test_a_rows_own_repeats_win(tmp_path):
    plan = Plan(
        JobConfig(agent="one", output="out", repeats=2, input=written(tmp_path / "a.jsonl", {"num_repeats": 7}, {}))
    )
    assert seen(plan) == [(0, "one", 7, True), (1, "one", 2, True)]
    assert asked(plan) == 9


@pytest.mark.parametrize("said", [0, -1, "3", 1.5, True, 10**9])
def test_repeats_that_are_no_number_cost_one_row(tmp_path, said):
    rows = [{"num_repeats": said}, {}]
    plan = Plan(JobConfig(agent="one", output="out", repeats=2, input=written(tmp_path / "a.jsonl", *rows)))
    tasks = list(plan)
    assert "num_repeats: expected a whole number" in tasks[0].fault
    assert (tasks[1].fault, asked(plan)) == (None, 4)


def test_rows_say_who_plays_them(tmp_path):
    rows = [{"agent_ref": {"name": "one"}}, {"agent_ref": {"type": "responses_api_agents", "name": "two"}}, {}]
    path = written(tmp_path / "a.jsonl", *rows, {"agent_ref": {"name": "nobody"}})
    plan = Plan(JobConfig(output="out", repeats={"two": 4}, input=path), ["one", "two"])
    assert [(task.agent, task.repeats) for task in plan] == [("one", 1), ("two", 4), ("", 1), ("nobody", 1)]
    faults = [task.fault for task in plan]
    assert faults[:2] == [None, None]
    assert faults[2] == "agent_ref: the job names no agent, and neither does the row"
    assert faults[3] == "agent_ref: there is no agent 'nobody'"
    assert asked(plan) == 7


def test_who_plays_is_asked_before_anything_starts(tmp_path):
    plan = Plan(JobConfig(output="out", input=written(tmp_path / "a.jsonl", {})))
    assert plan.faults() == [("job.agent", "is required: the first row has no agent_ref that names who plays it")]


def test_a_fault_names_its_dataset(tmp_path):
    good = written(tmp_path / "a.jsonl", {})
    told = {"agent": "one", "output": "out", "datasets": [{"input": good}, {"input": str(tmp_path / "no.jsonl")}]}
    ((key, words),) = Plan(JobConfig(**told)).faults()
    assert key == "job.datasets.1.input"
    assert "there is none at" in words


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "expected input, or datasets"),
        ({"input": "a", "datasets": [{"input": "b"}]}, "and not both"),
        ({"input": "a", "repeats": {"one": 0}}, "expected at least 1, got 0"),
        ({"input": "a", "retries": {"row": 1}}, "retries"),
        ({"input": "a", "limits": {"cost": 1.0}}, "limits.cost needs prices"),
        ({"input": "a", "stop_when": {"narrower_than": 0}}, "greater than 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(told, words):
    with pytest.raises(ValidationError, match=words):
        JobConfig(agent="one", output="out", **told)


def test_a_million_rows_are_not_held(tmp_path):
    import tracemalloc

    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for _ in range(20_000):
            file.write('{"responses_create_params": {"input": "' + "x" * 200 + '"}}\n')
    plan = Plan(JobConfig(agent="one", output="out", input=str(path), repeats=50))
    tracemalloc.start()
    try:
        plan.measure()
        assert sum(1 for _ in plan) == 20_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert plan.asked == 1_000_000
    assert peak < 2_000_000
