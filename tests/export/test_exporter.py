"""Real shards and a real journal in, Parquet out, read back by pyarrow and by HF datasets."""

import asyncio
import json
import time
from array import array

import pyarrow.parquet as pq
import pytest

from nemo_gym.capture.record import CallRecord, Times
from nemo_gym.capture.writer import ShardWriter
from nemo_gym.cli.export import main
from nemo_gym.exchange.parts import Message, Text
from nemo_gym.exchange.reply import Choice, ModelReply, TokenTrace
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.export.exporter import ExportError, export

CLOCK = iter(range(1, 10_000))


def record(rollout_id, prompt, ids, **more):
    moment = float(next(CLOCK))
    tokens = TokenTrace(array("i", ids), array("f", [-0.25] * len(ids)), ((0, 3),)) if ids is not None else None
    reply = ModelReply(
        f"resp_{moment}",
        "tiny",
        1,
        (Choice(0, (Text("said"),), "stop", tokens),),
        prompt_ids=None if prompt is None else array("i", prompt),
    )
    request = ModelRequest((Message("user", (Text("hi"),)),), sampling=Sampling(temperature=0.7))
    fields = {
        "call_id": f"call-{moment}",
        "run_id": "run",
        "rollout_id": rollout_id,
        "attempt": 1,
        "session_id": None,
        "parent_call_id": None,
        "relation": "first",
        "server": "policy_model",
        "dialect": "responses",
        "backend_dialect": None,
        "streamed": False,
        "times": Times(moment, moment, moment, moment),
        "attempts": (),
        "status": "answered",
        "trainable": True,
        "received": request,
        "sent": request,
        "reply": reply,
        "error": None,
        "logprobs_mode": "processed",
    }
    return CallRecord(**(fields | more))


class Job:
    def __init__(self, folder):
        self.folder = folder
        self.rows = []
        self.records = []

    def rollout(self, rollout_id, *records, reward=1.0, task=0, calls=None, incomplete=None, **more):
        self.records += records
        said = {"calls": len(records) if calls is None else calls, "incomplete": incomplete}
        row = {
            "_ng_task_index": task,
            "_ng_rollout_index": 0,
            "_ng_rollout_id": rollout_id,
            "_ng_rollout": said,
            "agent_ref": {"name": "agent"},
            "reward": reward,
        }
        self.rows.append(row | more)

    def write(self):
        async def commit():
            writer = ShardWriter(str(self.folder / "captures"), "policy_model", "run", "none")
            for one in self.records:
                await writer.commit(one)
            writer.close()

        asyncio.run(commit())
        (self.folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def export(self):
        self.write()
        summary = export(self.folder, ["token_rows"])
        return summary, pq.read_table(self.folder / "exports" / "token_rows").to_pylist()


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
    job.records += [record("killed", [1], [2, 3]), record(None, [1], [2])]
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
    raw = {"logprobs_mode": "raw"}
    plain = ModelRequest((Message("user", (Text("hi"),)),), sampling=Sampling(temperature=1.0, top_p=1.0, top_k=-1))
    job.rollout(
        "r",
        record("r", [1], [2]),
        record("r", [5], [6], trainable=False, server="judge"),
        record("r", [7], [8], relation="repeat"),
        record("r", [9], [10], **raw),
        record("r", [11], [12], **raw, received=plain, sent=plain),
        record("r", [13], [14], status="disconnected"),
    )
    summary, rows = job.export()
    assert [row["input_ids"] for row in rows] == [[1, 2], [11, 12]]
    assert summary.calls == {"not_trainable": 1, "repeat": 1, "raw_logprobs": 1, "disconnected": 1}


def test_calls_are_taken_in_the_order_they_were_asked(job):
    first, second = record("r", [1], [2]), record("r", [1, 2, 3], [4])
    job.rollout("r", second, first)
    _, rows = job.export()
    assert [row["input_ids"] for row in rows] == [[1, 2, 3, 4]]


def test_a_later_call_of_a_sealed_rollout_stays_out(job):
    job.rollout("r", record("r", [1], [2]))
    job.records.append(record("r", [1, 2, 3], [4]))
    summary, rows = job.export()
    assert [row["input_ids"] for row in rows] == [[1, 2]]
    assert summary.discarded == {"after_seal": 4}


def test_an_export_is_replaced_whole(job):
    job.rollout("r-0", record("r-0", [1], [2]))
    job.write()
    stale = job.folder / "exports" / "token_rows" / "part-00007.parquet"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"old")
    export(job.folder, ["token_rows"])
    assert not stale.exists()
    assert sorted(path.name for path in stale.parent.iterdir()) == ["part-00000.parquet"]


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
    with pytest.raises(ExportError, match="unknown format sft; there is token_rows"):
        export(tmp_path, ["sft"])
    with pytest.raises(ExportError, match="no captures"):
        export(tmp_path, ["token_rows"])
    (tmp_path / "captures").mkdir()
    with pytest.raises(ExportError, match=r"rollouts\.jsonl"):
        export(tmp_path, ["token_rows"])


def test_the_command(job, capsys):
    job.rollout("r-0", record("r-0", [1], [2]))
    job.write()
    assert main([str(job.folder)]) == 0
    assert "2 captured = 1 trained + 1 context" in capsys.readouterr().out
    assert main([str(job.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 1
    assert main([str(job.folder / "nowhere")]) == 1
    assert "no captures" in capsys.readouterr().err


def test_many_rows_in_time(job):
    for number in range(300):
        turns = [
            record(f"r-{number}", list(range(50 * turn + 40)), list(range(50 * turn + 40, 50 * turn + 50)))
            for turn in range(10)
        ]
        job.rollout(f"r-{number}", *turns)
    job.write()
    began = time.monotonic()
    summary = export(job.folder, ["token_rows"])
    assert (summary.rows, summary.trained) == (300, 300 * 100)
    assert time.monotonic() - began < 20
