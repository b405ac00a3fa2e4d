"""`ng_reverify` with a configuration: of it the verifiers are started, and nothing else."""

import json
from pathlib import Path

import pytest

from nemo_gym.cli import reverify
from tests.rollouts import stored

ROOT = Path(__file__).resolve().parents[2]
REMOTE = f"+config_paths=[{ROOT}/configs/quickstart_remote.yaml]"  # its model's address is not said, nor is it needed


@pytest.fixture
def run(tmp_path, monkeypatch):
    """One rollout that is right and one that is wrong, and both were said to be wrong."""
    monkeypatch.chdir(tmp_path)
    called = [stored.call("calculator", '{"a": 4, "b": 2}'), stored.output('{"result": 6}')]
    about = {
        "expected": {"tool": "calculator", "a": 4, "b": 2, "result": 6},
        "agent_ref": {"name": "example_weather_and_sums_simple_agent"},
        "called": False,
        "stated": False,
    }
    rows = []
    for task, text in enumerate(("The answer is 6.", "The answer is 7.")):
        row = stored.row(task, 0, 0.0, [*called, stored.message(text)]) | about
        row["response"] |= {"id": "r", "created_at": 0.0, "model": "m", "object": "response"}
        row["response"] |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        del row["response"]["usage"]
        rows.append(row)
    return stored.write(tmp_path / "first", rows)


@pytest.mark.ci
def test_through_the_environments_own_server(run, tmp_path, capsys):
    assert reverify.main([REMOTE, f"+rollouts={run}", "+output=again", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verified"], found["changed"], found["reward"]["second"]) == (2, 1, 0.5)
    rows = [json.loads(line) for line in (tmp_path / "again/rollouts.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: row["_ng_task_index"])
    assert [(row["reward"], row["called"], row["stated"]) for row in rows] == [(1.0, True, True), (0.0, True, False)]
    assert [path.name for path in (tmp_path / "again/logs").iterdir()] == ["example_weather_and_sums.log"]
    assert (tmp_path / "again/report.html").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["+rollouts=nowhere", "+output=again"], "nowhere: expected rollouts, there is no nowhere"),
        (["+rollouts=first", "+output=again", "+inputs=nowhere.jsonl"], "+inputs: expected a file, there is none at"),
        (["+rollouts=first", "+output=again", "+server=another"], "+server: there is no resources server 'another'"),
        (["+rollouts=first", "+output=held"], "held: already holds a run; +resume=true"),
    ],
)
def test_what_can_be_told_before_is_told_before_a_server_starts(run, tmp_path, capsys, args, said):
    stored.run_of(tmp_path / "held", {0: [1.0]})
    assert reverify.main([REMOTE, *args]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert "ready" not in told.out
    assert not (tmp_path / "again/logs").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([REMOTE, "+output=again"], "+rollouts: is required: +rollouts=RUN"),
        ([REMOTE, "+rollouts=first", "+output=again", "+concurrency=0"], "+concurrency: expected at least 1, got 0"),
        ([REMOTE, "+rollouts=first", "+output=again", "+concurency=1"], "concurency: is not a known key; did you"),
        (["+rollouts=", "+output=again"], "+rollouts: expected a path, got ''"),
        ([REMOTE, "+rollouts=first", "+output=''"], "+output: expected a path, got ''"),
        (
            ["+config_paths=[none.yaml]"],
            "'none.yaml' does not exist\n+rollouts: is required: +rollouts=RUN\n+output: is",
        ),
        (["+config_paths=[none.yaml]", "+rollouts=first", "+output=again"], "expected a file, 'none.yaml' does not"),
    ],
)
def test_faults_end_it_with_2(run, capsys, args, said):
    assert reverify.main(args) == 2
    assert said in capsys.readouterr().err


def test_without_a_configuration_servers_must_be_up(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_GYM_RUNTIME_DIR", str(tmp_path / "runtime"))
    assert reverify.main([f"+rollouts={run}", "+output=again"]) == 1
    assert "no +config_paths say what verifies" in capsys.readouterr().err
