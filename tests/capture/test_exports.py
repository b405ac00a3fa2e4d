"""What others read: the Parquet export in four libraries, the closed lists, and the size of a rollout."""

from __future__ import annotations

import asyncio
import json
from array import array
from math import log
from pathlib import Path
from typing import Any, get_args

import pytest
from records import chat_request, conversation, record, reply

from nemo_gym.capture import CaptureStore, ShardWriter
from nemo_gym.capture.record import INCOMPLETE, Relation, Status
from nemo_gym.capture.schema import COLUMNS
from nemo_gym.cli.captures import main
from nemo_gym.exchange.errors import ErrorKind


def write(directory: Path, made: list[Any]) -> None:
    async def run() -> None:
        writer = ShardWriter(str(directory), "policy", "run", "none")
        for one in made:
            await writer.commit(one)
        writer.close()

    asyncio.run(run())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    calls = [*conversation(3), record(rollout_id=None, status="failed")]
    write(folder, calls)
    target = folder / "calls.parquet"
    assert main(["export", str(folder), "--output", str(target)]) == 0
    return target


def is_whole(rows: list[dict[str, Any]]) -> None:
    """Self-contained, in every reader's own values."""
    made = conversation(3)
    assert [row["status"] for row in rows] == ["answered"] * 3 + ["failed"]
    assert [row["completion_tokens"] for row in rows] == [50, 50, 50, None]
    for row, call in zip(rows, made, strict=False):
        assert list(row["prompt_ids"]) == call.reply.prompt_ids.tolist()
        (choice,) = row["choices"]
        assert list(choice["token_ids"]) == call.reply.choices[0].tokens.ids.tolist()
        assert list(choice["logprobs"]) == [-0.25] * 50
        assert json.loads(choice["parts"])[0]["text"] == call.reply.choices[0].parts[0].text
        assert json.loads(row["request_body"])["messages"] == call.received.origin.body["messages"]
        assert len(row["request_contents"]) == len(call.received.messages)
    assert rows[3]["choices"] is None and rows[3]["rollout_id"] is None


@pytest.mark.ci
def test_pyarrow_reads_the_export(exported: Path) -> None:
    import pyarrow.parquet as pq

    is_whole(pq.read_table(exported).to_pylist())


@pytest.mark.ci
def test_polars_reads_the_export(exported: Path) -> None:
    import polars as pl

    is_whole(pl.read_parquet(exported).to_dicts())
    assert pl.scan_parquet(exported).filter(pl.col("status") == "answered").select("call_id").collect().height == 3


@pytest.mark.ci
def test_duckdb_reads_the_export(exported: Path) -> None:
    import duckdb

    asked = duckdb.sql(f"select * from '{exported}'")
    is_whole([dict(zip(asked.columns, row, strict=True)) for row in asked.fetchall()])
    counted = duckdb.sql(f"select relation, count(*), sum(completion_tokens) from '{exported}' group by relation")
    assert sorted(counted.fetchall()) == [("first", 2, 50), ("turn", 2, 100)]


@pytest.mark.ci
def test_datasets_reads_the_export(exported: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    found = load_dataset("parquet", data_files=str(exported), split="train", cache_dir=str(tmp_path))
    is_whole(found.to_list())


def test_the_closed_lists_are_those_that_are_told() -> None:  # C2
    said = {column.name: column.says for column in COLUMNS}
    relations = ("first", "turn", "retry", "repeat", "subagent", "compaction", "side")
    statuses = ("answered", "failed", "rejected", "disconnected")
    assert (get_args(Relation), get_args(Status)) == (relations, statuses)
    for name, values in (("relation", relations), ("status", statuses)):
        assert said[name] == ", ".join(values[:-1]) + f" or {values[-1]}"
    assert INCOMPLETE == ("deadline", "agent_error", "backend_error", "capture_error", "cancelled", "unsealed")
    kinds = "invalid auth not_found too_large rate_limit overloaded backend timeout unreachable disconnected capture"
    assert get_args(ErrorKind) == (*kinds.split(), "internal")
    told = """schema_version call_id run_id rollout_id attempt session_id parent_call_id relation server replica dialect
    backend_dialect streamed trainable model_asked model_sent model_reported policy_version attempts status error_kind
    error_message sampling logprobs_mode request_contents request_fields sent_fields usage_raw prompt_prefix_len
    new_prompt_ids prompt_logprobs choices new_contents raw"""
    assert set(told.split()) <= set(said)


def rollout(turns: int, new: int) -> tuple[list[Any], int]:
    """Its calls with `new` tokens a turn, and how many bytes of ids, log-probs and texts are new in all of them."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent."}]
    made: list[Any] = []
    prompt, size = array("i"), len(messages[0]["content"])
    for turn in range(turns):
        half = new // 2
        seen = array("i", (turn * 7919 + place * 31 for place in range(half)))
        said = array("i", (turn * 104729 + place * 17 for place in range(new - half)))
        texts = [f"{kind} {turn}: " + " ".join(f"{turn}.{place}" for place in range(half)) for kind in ("seen", "said")]
        messages = [*messages, {"role": "user", "content": texts[0]}]
        prompt = prompt + seen
        parent = {"parent_call_id": made[-1].call_id, "relation": "turn"} if made else {}
        request = chat_request(messages)
        made.append(record(received=request, sent=request, reply=reply(texts[1], prompt, said), **parent))
        messages = [*messages, {"role": "assistant", "content": texts[1]}]
        prompt = prompt + said
        size += sum(map(len, texts)) + 4 * (len(seen) + len(said)) + 4 * len(said)
    return made, size


@pytest.mark.ci
def test_size_grows_with_what_is_new(tmp_path: Path) -> None:  # C5
    """20, 60 and 200 turns of 500 new tokens: fitted exponent at most 1.1, below three times what is new."""
    sizes: dict[int, int] = {}
    for turns in (20, 60, 200):
        made, new = rollout(turns, 500)
        write(tmp_path / str(turns), made)
        store = CaptureStore(tmp_path / str(turns))
        sizes[turns] = sum(path.stat().st_size for path in store.paths())
        assert sizes[turns] < 3 * new
        *_, last = store.calls("r1")
        assert last == made[-1]
    exponent = log(sizes[200] / sizes[20]) / log(10)
    assert exponent <= 1.1
