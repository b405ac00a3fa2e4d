"""Repair, removal, upload, and a capture that is followed."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from records import conversation, record
from test_crash import _killed_under_load

from nemo_gym.capture import CaptureStore, ShardWriter
from nemo_gym.capture import writer as writer_module
from nemo_gym.capture.pruning import prune
from nemo_gym.capture.reader import ShardReader
from nemo_gym.capture.upkeep import repair, upload
from nemo_gym.exchange.errors import ModelError


def write(directory, made, **options) -> None:
    async def run() -> None:
        writer = ShardWriter(str(directory), "policy", options.pop("run_id", "run"), "flush", **options)
        for one in made:
            await writer.commit(one)
        writer.close()

    asyncio.run(run())


def test_the_shards_of_a_killed_server_are_repaired(tmp_path):
    store, seed = CaptureStore(tmp_path), random.Random(5)
    acknowledged: dict[str, str] = {}
    unpacked: list[Path] = []
    while not unpacked:  # a kill right after a rotation leaves none with a record in it
        acknowledged |= _killed_under_load(tmp_path, seed, at_least=5)
        unpacked = [path for path in store.paths() if path.suffix == ".arrows" and ShardReader(path).count]
    before = list(store.calls())
    with unpacked[-1].open("ab") as file:
        file.write(b"\xff\xff\xff\xff torn")
    for path in store.paths():
        os.utime(path, (1, 1))  # one without a record is left alone as long as it is fresh
    planned = list(repair(store, dry_run=True))
    assert list(store.calls()) == before
    done = list(repair(store))
    assert {one.did.split()[0] for one in planned} <= {one.did.split()[0] for one in done}
    assert any(one.did.startswith("cut ") and one.path == str(unpacked[-1]) for one in done)
    assert {path.suffix for path in store.paths()} == {".arrow"}
    assert list(store.calls()) == before
    assert set(acknowledged) <= {one.call_id for one in before}
    report = store.verify()
    assert (report.problems, report.open, report.torn) == ([], [], [])
    assert list(repair(store)) == []


def test_nothing_of_a_living_writer_is_touched(tmp_path):
    async def run() -> None:
        writer = ShardWriter(str(tmp_path), "policy", "run", "flush")
        await writer.commit(record())
        store = CaptureStore(tmp_path)
        assert list(repair(store)) == []
        assert list(prune(store, 0)) == []
        await writer.commit(record())
        writer.close()
        assert len(list(store.calls())) == 2

    asyncio.run(run())


def test_what_a_stopped_sealing_left_is_repaired(tmp_path):
    write(tmp_path, conversation(3))
    store = CaptureStore(tmp_path)
    (path,) = store.paths()
    path.with_suffix(".index").unlink()
    path.with_suffix(".arrows").write_bytes(b"")
    junk = path.with_name("policy-9-9.arrow.tmp")
    junk.write_bytes(b"half")
    os.utime(junk, (1, 1))
    assert sorted(one.did.split()[0] for one in repair(store)) == ["its", "removed", "removed:"]
    assert sorted(one.suffix for one in path.parent.iterdir()) == [".arrow", ".index"]


def test_foreign_files_are_left_alone(tmp_path):
    write(tmp_path, conversation(1))
    folder = CaptureStore(tmp_path).paths()[0].parent
    (folder / "notes.arrows").write_bytes(b"mine" * 99)
    os.utime(folder / "notes.arrows", (1, 1))
    (folder / "notes.tmp").write_bytes(b"mine")
    os.utime(folder / "notes.tmp", (1, 1))
    assert list(repair(CaptureStore(tmp_path))) == []
    assert list(prune(CaptureStore(tmp_path), 0)) == []
    assert (folder / "notes.arrows").exists() and (folder / "notes.tmp").exists()


def test_old_runs_are_pruned_and_no_other(tmp_path):
    write(tmp_path, conversation(2), run_id="old")
    write(tmp_path, conversation(2), run_id="new")
    for path in (tmp_path / "old").iterdir():
        os.utime(path, (time.time() - 9000,) * 2)
    store = CaptureStore(tmp_path)
    (would,) = prune(store, 3600, dry_run=True)
    assert (tmp_path / "old").exists()
    assert list(prune(store, 3600)) == [would]
    assert would.shards == 1 and would.bytes > 0
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_sealed_shards_are_uploaded_as_they_come_and_once(tmp_path):
    made = conversation(8)
    there = tmp_path / "remote"
    write(tmp_path / "local", made, upload=str(there), max_shard_bytes=30_000)
    assert len(CaptureStore(there).paths()) > 1
    assert list(CaptureStore(there).calls("r1")) == made
    assert CaptureStore(there).verify().problems == []
    local = CaptureStore(tmp_path / "local")
    assert list(upload(local, there.as_uri())) == []
    gone = CaptureStore(there).paths()[0]
    gone.unlink()
    assert [path.name for path in upload(local, there.as_uri())] == [gone.name]
    with pytest.raises(ModelError, match=r"capture\.upload"):
        write(tmp_path / "local", made, upload="nosuch://folder")


def test_a_tail_gives_each_record_once(tmp_path):
    made = conversation(9)

    async def run() -> None:
        writer = ShardWriter(str(tmp_path), "policy", "run", "flush", max_shard_bytes=60_000)
        await writer.commit(made[0])
        tail = CaptureStore(tmp_path).tail()
        whole = CaptureStore(tmp_path).tail(from_start=True)
        assert list(tail.new()) == []
        seen, all_seen = [], list(whole.new())
        for one in made[1:]:
            await writer.commit(one)
            seen += tail.new()
            if one is made[5]:
                all_seen += whole.new()
        writer.close()
        seen += tail.new()
        all_seen += whole.new()
        assert seen == made[1:]
        assert all_seen == made
        assert list(tail.follow(0.01, for_s=0.02)) == []

    asyncio.run(run())


async def test_a_receipt_is_written_soon_when_no_call_comes(tmp_path, monkeypatch):
    from nemo_gym.capture import Receipt

    monkeypatch.setattr(writer_module, "WAIT_S", 0.05)
    writer = ShardWriter(str(tmp_path), "policy", "run", "fsync")
    one = record()
    await writer.commit(one)
    synced = []
    monkeypatch.setattr(writer._shards.current._file, "sync", lambda: synced.append(1))
    writer.receipt(Receipt(one.call_id, True, 1.0))
    assert CaptureStore(tmp_path).receipts() == {}
    for _ in range(1200):
        await asyncio.sleep(0.05)
        if CaptureStore(tmp_path).receipts():
            break
    assert set(CaptureStore(tmp_path).receipts()) == {one.call_id}
    assert synced == []
    writer.close()
