"""A sealed shard holds what the stream held, at every moment of its making."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pyarrow as pa
import pytest
from records import conversation, record

from nemo_gym.capture import CaptureStore, Receipt, ShardWriter
from nemo_gym.capture import sealing as sealing_module
from nemo_gym.capture.record import CallRecord
from nemo_gym.capture.sealing import Sealer, is_written, seal


def write(directory: Path, made: list[CallRecord], **options) -> None:
    async def run() -> None:
        writer = ShardWriter(str(directory), "policy", "run", "flush", **options)
        for one in made:
            await writer.commit(one)
            writer.receipt(Receipt(one.call_id, True, 2.0))
        for rollout_id in sorted({one.rollout_id for one in made if one.rollout_id}):
            await writer.seal(rollout_id)
        writer.close()

    asyncio.run(run())


@pytest.fixture
def made() -> list[CallRecord]:
    rollouts = [conversation(6, rollout_id=f"r{number}", words=20, ids=20) for number in range(5)]
    return [*(one for turn in zip(*rollouts, strict=True) for one in turn), record(rollout_id=None)]


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(sealing_module, "_ROWS", 7)


def check(store: CaptureStore, made: list[CallRecord]) -> None:
    assert list(store.calls()) == made
    assert list(store.calls("r3")) == [one for one in made if one.rollout_id == "r3"]
    assert store.table(["call_id"], "r3").num_rows == 6
    assert store.table().num_rows == len(made)
    report = store.verify()
    assert (report.problems, report.torn, report.open, report.unsealed) == ([], [], [], [])
    assert report.calls == len(made)
    assert len(store.receipts()) == len(made)


def test_a_closed_shard_is_packed_and_reads_the_same(tmp_path, made, small_batches):
    write(tmp_path, made)
    assert sorted(path.name.rpartition("-")[2] for path in (tmp_path / "run").iterdir()) == ["0.arrow", "0.index"]
    check(CaptureStore(tmp_path), made)


def test_arrow_itself_reads_a_sealed_shard(tmp_path, made):
    write(tmp_path, made)
    (path,) = CaptureStore(tmp_path).paths()
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.column("call_id").to_pylist()[0] == made[0].call_id


def test_it_is_smaller(tmp_path, made, monkeypatch):
    write(tmp_path / "sealed", made)
    with monkeypatch.context() as patch:
        patch.setattr(Sealer, "put", lambda self, path: None)
        write(tmp_path / "open", made)
    sizes = [sum(one.stat().st_size for one in (tmp_path / name).rglob("*-*")) for name in ("sealed", "open")]
    assert sizes[0] < sizes[1] / 3


def test_only_the_columns_asked_for_are_unpacked(tmp_path, made, small_batches):
    write(tmp_path, made)
    (shard,) = CaptureStore(tmp_path).shards()
    assert shard.batch(0, ("status", "rollout_id")).schema.names == ["rollout_id", "status"]
    batches = [number for number, _ in shard.of_rollout("r3")]
    assert 0 < len(batches) < shard.count
    assert list(shard.of_rollout("nobody")) == []


def test_without_its_sidecar_it_reads_the_same(tmp_path, made, small_batches):
    write(tmp_path, made)
    (sidecar,) = tmp_path.rglob("*.index")
    other = sidecar.read_bytes()
    sidecar.unlink()
    check(CaptureStore(tmp_path), made)
    sidecar.write_bytes(other[: len(other) // 2])
    check(CaptureStore(tmp_path), made)


@pytest.mark.parametrize("step", ["fsync", "replace", "replace again", "sync_directory", "unlink"])
def test_stopped_at_any_step_nothing_is_lost(tmp_path, made, no_sealer, monkeypatch, step):
    write(tmp_path, made)
    (stream,) = CaptureStore(tmp_path).paths()
    calls = []

    def stop(*arguments):
        calls.append(arguments)
        if step == "replace again" and len(calls) == 1:
            return replace(*arguments)
        raise OSError("killed")

    replace = os.replace
    with monkeypatch.context() as patch:
        where = {"unlink": Path, "sync_directory": sealing_module}.get(step, os)
        patch.setattr(where, step.split()[0], stop)
        with pytest.raises(OSError, match="killed"):
            seal(stream)
    check(CaptureStore(tmp_path), made)
    if step != "unlink":
        assert seal(stream) is not None
        check(CaptureStore(tmp_path), made)


def test_a_stream_that_was_changed_is_left_for_verify(tmp_path, made, no_sealer):
    write(tmp_path, made)
    (stream,) = CaptureStore(tmp_path).paths()
    data = bytearray(stream.read_bytes())
    data[data.index(b"answer 0")] ^= 1
    stream.write_bytes(data)
    assert seal(stream) is None
    assert CaptureStore(tmp_path).verify().problems != []


def test_every_byte_of_a_sealed_shard_counts(tmp_path, made):
    write(tmp_path, made[:5])
    (path,) = CaptureStore(tmp_path).paths()
    whole = path.read_bytes()
    unnoticed = []
    for place in range(8, len(whole) - 8, 997):
        data = bytearray(whole)
        data[place] ^= 1
        path.write_bytes(data)
        if CaptureStore(tmp_path).verify().ok and list(CaptureStore(tmp_path).calls()) != made[:5]:
            unnoticed.append(place)
    assert unnoticed == []


def test_a_sealed_shard_that_was_cut_is_read_up_to_the_tear(tmp_path, made, small_batches):
    write(tmp_path, made)
    (path,) = CaptureStore(tmp_path).paths()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    read = list(CaptureStore(tmp_path).calls())
    assert 0 < len(read) < len(made)
    assert read == made[: len(read)]
    report = CaptureStore(tmp_path).verify()
    assert report.torn != []
    assert not report.ok


def test_a_shard_that_is_written_is_not_sealed(tmp_path):
    async def run() -> None:
        writer = ShardWriter(str(tmp_path), "policy", "run", "flush")
        await writer.commit(record())
        (path,) = CaptureStore(tmp_path).paths()
        assert is_written(path)
        assert seal(path) is None
        writer.close()
        assert not is_written(path.with_suffix(".arrow"))

    asyncio.run(run())


def test_an_open_shard_is_read_a_few_batches_at_a_time_and_to_its_end(tmp_path):
    """However long it is; and when it is sealed while it is read, what was found of it is still there."""
    made = [one for number in range(60) for one in conversation(2, rollout_id=f"r{number}", words=200, ids=200)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing_module, "seal", lambda path: None)
        write(tmp_path, made)
    (path,) = CaptureStore(tmp_path).paths()
    before = pa.total_allocated_bytes()
    shard = CaptureStore(tmp_path).shard(path)
    assert shard is not None and shard.count > 100
    assert list(shard.records("r7")) == made[14:16]
    assert pa.total_allocated_bytes() - before < path.stat().st_size / 4
    assert seal(path) is not None and not path.exists()
    assert list(shard.records("r58")) == made[116:118]
    assert list(shard.records()) == made
