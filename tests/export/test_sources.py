"""Captures without a job: which rollouts there are, what is not known of them, and where the rows go."""

import asyncio

import pyarrow.parquet as pq
import pytest

from nemo_gym.capture import CaptureStore, ShardWriter
from nemo_gym.export.explain import explain
from nemo_gym.export.exporter import export
from nemo_gym.export.options import ExportError, Options
from tests.export.made import Job, read_lines, record, two_turns


def recorded(folder, *records, seals=()):
    """A writer's shard in `folder`, of records and then of seals (rollout, why it is incomplete)."""

    async def commit():
        writer = ShardWriter(str(folder), "policy_model", "run", "none")
        for one in records:
            await writer.commit(one)
        for rollout_id, incomplete in seals:
            await writer.seal(rollout_id, incomplete)
        writer.close()

    asyncio.run(commit())


def of_session(session, turns, start=1):
    """Calls of no rollout, each going on from the one before."""
    made, whole = [], [start]
    for turn in range(turns):
        parent = {"parent_call_id": made[-1].call_id, "relation": "turn"} if made else {}
        made.append(record(None, list(whole), [50 + turn], session_id=session, **parent))
        whole = [*whole, 50 + turn, 9]
    return made


def rows_of(folder):
    return {row["rollout_id"]: row for row in pq.read_table(folder).to_pylist()}


def test_rollouts_are_those_that_calls_name_then_sessions_then_single_calls(tmp_path):
    lone = record(None, [7, 8], [9])
    recorded(tmp_path / "captures", *two_turns("task-1"), *of_session("s-1", 2), *of_session("s-2", 1, 4), lone)
    summary = export(tmp_path, ["token_rows"])
    assert summary.rollouts == 4 and summary.left_out == {}
    assert summary.captured == summary.trained + summary.context
    rows = rows_of(tmp_path / "exports" / "token_rows")
    assert set(rows) == {"task-1", "session s-1", "session s-2", f"call {lone.call_id}"}
    assert rows["task-1"]["input_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert rows["task-1"]["loss_mask"] == [0, 0, 1, 1, 0, 1, 1]
    assert rows["session s-1"]["input_ids"] == [1, 50, 9, 51]  # both calls, one sequence
    assert rows["session s-1"]["loss_mask"] == [0, 1, 0, 1]
    for name, row in rows.items():
        assert (row["reward"], row["advantage"], row["agent"]) == (None, None, "")
        assert (row["task_id"], row["group_id"]) == (name, f"run-{name}")
        assert row["complete"] is False  # nobody has said that these are all


@pytest.mark.parametrize("given", ["results", "results/captures", "shards"])
def test_any_folder_with_captures_will_do(tmp_path, given):
    captures = tmp_path / ("shards" if given == "shards" else "results/captures")
    recorded(captures, *two_turns("r"))
    summary = export(tmp_path / given, ["token_rows", "sft"])
    target = captures / "exports" if given == "shards" else tmp_path / "results" / "exports"
    assert summary.folders["sft"] == str(target / "sft")
    (said,) = read_lines(target / "sft")
    assert said["reward"] is None and said["messages"][-1]["content"] == "It is sunny."
    again = export(tmp_path / given, ["token_rows"])  # an export within is no capture
    assert again.captured == summary.captured


def test_a_seal_says_what_there_was(tmp_path):
    folder = tmp_path / "captures"
    recorded(folder, *two_turns("whole"), *two_turns("cut"), seals=[("whole", None), ("cut", "deadline")])
    summary = export(tmp_path, ["token_rows"])
    assert summary.left_out == {"incomplete_deadline": 1}
    assert rows_of(tmp_path / "exports" / "token_rows")["whole"]["complete"] is True
    everything = export(tmp_path, ["token_rows"], options=Options(include=frozenset({"incomplete"})))
    assert everything.rollouts == 2
    assert rows_of(tmp_path / "exports" / "token_rows")["cut"]["complete"] is False


@pytest.mark.parametrize(
    ("formats", "options", "says"),
    [
        (["verl"], Options(), "verl: needs a job's results"),
        (["sft", "preferences"], Options(), "preferences: needs a job's results"),
        (["token_rows"], Options(advantage="grpo"), "advantage: needs a job's results"),
        (["token_rows"], Options(min_reward=0.0), "min_reward: needs a job's results"),
        (["token_rows"], Options(agents=("a",)), "agent: needs a job's results"),
    ],
)
def test_what_only_a_job_knows_is_refused(tmp_path, formats, options, says):
    recorded(tmp_path / "captures", *two_turns("r"))
    with pytest.raises(ExportError, match=says):
        export(tmp_path, formats, options=options)
    assert not (tmp_path / "exports").exists()


def test_a_job_that_has_no_results_is_not_taken_for_captures_alone(tmp_path):
    recorded(tmp_path / "captures", *two_turns("r"))
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ExportError, match=r"it has no rollouts\.jsonl"):
        export(tmp_path, ["token_rows"])
    (tmp_path / "job").mkdir()
    (tmp_path / "job/rollouts.jsonl").touch()  # as ng_collect_rollouts leaves it: the servers have the captures
    with pytest.raises(ExportError, match=r"there are no captures at .*/job/captures; --captures says where they are"):
        export(tmp_path / "job", ["token_rows"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExportError, match="there are no captures at"):
        export(tmp_path / "empty", ["token_rows"])
    with pytest.raises(ExportError, match="there are no captures at"):
        export(tmp_path / "nowhere", ["token_rows"])


def test_with_a_job_calls_of_no_rollout_stay_out(tmp_path):
    job = Job(tmp_path)
    job.rollout("r", *two_turns("r"))
    job.record(*of_session("s-1", 2))
    summary, rows = job.export()
    assert [row["rollout_id"] for row in rows] == ["r"]
    assert summary.discarded == {"no_rollout": 4}


def test_a_session_is_explained_as_a_rollout_is(tmp_path):
    recorded(tmp_path / "captures", *of_session("s-1", 2))
    told = explain(tmp_path, "session s-1")
    assert [call.relation for call in told.calls] == ["first", "turn"]
    assert [one.trained for one in told.sequences] == [2]


def test_records_of_a_sessions_calls_are_found_in_a_packed_shard_too(tmp_path):
    recorded(tmp_path / "captures", *of_session("s-1", 2))
    store = CaptureStore(tmp_path / "captures")
    assert len(list(store.calls())) == 2
    summary = export(tmp_path, ["sft", "atif"])
    assert summary.rollouts == 1
