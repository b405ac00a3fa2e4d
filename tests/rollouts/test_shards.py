import json

import pytest

from nemo_gym.rollouts.journal import read as read_rows
from nemo_gym.rollouts.results import ResultsError, read
from nemo_gym.rollouts.shards import merge
from tests.rollouts import stored


def numbers(folder):
    return [(one.task, one.repeat, one.reward) for one in read([folder])]


def test_shards_of_one_job_by_task(tmp_path):
    a = stored.write(tmp_path / "a", [stored.row(2, 0, 0.25), stored.row(0, 0, 1.0)], input="d.jsonl", run_id="a")
    b = stored.write(tmp_path / "b", [stored.row(1, 0, 0.5)], input="d.jsonl", run_id="b")
    (b / "failures.jsonl").write_text('{"kind": "timeout", "message": "late"}\n')
    merged = merge([a, b], tmp_path / "all", overwrite=False)
    assert (merged.rollouts, merged.failures) == (3, 1)
    assert numbers(tmp_path / "all") == [(0, 0, 1.0), (1, 0, 0.5), (2, 0, 0.25)]
    assert next(read_rows(tmp_path / "all/rollouts.jsonl")) == stored.row(0, 0, 1.0)
    manifest = json.loads((tmp_path / "all/manifest.json").read_text())
    assert manifest["input"] == "d.jsonl"  # what they agree on
    assert manifest["run_id"] == ""
    assert manifest["shards"] == [str(a), str(b)]


def test_the_same_number_twice_is_a_fault_until_it_is_said_what_it_means(tmp_path):
    a = stored.run_of(tmp_path / "a", {0: [1.0, 0.0], 1: [0.0]})
    b = stored.run_of(tmp_path / "b", {0: [0.5], 3: [0.25]})
    with pytest.raises(ResultsError, match=r"task 0, repeat 0 is in .*a/rollouts.jsonl and in .*b/rollouts"):
        merge([a, b], tmp_path / "all", overwrite=False)
    assert not (tmp_path / "all").exists()
    merge([a, b], tmp_path / "tasks", "tasks", overwrite=False)
    assert numbers(tmp_path / "tasks") == [(0, 0, 1.0), (0, 1, 0.0), (1, 0, 0.0), (2, 0, 0.5), (5, 0, 0.25)]
    merge([a, b], tmp_path / "repeats", "repeats", overwrite=False)
    assert numbers(tmp_path / "repeats") == [(0, 0, 1.0), (0, 1, 0.0), (0, 2, 0.5), (1, 0, 0.0), (3, 0, 0.25)]
    row = list(read_rows(tmp_path / "tasks/rollouts.jsonl"))[3]
    assert row == stored.row(0, 0, 0.5) | {"_ng_task_index": 2}


def test_repeats_of_several_shards_follow_one_another(tmp_path):
    shards = [stored.run_of(tmp_path / name, {0: [float(n)]}) for n, name in enumerate("abc")]
    merge(shards, tmp_path / "all", "repeats", overwrite=False)
    assert numbers(tmp_path / "all") == [(0, 0, 0.0), (0, 1, 1.0), (0, 2, 2.0)]


def test_agents_have_task_numbers_of_their_own(tmp_path):
    a = stored.run_of(tmp_path / "a", {0: [1.0]})
    b = stored.run_of(tmp_path / "b", {0: [0.0]}, agent_ref={"name": "another"})
    merge([a, b], tmp_path / "all", "tasks", overwrite=False)
    assert [(one.agent, one.reward) for one in read([tmp_path / "all"])] == [("agent", 1.0), ("another", 0.0)]


def test_nothing_is_overwritten_unasked(tmp_path):
    a, b = stored.run_of(tmp_path / "a", {0: [1.0]}), stored.run_of(tmp_path / "b", {1: [1.0]})
    merge([a], tmp_path / "all", overwrite=False)
    (tmp_path / "all/report.html").write_text("of the earlier one")
    with pytest.raises(ResultsError, match=r"has rollouts.jsonl, .*already; say --overwrite"):
        merge([b], tmp_path / "all", overwrite=False)
    assert numbers(tmp_path / "all") == [(0, 0, 1.0)]
    merge([b], tmp_path / "all", overwrite=True)
    assert numbers(tmp_path / "all") == [(1, 0, 1.0)]
    assert not (tmp_path / "all/report.html").exists()
    with pytest.raises(ResultsError, match="is itself one of the shards"):
        merge([a, tmp_path / "all"], tmp_path / "all", overwrite=True)


def test_a_torn_shard_is_read_as_far_as_it_is_whole(tmp_path):
    a = stored.run_of(tmp_path / "a", {0: [1.0]})
    with (a / "rollouts.jsonl").open("a") as file:
        file.write('{"_ng_task')
    assert merge([a], tmp_path / "all", overwrite=False).rollouts == 1
    assert numbers(tmp_path / "all") == [(0, 0, 1.0)]
