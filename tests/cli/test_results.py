"""The commands that look at stored rollouts."""

import json

import pytest

from nemo_gym.cli import aggregate, compare, main, profile
from tests.rollouts import stored


@pytest.fixture
def runs(tmp_path):
    a = stored.run_of(tmp_path / "a", {0: [0.0, 1.0], 1: [1.0, 1.0], 2: [0.0, 0.0]}, category="sums")
    b = stored.run_of(tmp_path / "b", {0: [1.0, 1.0], 1: [1.0, 1.0], 2: [0.0, 1.0]}, category="sums")
    return str(a), str(b)


@pytest.mark.parametrize("name", ["reward_profile", "compare", "aggregate_rollouts", "reverify"])
def test_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: ng_{name}")


def test_profile(runs, capsys, tmp_path):
    assert profile.main([runs[0]]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == [
        "tasks",
        "rollouts",
        "masked",
        "reward",
        "95",
        "%",
        "interval",
        "pass@2",
        "pass^2",
    ]
    assert out.splitlines()[1].split()[:5] == ["all", "3", "6", "0", "0.500"]
    assert "most uncertain tasks: 0 (0.500 ± 0.707 of 2)" in out
    assert profile.main([runs[0], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overall"]["pass@2"]["mean"] == pytest.approx(2 / 3)
    assert found["subsets"]["sums"]["rollouts"] == 6
    assert [task["mean"] for task in found["tasks"]] == [0.5, 1.0, 0.0]


def test_profile_writes_what_it_is_told_to_and_replaces_nothing(runs, capsys, tmp_path):
    files = ["--tasks", str(tmp_path / "tasks.jsonl"), "--report", str(tmp_path / "report.html")]
    assert profile.main([runs[0], *files]) == 0
    lines = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert [(line["_ng_task_index"], line["mean/reward"], line["num_rollouts"]) for line in lines] == [
        *((0, 0.5, 2), (1, 1.0, 2), (2, 0.0, 2))
    ]
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    capsys.readouterr()
    assert profile.main([runs[0], *files]) == 2
    assert "tasks.jsonl: is there already; say --overwrite" in capsys.readouterr().err
    assert profile.main([runs[0], *files, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--by", "colour"], "--by: no rollout has a field 'colour'"),
        (["--answer", "guess"], "--answer: no rollout has a field 'guess'"),
        (["--inputs", "nowhere.jsonl"], "--inputs: expected a file, there is none at nowhere.jsonl"),
    ],
)
def test_profile_is_not_made_without_what_was_named(runs, capsys, option, words):
    assert profile.main([runs[0], *option]) == 2
    assert words in capsys.readouterr().err


def test_profile_in_nemo_gyms_manner(runs, capsys, tmp_path):
    inputs = tmp_path / "inputs.jsonl"
    inputs.write_text("".join(json.dumps(stored.row(task, 0, 0)) + "\n" for task in range(5)))
    args = [f"+rollouts_jsonl_fpath={runs[0]}/rollouts.jsonl", f"+materialized_inputs_jsonl_fpath={inputs}"]
    assert profile.main(args) == 2
    assert "2 rows of" in capsys.readouterr().err
    assert profile.main([*args, "++allow_partial_rollouts=true"]) == 0
    assert (tmp_path / "a/rollouts_reward_profiling.jsonl").exists()
    with pytest.raises(SystemExit) as ended:
        profile.main(["+rollouts=x"])
    assert ended.value.code == 2
    assert "+rollouts: there is no such key; there is rollouts_jsonl_fpath" in capsys.readouterr().err


def test_compare(runs, capsys):
    assert compare.main(list(runs)) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[4].split() == [
        "reward",
        "0.500",
        "0.833",
        "+0.333",
        "-0.384",
        "to",
        "1.050",
        "0.1835",
        "0.5000",
        "2",
        "0",
    ]
    assert "reward: no difference beyond chance at 95 %" in out
    assert "p: paired t-test over tasks" in out
    assert compare.main([*runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reward"]["difference"] == pytest.approx(1 / 3)
    assert found["test"] == "paired t-test over tasks"


def test_compare_says_what_cannot_be_compared(runs, tmp_path, capsys):
    other = str(stored.run_of(tmp_path / "c", {7: [1.0]}))
    for args, said in (
        ([runs[0], other], "the runs have no task in common; --by FIELD"),
        ([*runs, "--by", "name"], "6 rollouts have no field 'name'"),
        ([*runs, "--agent", "x"], "no rollout of 'x'; there is agent"),
        ([runs[0], str(tmp_path / "none")], "expected rollouts, there is no"),
    ):
        assert compare.main(args) == 2
        assert said in capsys.readouterr().err


def test_compare_warns_of_different_datasets(tmp_path, capsys):
    runs = [
        str(stored.write(tmp_path / name, [stored.row(0, 0, 1.0)], identity={"dataset_sha256": name})) for name in "ab"
    ]
    assert compare.main(runs) == 0
    assert "the runs are of different datasets" in capsys.readouterr().err
    assert compare.main([*runs, "--by", "_ng_rollout_id"]) == 0
    assert capsys.readouterr().err == ""


def test_aggregate(runs, tmp_path, capsys):
    output = tmp_path / "all"
    assert aggregate.main([*runs, "--output", str(output)]) == 2
    assert "say --renumber tasks" in capsys.readouterr().err
    assert aggregate.main([*runs, "--output", str(output), "--renumber", "repeats"]) == 0
    assert "12 rollouts of 2 shards" in capsys.readouterr().out
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["profile"]["overall"]["pass@4"]["tasks"] == 3
    assert (output / "report.html").exists()
    assert aggregate.main([*runs, "--output", str(output), "--renumber", "repeats"]) == 2
    assert "say --overwrite" in capsys.readouterr().err


def test_shards_without_a_rollout_make_no_run(tmp_path, capsys):
    (tmp_path / "empty.jsonl").touch()
    assert aggregate.main([f"{tmp_path}/empty.jsonl", "-o", f"{tmp_path}/all"]) == 2
    assert capsys.readouterr().err == f"ng_aggregate_rollouts: {tmp_path}/empty.jsonl: no rollout is finished there\n"
    assert not (tmp_path / "all").exists()
    (tmp_path / "failures.jsonl").write_text("{}\n")  # what failed is told of in the whole, too
    assert aggregate.main([f"{tmp_path}/empty.jsonl", "-o", f"{tmp_path}/all"]) == 0
    assert "0 rollouts, 1 failures of 1 shards" in capsys.readouterr().out


def test_rows_that_were_asked_are_rows(runs, tmp_path, capsys):
    (tmp_path / "inputs.jsonl").write_bytes("{}\n".encode("utf-16"))
    assert profile.main([runs[0], "--inputs", f"{tmp_path}/inputs.jsonl"]) == 2
    assert capsys.readouterr().err == f"ng_reward_profile: --inputs: {tmp_path}/inputs.jsonl:1: not JSON in UTF-8\n"
    rows = [json.dumps({"_ng_task_index": task}) for task in range(4)]
    (tmp_path / "inputs.jsonl").write_text("\n".join(rows))  # the last counts, though no line end follows it
    assert profile.main([runs[0], "--inputs", f"{tmp_path}/inputs.jsonl"]) == 2
    assert capsys.readouterr().err.startswith("ng_reward_profile: 1 rows of ")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"a": 1}\n'.encode("utf-16"), "expected text in UTF-8, this is UTF-16"),
        (b"\x89PNG\n\x00\n", "expected text in UTF-8, found the byte 0x89"),
        (b"{]\n", "JSON is malformed"),
    ],
)
def test_a_file_that_is_no_text_is_told_by_what_it_is(tmp_path, capsys, data, words):
    (tmp_path / "x.jsonl").write_bytes(data)
    assert profile.main([f"{tmp_path}/x.jsonl"]) == 2
    assert capsys.readouterr().err.startswith(f"ng_reward_profile: {tmp_path}/x.jsonl, at byte 0: no rollout: {words}")


def test_aggregate_in_nemo_gyms_manner(runs, tmp_path, capsys):
    args = [f"+input_glob='{tmp_path}/a/*.jsonl, {tmp_path}/b/r*.jsonl'", f"+output_jsonl_fpath={tmp_path}/all.jsonl"]
    assert aggregate.main([*args, "--renumber", "tasks", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rollouts"], len(found["shards"])) == (12, 2)
    assert (tmp_path / "all/rollouts.jsonl").exists()


def test_what_cannot_be_written_is_told_by_its_path_and_without_a_number(runs, tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.write_text("")
    for command, args in (
        (profile, [runs[0], "--tasks", f"{taken}/tasks.jsonl"]),
        (aggregate, [*runs, "--renumber", "repeats", "--output", f"{taken}/all"]),
    ):
        assert command.main(args) == 2
        told = capsys.readouterr().err
        assert str(taken) in told
        assert "Not a directory" in told or "File exists" in told
        assert "Errno" not in told
