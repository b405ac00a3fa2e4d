"""A job's captures and results into token rows, end to end."""

import json
import time

import pyarrow.parquet as pq
import pytest

from nemo_gym.cli.export import main
from nemo_gym.exchange.parts import Message, Text
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.export.exporter import ExportError, export
from tests.export.made import Job, record


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_a_rollout_of_two_turns_is_one_row(job):
    job.rollout("r-0", record("r-0", [1, 2], [3, 4]), record("r-0", [1, 2, 3, 4, 5], [6]), task_id="weather-0", task=4)
    summary, (row,) = job.export()
    assert row == {
        "input_ids": [1, 2, 3, 4, 5, 6],
        "loss_mask": [0, 0, 1, 1, 0, 1],
        "logprobs": [0.0, 0.0, -0.25, -0.25, 0.0, -0.25],
        "policy_version": [-1, -1, 3, 3, -1, 3],
        "reward": 1.0,
        "advantage": None,
        "task_id": "weather-0",
        "group_id": "run-4",
        "rollout_id": "r-0",
        "branch": 0,
        "run_id": "run",
        "agent": "agent",
        "model": "tiny",
        "complete": True,
    }
    assert (summary.rows, summary.rollouts, summary.captured, summary.trained, summary.context) == (1, 1, 6, 3, 3)


def test_the_types_are_the_documented_ones(job):
    job.rollout("r-0", record("r-0", [1], [2]))
    job.write()
    export(job.folder, ["token_rows"])
    schema = pq.read_schema(job.folder / "exports" / "token_rows" / "part-00000.parquet")
    types = {name: str(schema.field(name).type) for name in schema.names}
    assert types["input_ids"].startswith("list<") and "int32" in types["input_ids"]
    assert "int8" in types["loss_mask"] and "float" in types["logprobs"] and "int32" in types["policy_version"]
    assert (types["reward"], types["advantage"], types["branch"], types["complete"]) == (
        "float",
        "float",
        "int32",
        "bool",
    )


def test_huggingface_datasets_reads_the_folder(job, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    for number in range(3):
        job.rollout(f"r-{number}", record(f"r-{number}", [1, 2], [3, number]), reward=number / 2, task=number)
    job.write()
    export(job.folder, ["token_rows"])
    folder = str(job.folder / "exports" / "token_rows")
    loaded = datasets.load_dataset(folder, split="train", cache_dir=str(job.folder / "cache"))
    assert loaded.num_rows == 3
    assert loaded[2]["input_ids"] == [1, 2, 3, 2]
    assert loaded["reward"][:] == [0.0, 0.5, 1.0]
    by_card = datasets.load_dataset(
        str(job.folder / "exports"), "token_rows", split="train", cache_dir=str(job.folder / "cache")
    )
    assert by_card.num_rows == 3


def test_what_is_left_out_is_counted_with_its_reason(job):
    job.rollout("good", record("good", [1], [2]))
    job.rollout("cut", record("cut", [1], [2]), incomplete="capture_error")
    job.rollout("lost", record("lost", [1], [2]), calls=2)
    job.rollout("masked", record("masked", [1], [2]), mask_sample=True)
    job.rollout("blind", record("blind", None, None))
    job.record(record("killed", [1], [2, 3]), record(None, [1], [2]))
    summary, rows = job.export()
    assert [row["rollout_id"] for row in rows] == ["good"]
    assert summary.left_out == {
        "incomplete_capture_error": 1,
        "calls_missing": 1,
        "masked": 1,
        "nothing_to_train": 1,
        "no_result": 1,
    }
    assert summary.discarded == {
        "incomplete_capture_error": 2,
        "calls_missing": 2,
        "masked": 2,
        "no_result": 3,
        "no_rollout": 2,
    }
    assert summary.captured == summary.trained + summary.context + sum(summary.discarded.values())
    assert summary.calls["no_token_ids"] == 1


def test_calls_that_are_not_trained(job):
    job.rollout(
        "r",
        record("r", [1], [2]),
        record("r", [5], [6], trainable=False, server="judge"),
        record("r", [7], [8], relation="repeat"),
        record("r", [13], [14], status="disconnected"),
    )
    summary, rows = job.export()
    assert [row["input_ids"] for row in rows] == [[1, 2]]
    assert summary.calls == {"not_trainable": 1, "repeat": 1, "disconnected": 1}


def test_raw_logprobs_of_another_distribution_leave_the_rollout_out_unless_asked_for(job):
    plain = ModelRequest((Message("user", (Text("hi"),)),), sampling=Sampling(temperature=1.0, top_p=1.0, top_k=-1))
    cut = ModelRequest((Message("user", (Text("hi"),)),), sampling=Sampling(top_p=0.9))
    job.rollout("warm", record("warm", [1], [2], logprobs_mode="raw"), record("warm", [9], [10]))
    job.rollout("cut", record("cut", [3], [4], logprobs_mode="raw", received=cut, sent=cut))
    job.rollout("plain", record("plain", [5], [6], logprobs_mode="raw", received=plain, sent=plain))
    summary, rows = job.export()
    assert [row["input_ids"] for row in rows] == [[5, 6]]
    assert summary.left_out == {"raw_logprobs": 2} and summary.discarded == {"raw_logprobs": 6}
    summary, rows = job.again(include=frozenset({"raw_logprobs"}))
    assert len(rows) == 4 and summary.left_out == {}


def test_rollouts_too_far_off_policy_are_left_out_unless_asked_for(job):
    job.rollout("old", record("old", [1], [2], version=3), record("old", [9], [8], version=7))
    job.rollout("new", record("new", [3], [4], version=7))
    job.write()
    assert len(job.again()[1]) == 3
    summary, rows = job.again(max_staleness=3)
    assert [row["rollout_id"] for row in rows] == ["new"]
    assert summary.left_out == {"off_policy": 1} and summary.policy_versions == (7, 7)
    assert len(job.again(max_staleness=4)[1]) == 3
    assert len(job.again(max_staleness=0, policy_version=3)[1]) == 3
    assert len(job.again(max_staleness=0, include=frozenset({"off_policy"}))[1]) == 3


def test_incomplete_rollouts_may_be_asked_for(job):
    job.rollout("cut", record("cut", [1], [2]), incomplete="deadline")
    job.rollout("lost", record("lost", [1], [2]), calls=2)
    job.rollout("masked", record("masked", [1], [2]), mask_sample=True)
    _, rows = job.export(include=frozenset({"incomplete", "calls_missing", "masked"}))
    assert {row["rollout_id"]: row["complete"] for row in rows} == {"cut": False, "lost": False, "masked": True}


def test_calls_are_taken_in_the_order_they_were_asked(job):
    first, second = record("r", [1], [2]), record("r", [1, 2, 3], [4])
    job.rollout("r", second, first)
    _, rows = job.export()
    assert [row["input_ids"] for row in rows] == [[1, 2, 3, 4]]


def test_a_later_call_of_a_sealed_rollout_stays_out(job):
    job.rollout("r", record("r", [1], [2]))
    job.seal("r")
    job.record(record("r", [1, 2, 3], [4]))
    summary, rows = job.export()
    assert [row["input_ids"] for row in rows] == [[1, 2]]
    assert summary.discarded == {"after_seal": 2} and summary.calls == {"after_seal": 1}


def test_the_calls_of_a_server_that_was_started_anew_are_all_its(job):
    """The second process seals what it knows of; what the first one recorded is no less a part of the rollout."""
    first, second = record("r", [1], [2]), record("r", [1, 2, 3], [4])
    job.rollout("r", first, calls=1)
    job.write()
    for path in (job.folder / "captures" / "policy_model").rglob("policy_model-*"):
        path.rename(path.with_name(f"policy_model-1-0{path.suffix}"))
    job.steps = []
    job.record(second)
    job.seal("r")
    summary, rows = job.export()
    assert [row["input_ids"] for row in rows] == [[1, 2, 3, 4]] and summary.calls == {}


def test_a_later_seal_takes_a_call_in(job):
    job.rollout("r", record("r", [1], [2]))
    job.seal("r")
    job.record(record("r", [1, 2, 3], [4]))
    job.seal("r")
    assert [row["input_ids"] for row in job.export()[1]] == [[1, 2, 3, 4]]


def test_the_calls_of_one_rollout_at_two_servers_come_together(job):
    for number in range(20):
        name = f"r-{number}"
        judge = record(name, [7], [8], trainable=False, server="judge_model")
        job.rollout(name, record(name, [1], [2, number]), calls=2)
        job.record(judge, writer="judge_model")
        job.seal(name)
        job.seal(name, writer="judge_model")
    summary, rows = job.export()
    assert [row["input_ids"] for row in rows] == [[1, 2, number] for number in range(20)]
    assert summary.left_out == {} and summary.calls == {"not_trainable": 20}
    assert (summary.captured, summary.trained, summary.context) == (100, 40, 20)


def test_an_export_is_replaced_whole(job):
    job.rollout("r-0", record("r-0", [1], [2]))
    job.write()
    stale = job.folder / "exports" / "token_rows" / "part-00007.parquet"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"old")
    export(job.folder, ["token_rows"])
    assert not stale.exists()
    assert sorted(path.name for path in stale.parent.iterdir()) == ["part-00000.parquet"]


def test_an_export_that_fails_leaves_the_earlier_one(job, monkeypatch, capsys):
    job.rollout("r-0", record("r-0", [1], [2]))
    job.write()
    export(job.folder, ["token_rows"])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nemo_gym.export.formats.token_rows.TokenRows.take", full)
    assert main([str(job.folder)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert pq.read_table(job.folder / "exports" / "token_rows").num_rows == 1
    assert sorted(path.name for path in (job.folder / "exports").iterdir()) == [
        ".lock",
        "README.md",
        "manifest.json",
        "token_rows",
    ]


def test_nothing_to_export_is_an_empty_table(job):
    job.rollout("r", record("r", [1], [2]), incomplete="deadline")
    summary, rows = job.export()
    assert (summary.rows, rows) == (0, [])


def test_a_torn_journal_is_read_up_to_the_tear(job):
    job.rollout("r-0", record("r-0", [1], [2]))
    job.write()
    with (job.folder / "rollouts.jsonl").open("a") as file:
        file.write('{"reward": 1')
    assert export(job.folder, ["token_rows"]).rollouts == 1


def test_what_cannot_be_exported_is_told(tmp_path):
    with pytest.raises(ExportError, match="unknown format sfd; there is token_rows"):
        export(tmp_path, ["sfd"])
    with pytest.raises(ExportError, match="no captures"):
        export(tmp_path, ["token_rows"])
    (tmp_path / "captures").mkdir()
    with pytest.raises(ExportError, match="no captures"):
        export(tmp_path, ["token_rows"])
    with pytest.raises(ExportError, match=r"rollouts\.jsonl"):
        export(tmp_path, ["token_rows"], captures=tmp_path / "captures")


def test_the_command(job, capsys):
    job.rollout("r-0", record("r-0", [1], [2]))
    job.write()
    assert main([str(job.folder)]) == 0
    assert "2 captured = 1 trained + 1 context" in capsys.readouterr().out
    assert main([str(job.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["formats"]["token_rows"]["rows"] == 1
    assert main([str(job.folder / "nowhere")]) == 2
    assert "no captures" in capsys.readouterr().err


def test_many_rows_in_time(job):
    for number in range(300):
        turns = [
            record(f"r-{number}", list(range(50 * turn + 40)), list(range(50 * turn + 40, 50 * turn + 50)))
            for turn in range(10)
        ]
        job.rollout(f"r-{number}", *turns)
    job.write()
    began = time.process_time()
    summary = export(job.folder, ["token_rows"])
    assert (summary.rows, summary.trained) == (300, 300 * 100)
    assert time.process_time() - began < 20
