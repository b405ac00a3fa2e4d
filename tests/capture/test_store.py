"""What a store tells, and what verify finds."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from msgspec.structs import replace
from records import chat_request, conversation, record, reply

from nemo_gym.capture import CaptureStore, Receipt, ShardWriter
from nemo_gym.capture.columns import to_batch, to_rows
from nemo_gym.capture.record import CallRecord, Failure, Seal
from nemo_gym.capture.schema import COLUMNS, SCHEMA, VERSION
from nemo_gym.exchange.parts import ToolCall
from nemo_gym.exchange.reply import Choice, ModelReply
from nemo_gym.exchange.tools import Tool


async def _written(directory: Path, records: list[CallRecord], seals: dict[str, str | None]) -> None:
    writer = ShardWriter(str(directory), "policy", "run", "flush")
    for one in records:
        await writer.commit(one)
        writer.receipt(Receipt(one.call_id, one.status == "answered", 2.0))
    for rollout_id, incomplete in seals.items():
        await writer.seal(rollout_id, incomplete)
    writer.close()


@pytest.fixture
def made() -> list[CallRecord]:
    turns = conversation(3)
    failed = record(
        rollout_id="r2", status="failed", error=Failure(502, "backend", "it broke"), received=chat_request([])
    )
    return [*turns, failed, record(rollout_id=None, reply=reply("hello", [1], [2]))]


@pytest.fixture
def store(tmp_path, made) -> CaptureStore:
    asyncio.run(_written(tmp_path, made, {"r1": None, "r2": "backend_error"}))
    return CaptureStore(tmp_path)


def test_rollouts_and_calls(store, made):
    assert store.rollouts() == ["r1", "r2"]
    assert list(store.calls("r1")) == made[:3]
    assert list(store.calls()) == made
    assert list(store.calls("r")) == []
    with pytest.raises(FileNotFoundError, match="no such directory"):
        CaptureStore("/nowhere/at/all")


def test_the_table_is_whole_and_by_column(store, made):
    table = store.table()
    assert table.num_rows == 5
    assert {"call_id", "rollout_id", "prompt_ids", "choices", "request_contents", "delivered"} <= set(
        table.column_names
    )
    row = table.to_pylist()[2]
    assert row["prompt_ids"] == list(made[2].reply.prompt_ids)
    assert row["choices"][0]["token_ids"] == list(made[2].reply.choices[0].tokens.ids)
    assert json.loads(row["choices"][0]["parts"])[0]["text"] == made[2].reply.choices[0].parts[0].text
    messages = [json.loads(one) for one in row["request_contents"]]
    assert [one["parts"][0]["text"] for one in messages] == [one.parts[0].text for one in made[2].received.messages]
    assert json.loads(row["request_body"]) == made[2].received.origin.body
    assert row["policy_version"] == 3
    two = store.table(["status", "delivered"], "r2")
    assert two.to_pylist() == [{"status": "failed", "delivered": False}]
    assert two.schema.names == ["status", "delivered"]
    with pytest.raises(ValueError, match="no column 'prompt'"):
        store.table(["prompt"])
    assert store.table(["prompt_ids"], "nothing").num_rows == 0


def test_verify_is_clean(store):
    report = store.verify()
    assert report.ok
    assert (report.shards, report.calls, report.rollouts, report.without_rollout) == (1, 5, 2, 1)
    assert (report.open, report.torn, report.unsealed) == ([], [], [])
    assert report.incomplete == {"r2": "backend_error"}


def _rewritten(path: Path, change, *, skip: int | None = None) -> None:
    """The shard with its rows changed, as somebody without our digests would do it."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        batches = list(reader)
    data = SCHEMA.serialize().to_pybytes()
    for number, batch in enumerate(batches):
        if number != skip:
            rows = to_rows(batch)
            for row in rows:
                change(row)
            data += to_batch(rows).serialize().to_pybytes()
    path.write_bytes(data + b"\xff\xff\xff\xff\0\0\0\0")


def _problems(store: CaptureStore) -> str:
    return "\n".join(store.verify().problems)


def test_a_changed_log_prob_is_found(no_sealer, store, made):
    def change(row):
        if row.get("call_id") == made[1].call_id and row["kind"] == "call":
            row["choices"][0]["logprobs"][3] = -9.0

    _rewritten(store.paths()[0], change)
    assert f"call {made[1].call_id} was changed" in _problems(store)
    assert "something before batch" in _problems(store)


def test_a_changed_content_is_found(no_sealer, store):
    def change(row):
        for content in row.get("new_contents", ()):
            content["body"] = content["body"].replace(b"observation", b"0bservation")

    _rewritten(store.paths()[0], change)
    assert "content" in _problems(store)


def test_tools_that_are_missing_are_found(no_sealer, tmp_path):
    request = replace(chat_request([{"role": "user", "content": "hello"}]), tools=(Tool("f"),))
    asyncio.run(_written(tmp_path, [record(received=request)], {}))
    store = CaptureStore(tmp_path)

    def change(row):
        if "new_contents" in row:
            row["new_contents"] = [one for one in row["new_contents"] if one["kind"] != "tools"]

    _rewritten(store.paths()[0], change)
    assert "which is not there" in _problems(store)


def test_a_call_taken_out_is_found(no_sealer, store, made):
    _rewritten(store.paths()[0], lambda row: None, skip=1)
    problems = _problems(store)
    assert "something before batch 1" in problems
    assert f"call {made[1].call_id} is in the seal and not in the capture" in problems
    assert f"call {made[2].call_id} cannot be joined" in problems


def test_a_seal_that_leaves_a_call_out_is_found(no_sealer, store, made):
    def change(row):
        if row["kind"] == "seal" and row["rollout_id"] == "r1":
            row["sealed_calls"] = row["sealed_calls"][1:]

    _rewritten(store.paths()[0], change)
    assert f"call {made[0].call_id} is not in the seal" in _problems(store)


def test_the_last_seal_counts_though_the_clock_was_set_back(tmp_path, monkeypatch):
    now = time.time()
    clock = SimpleNamespace(time=lambda: now, monotonic=time.monotonic, perf_counter=time.perf_counter)
    monkeypatch.setattr("nemo_gym.capture.writer.time", clock)
    sealed: list[Seal] = []

    async def run() -> None:
        writer = ShardWriter(str(tmp_path), "policy", "run", "flush")
        for one in conversation(2):
            await writer.commit(one)
            sealed.append(await writer.seal("r1"))
            clock.time = lambda: now - 3600
        writer.close()

    asyncio.run(run())
    store = CaptureStore(tmp_path)
    assert [len(one.call_ids) for one in sealed] == [1, 2]
    assert store.seals("r1") == store.seals() == [("policy", sealed[1])]
    report = store.verify()
    assert (report.problems, report.late, report.unsealed) == ([], {}, [])


def test_other_files_are_named_and_not_fatal(store, made, caplog):
    folder = store.paths()[0].parent
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("a", pa.int32())])):
        pass
    (folder / "other.arrows").write_bytes(sink.getvalue().to_pybytes())
    later = SCHEMA.with_metadata({"nemo_gym.capture": "99"}).serialize().to_pybytes()
    (folder / "later.arrows").write_bytes(later)
    (folder / "empty.arrows").write_bytes(b"")
    problems = _problems(store)
    assert "not a capture shard" in problems
    assert "schema version 99" in problems
    assert list(store.calls()) == made
    assert list(store.calls()) == made
    warned = [one.getMessage() for one in caplog.records]
    assert sorted(one.rpartition("/")[2] for one in warned) == [
        f"later.arrows: schema version 99; this program reads 1 to {VERSION}",
        "other.arrows: not a capture shard",
    ]


def test_unsealed_rollouts_count_as_incomplete(tmp_path):
    asyncio.run(_written(tmp_path, conversation(2), {}))
    report = CaptureStore(tmp_path).verify()
    assert report.ok
    assert report.unsealed == ["r1"]


def test_each_column_is_declared_once_and_says_what_it_is():
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    assert all(column.says for column in COLUMNS)
    assert SCHEMA.names == names


def test_a_tool_call_keeps_the_models_own_string(tmp_path):
    call = ToolCall("f", '{"a" : 1.0,  "b":"\\u00e9"}', "id")
    one = record(reply=ModelReply("i", "m", 1, (Choice(0, (call,), "tool_calls"),)))
    asyncio.run(_written(tmp_path, [one], {}))
    (read,) = CaptureStore(tmp_path).calls()
    assert read.reply.choices[0].parts == (call,)
