"""Acknowledged means durable, and never silence."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace
from records import chat_request, conversation, record, reply

from nemo_gym.capture import CaptureStore, Receipt, ShardWriter
from nemo_gym.capture.redact import Redactor
from nemo_gym.capture.shard import File, sync_directory
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.ids import uuid7
from nemo_gym.exchange.reply import Usage


class Disk(File):
    """A file whose disk can be told to fail, and that counts its syncs."""

    syncs = 0
    slow_s = 0.0
    full = False
    fails = 0
    """So many syncs to come."""
    events: ClassVar[list[str]] = []
    answers = threading.Event()

    def write(self, data):
        Disk.answers.wait()
        if Disk.full:
            super().write(memoryview(data)[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(data)

    def sync(self):
        time.sleep(Disk.slow_s)
        if Disk.fails:
            Disk.fails -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync()
        Disk.syncs += 1
        Disk.events.append("synced")


@pytest.fixture(autouse=True)
def disk():
    Disk.syncs, Disk.slow_s, Disk.full, Disk.events = 0, 0.0, False, []
    Disk.fails = 0
    Disk.answers.set()
    yield Disk
    Disk.answers.set()  # else its thread would wait for good


def writer_in(path: Path, durability="fsync", **options) -> ShardWriter:
    return ShardWriter(str(path), "policy", "run", durability, open_file=Disk, **options)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110  # it becomes true on another thread
            await asyncio.sleep(0.01)


async def test_what_comes_during_a_sync_goes_into_the_next(tmp_path, disk):
    writer = writer_in(tmp_path)
    disk.slow_s, disk.syncs = 0.02, 0
    await asyncio.gather(*(writer.commit(record(rollout_id=f"r{n}")) for n in range(64)))
    assert disk.syncs == 1
    first = asyncio.ensure_future(writer.commit(record()))
    await asyncio.sleep(0.005)
    await asyncio.gather(first, *(writer.commit(record()) for _ in range(20)))
    assert disk.syncs == 3
    writer.close()
    assert len(list(CaptureStore(tmp_path).calls())) == 85


async def test_nothing_is_acknowledged_before_it_is_durable(tmp_path, disk):  # C1 A8
    writer = writer_in(tmp_path)
    disk.slow_s = 0.01
    disk.events.clear()

    async def commit(n: int) -> None:
        await writer.commit(record())
        disk.events.append("acknowledged")

    for n in range(5):
        await commit(n)
    assert disk.events == ["synced", "acknowledged"] * 5
    writer.close()


async def test_while_a_slow_disk_syncs_the_next_batch_is_made(tmp_path, disk):
    writer = writer_in(tmp_path)
    disk.slow_s = 0.05
    await writer.commit(record())
    disk.syncs = 0
    await asyncio.gather(*(writer.commit(record(rollout_id=f"r{n}")) for n in range(80)))
    assert disk.syncs == 3  # 32, 32 that waited for the thread, and the rest
    writer.close()
    store = CaptureStore(tmp_path)
    assert store.verify().problems == []
    assert len(list(store.calls())) == 81


async def test_what_waits_behind_a_batch_that_fails_is_written_anew(tmp_path, disk):  # C7
    writer = writer_in(tmp_path)
    disk.slow_s = 0.05
    await writer.commit(first := record())
    disk.fails = 1
    made = [record(rollout_id=f"r{n}") for n in range(80)]
    found = await asyncio.gather(*map(writer.commit, made), return_exceptions=True)
    assert [type(one) for one in found] == [ModelError] * 32 + [type(None)] * 48
    assert (await writer.seal("r40")).call_ids == (made[40].call_id,)
    assert (await writer.seal("r4")).incomplete == "capture_error"
    writer.close()
    store = CaptureStore(tmp_path)
    assert list(store.calls()) == [first, *made[32:]]
    assert [one for one in store.verify().problems if "unsealed" not in one] == []


@pytest.mark.parametrize("durability", ["flush", "none"])
async def test_without_fsync_nothing_is_synced(tmp_path, disk, durability):
    writer = writer_in(tmp_path, durability)
    for _ in range(3):
        await writer.commit(record())
    if durability == "flush":  # in the file, if the process dies now
        assert len(list(CaptureStore(tmp_path).calls())) == 3
    writer.close()
    assert disk.syncs == 0
    assert len(list(CaptureStore(tmp_path).calls())) == 3


async def test_a_cancelled_caller_does_not_undo_its_record(tmp_path, disk):
    writer = writer_in(tmp_path)
    disk.slow_s = 0.02
    task = asyncio.ensure_future(writer.commit(record()))
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await writer.commit(record())
    writer.close()
    assert len(list(CaptureStore(tmp_path).calls())) == 2


async def test_a_full_disk_refuses_and_recovers(tmp_path, disk):  # C7
    writer = writer_in(tmp_path)
    first, second, third, fourth = conversation(4)
    await writer.commit(first)
    disk.full = True
    with pytest.raises(ModelError) as raised:
        await writer.commit(second)
    assert (raised.value.status, raised.value.kind) == (503, "capture")
    assert raised.value.retry_after is not None
    with pytest.raises(ModelError):
        writer.check()
    writer._retry_at = 0
    with pytest.raises(ModelError):  # still full
        writer.check()
    disk.full = False
    with pytest.raises(ModelError):  # asked again only after a while
        writer.check()
    writer._retry_at = 0
    writer.check()
    await writer.commit(third)
    await writer.commit(fourth)
    sealed = await writer.seal("r1")
    assert sealed.call_ids == (first.call_id, third.call_id, fourth.call_id)
    assert sealed.incomplete == "capture_error"
    writer.close()
    store = CaptureStore(tmp_path)
    assert list(store.calls("r1")) == [first, third, fourth]
    report = store.verify()
    assert report.problems == []
    assert report.incomplete == {"r1": "capture_error"}


async def test_with_none_calls_go_on_and_the_rollout_is_incomplete(tmp_path, disk):  # C7
    writer = writer_in(tmp_path, "none")
    disk.full = True
    await writer.commit(record())
    await asyncio.sleep(0.2)
    assert writer._failure is not None
    writer.check()
    disk.full = False
    await writer.commit(record())
    assert (await writer.seal("r1")).incomplete == "capture_error"
    writer.close()
    assert len(list(CaptureStore(tmp_path).calls())) == 1


def test_a_directory_that_cannot_be_made_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot write captures below") as raised:
        writer_in(tmp_path / "file")
    assert raised.value.kind == "capture"


async def test_a_dead_thread_is_no_silence(tmp_path):  # C7
    writer = writer_in(tmp_path)
    writer._jobs.put(None)
    writer._thread.join()
    with pytest.raises(ModelError):
        writer.check()
    with pytest.raises(ModelError):
        await writer.commit(record())
    writer.close()


async def test_a_disk_that_hangs_stops_the_calls_and_not_the_loop(tmp_path, disk, monkeypatch):  # C7
    monkeypatch.setattr("nemo_gym.capture.writer._WAIT_S", 0.1)
    writer = writer_in(tmp_path)
    disk.answers.clear()
    lost, late, next_one = conversation(3)
    calls = [asyncio.ensure_future(writer.commit(one)) for one in (lost, record(rollout_id="r2"))]
    for found in await asyncio.gather(*calls, return_exceptions=True):  # it is this loop that tells them
        assert (type(found), found.status, found.kind) == (ModelError, 503, "capture")
    for refused in (writer.commit(late), writer.seal("r1")):  # nobody waits for a disk that is known to hang
        with pytest.raises(ModelError):
            await refused
    with pytest.raises(ModelError):
        writer.check()
    monkeypatch.undo()
    writer._flying._wait_s = 60.0
    disk.answers.set()
    await until(lambda: not writer._flying)
    writer.check()
    await writer.commit(next_one)
    sealed = await writer.seal("r1")
    assert (sealed.call_ids[-1], sealed.incomplete) == (next_one.call_id, "capture_error")
    writer.close()
    assert CaptureStore(tmp_path).verify().problems == []


async def test_the_loop_syncs_no_shard_that_follows_another(tmp_path, monkeypatch):
    synced: list[tuple[str, str]] = []

    class Watched(File):
        def sync(self) -> None:
            super().sync()
            synced.append((threading.current_thread().name, "file"))

    def directory(path: Path) -> None:
        sync_directory(path)
        synced.append((threading.current_thread().name, "directory"))

    monkeypatch.setattr("nemo_gym.capture.shard.sync_directory", directory)
    writer = ShardWriter(str(tmp_path), "policy", "run", "fsync", max_shard_age_s=0.0, open_file=Watched)
    assert synced == [("MainThread", "file"), ("MainThread", "directory")]  # before there is anything to serve
    made = conversation(3)
    for one in made:
        await writer.commit(one)
    others = synced[2:]
    assert {name for name, _ in others} == {"capture-writer"}
    assert [what for _, what in others].count("directory") == 2
    writer.close()
    assert list(CaptureStore(tmp_path).calls()) == made
    assert CaptureStore(tmp_path).verify().problems == []


async def test_with_none_calls_go_on_beside_a_disk_that_hangs(tmp_path, disk, monkeypatch):  # C7
    monkeypatch.setattr("nemo_gym.capture.writer._WAIT_S", 0.1)
    writer = writer_in(tmp_path, "none")
    disk.answers.clear()
    made = conversation(4)
    await writer.commit(made[0])
    await until(lambda: writer._flying.hung)
    for one in made[1:]:
        await writer.commit(one)
    writer.check()
    monkeypatch.undo()
    writer._flying._wait_s = 60.0
    disk.answers.set()
    await until(lambda: not writer._flying.hung)
    sealed = await writer.seal("r1")
    assert (sealed.call_ids[-3:], sealed.incomplete) == (tuple(one.call_id for one in made[1:]), "capture_error")
    writer.close()
    assert CaptureStore(tmp_path).verify().problems == []


async def test_a_record_that_cannot_be_a_row_fails_alone(tmp_path):
    writer = writer_in(tmp_path)
    good = conversation(3)
    bad = record(reply=replace(reply("x", [1], [2]), usage=Usage(prompt=2**40)))
    broken = record(attempt="three")
    found = await asyncio.gather(
        *(writer.commit(one) for one in (good[0], bad, good[1], broken, good[2])), return_exceptions=True
    )
    assert [type(one) for one in found] == [type(None), ModelError, type(None), ModelError, type(None)]
    writer.close()
    store = CaptureStore(tmp_path)
    assert list(store.calls()) == good
    assert store.verify().problems == []


async def test_seals_receipts_and_calls(tmp_path):  # C9
    writer = writer_in(tmp_path)
    made = conversation(3)
    for one in made:
        await writer.commit(one)
        writer.receipt(Receipt(one.call_id, True, 1.5))
    assert writer.calls("r1") == made
    assert writer.calls("unknown") == []
    sealed = await writer.seal("r1")
    assert sealed.call_ids == tuple(one.call_id for one in made)
    assert writer.calls("r1") is None  # only the disk has it now
    empty = await writer.seal("r2", "cancelled")
    assert (empty.call_ids, empty.incomplete) == ((), "cancelled")
    late = record(status="disconnected")
    await writer.commit(late)
    report = CaptureStore(tmp_path).verify()
    assert (report.problems, report.late, report.unsealed) == ([], {"r1": [late.call_id]}, ["r1"])
    again = await writer.seal("r1", "deadline")
    assert again.call_ids == (*sealed.call_ids, late.call_id)
    writer.close()
    store = CaptureStore(tmp_path)
    report = store.verify()
    assert (report.problems, report.late, report.unsealed) == ([], {}, [])
    assert set(store.rollouts()) == {"r1", "r2"}
    assert store.receipts()[made[0].call_id] == Receipt(made[0].call_id, True, 1.5)
    delivered = store.table(["call_id", "delivered"]).to_pylist()
    assert [row["delivered"] for row in delivered] == [True, True, True, None]
    with pytest.raises(ModelError):
        await writer.commit(record())


async def test_memory_is_bounded(tmp_path):
    writer = writer_in(tmp_path, "flush", max_records=4, max_rollouts=8)
    made = [record(rollout_id=f"r{n}") for n in range(20)]
    for one in made:
        await writer.commit(one)
    assert writer._rollouts._records <= 4
    assert writer.calls("r19") == [made[19]]
    assert writer.calls("r13") is writer.calls("r0") is None  # only the disk has it
    writer.close()


async def test_rotation_by_age_and_two_writers_in_one_directory(tmp_path):
    one, other = writer_in(tmp_path, max_shard_age_s=0.0), writer_in(tmp_path)
    for _ in range(3):
        await one.commit(record(rollout_id="a"))
        await other.commit(record(rollout_id="b"))
    one.close()
    other.close()
    store = CaptureStore(tmp_path)
    assert len(store.paths()) == 4
    assert [len(list(store.calls(name))) for name in ("a", "b")] == [3, 3]
    report = store.verify()
    assert (report.problems, report.open, report.unsealed) == ([], [], ["a", "b"])


def test_an_idle_writer_leaves_no_file(tmp_path):
    before = set(threading.enumerate())
    writer = writer_in(tmp_path)
    writer.close()
    writer.close()
    assert CaptureStore(tmp_path).paths() == []
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("name", ["", "a/b", "../x"])
def test_names_that_are_no_file_names(tmp_path, name):
    with pytest.raises(ValueError, match="capture: run_id"):
        ShardWriter(str(tmp_path), "policy", name, "fsync")


async def test_no_secret_is_recorded(tmp_path):  # C8
    redactor = Redactor(names=["team_token"], values=["sk-very-secret"])
    writer = writer_in(tmp_path, redactor=redactor)
    body = {"api_key": "topsecret1", "extra": {"Team_Token": "topsecret2", "note": "see sk-very-secret"}}
    request = chat_request([{"role": "user", "content": "my api_key is mine"}], **body)
    await writer.commit(
        record(
            call_id=uuid7(),
            received=request,
            sent=request,
            raw=b'{"authorization": "Bearer topsecret3", "x": 1',
        )
    )
    shown = writer.calls("r1")
    writer.close()
    data = b"".join(path.read_bytes() for path in CaptureStore(tmp_path).paths())
    for secret in (b"topsecret", b"sk-very-secret"):
        assert secret not in data
        assert secret not in repr(shown[0].received.origin.body).encode()
    (read,) = CaptureStore(tmp_path).calls()
    assert read.received.messages == request.messages
    assert read.received.origin.body["extra"] == {"Team_Token": "[redacted]", "note": "see [redacted]"}
    assert read.raw == b'{"authorization": "[redacted]", "x": 1'


async def test_what_is_held_for_readers_is_bounded_in_bytes(tmp_path):
    writer = writer_in(tmp_path, "flush")
    writer._rollouts._max_bytes = 3_000_000
    for number in range(12):
        large = chat_request([{"role": "user", "content": f"{number} " + "x" * 500_000}])
        await writer.commit(record(rollout_id=f"r{number}", received=large, sent=large))
    assert writer._rollouts._bytes <= 3_000_000
    assert writer.calls("r0") is None
    assert len(writer.calls("r11")) == 1
    assert writer._rollouts._bytes == sum(one.size for one in writer._rollouts._rollouts.values())
    writer.close()


async def test_a_writer_with_the_number_of_an_earlier_process_hides_nothing(tmp_path):  # as in a restarted container
    made = conversation(2)
    for one in made:
        writer = writer_in(tmp_path)
        await writer.commit(one)
        writer.close()
        assert len(CaptureStore(tmp_path).paths()) == made.index(one) + 1
    last = writer_in(tmp_path)
    await last.commit(late := record())
    assert list(CaptureStore(tmp_path).calls()) == [*made, late]  # also while the last shard is open
    last.close()


async def test_sealed_rollouts_are_forgotten_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_gym.capture.rollouts._SEALED", 3)
    writer = writer_in(tmp_path, "flush")
    for number in range(6):
        await writer.commit(record(rollout_id=f"r{number}"))
        await writer.seal(f"r{number}")
    assert list(writer._rollouts._rollouts) == ["r3", "r4", "r5"]
    assert writer.calls("r0") is None  # the disk has it
    await writer.commit(late := record(rollout_id="r5"))
    assert (await writer.seal("r5")).call_ids[-1] == late.call_id
    assert len(writer._rollouts._rollouts["r5"].calls) == 2
    writer.close()
    assert CaptureStore(tmp_path).verify().problems == []
