"""A capture changed behind its writer's back: `verify` names it, readers give what is whole, nothing crashes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from records import conversation, record

from nemo_gym.capture import CallRecord, CaptureStore, Receipt, ShardWriter
from nemo_gym.capture.upkeep import repair


def write(directory: Path, made: list[CallRecord], run_id: str = "run", **options) -> Path:
    async def run() -> None:
        writer = ShardWriter(str(directory), "policy", run_id, "flush", **options)
        for one in made:
            await writer.commit(replace(one, run_id=run_id))
            writer.receipt(Receipt(one.call_id, True, 1.0))
        for rollout_id in {one.rollout_id for one in made}:
            await writer.seal(rollout_id)
        writer.close()

    asyncio.run(run())
    (path,) = (one for one in CaptureStore(directory / run_id).paths())
    return path


@pytest.fixture(scope="module")
def made() -> list[CallRecord]:
    return [*conversation(6), *conversation(2, rollout_id="r2")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, made) -> Path:
    """A capture of one sealed shard."""
    return write(tmp_path_factory.mktemp("captures"), made).parents[1]


@pytest.fixture
def shard(tmp_path, whole) -> Path:
    shutil.copytree(whole, tmp_path / "captures")
    (path,) = CaptureStore(tmp_path / "captures").paths()
    return path


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << (at % 8)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def twice(path: Path) -> None:
    shutil.copy(path, path.with_name("policy-7-0.arrow"))


def stranger(path: Path) -> None:
    path.with_name("notes.arrows").write_bytes(b"mine" * 99)


def of_another_run(path: Path) -> None:
    other = write(path.parents[2], conversation(1, rollout_id="r9"), run_id="other")
    other.rename(path.with_name("policy-7-0.arrow"))


def other_index(path: Path) -> None:
    flipped(path.with_suffix(".index"), path.with_suffix(".index").stat().st_size // 2)


DAMAGES: dict[str, tuple[Callable[[Path], object], str, int]] = {
    "cut": (cut, "/policy-{pid}-0.arrow: the end of a sealed shard is missing, or was changed", 8),
    "empty": (empty, "/policy-{pid}-0.arrow: the end of a sealed shard is missing, or was changed", 0),
    "footer": (lambda path: flipped(path, path.stat().st_size - 40), "is missing, or was changed", 8),
    "gone": (Path.unlink, "/policy-{pid}-0.arrow: the shard is gone, its index is there", 0),
    "twice": (twice, " is recorded twice", 16),
    "stranger": (stranger, "/notes.arrows: not a capture shard", 8),
    "another run's": (of_another_run, "/policy-7-0.arrow: of run other, among the shards of run run", 9),
    "index": (other_index, "/policy-{pid}-0.index: not the index of its shard; `repair` makes it anew", 8),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_was_done_is_named_and_what_is_whole_is_read(shard, name):
    damage, says, left = DAMAGES[name]
    pid = shard.stem.split("-")[1]
    damage(shard)
    store = CaptureStore(shard.parent)
    problems = store.verify().problems
    assert any(says.format(pid=pid) in one for one in problems), problems
    assert len(list(store.calls())) == left
    list(repair(store))  # mends what can be, and stumbles over nothing
    assert (store.verify().problems == []) == (name == "index")


def test_a_byte_that_is_changed_is_named_or_changes_nothing(shard, made):
    seed = random.Random(4)
    before, index = shard.read_bytes(), shard.with_suffix(".index").read_bytes()
    store = CaptureStore(shard.parent)
    for _ in range(100):
        path, data = (shard, before) if seed.random() < 0.8 else (shard.with_suffix(".index"), index)
        flipped(path, at := seed.randrange(len(data)))
        if store.verify().ok:
            assert list(store.calls()) == made, at
            assert list(store.calls("r2")) == made[6:], at
            assert len(store.receipts()) == len(made), at
        else:
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):  # and it does not end the process
                list(store.calls())
        path.write_bytes(data)


def test_a_stream_that_was_changed_in_its_middle_ends_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_gym.capture.sealing.Sealer.put", lambda self, path: None)
    shard = write(tmp_path, conversation(3))
    before, seed = shard.read_bytes(), random.Random(5)
    store = CaptureStore(tmp_path)
    assert store.verify().problems == []
    for _ in range(60):
        flipped(shard, seed.randrange(len(before)))
        report = store.verify()
        try:
            found = list(store.calls())
        except (OSError, ValueError, KeyError, IndexError):
            assert report.problems
        else:
            assert report.problems or report.open or len(found) == 3
        shard.write_bytes(before)


def test_one_damaged_shard_keeps_no_other_from_its_repair(tmp_path, monkeypatch):
    first = write(tmp_path, conversation(1), run_id="a")
    second = write(tmp_path, [record(rollout_id="r2")], run_id="b")
    flipped(first, first.stat().st_size - 40)
    second.with_suffix(".index").unlink()
    assert [(one.path, one.did) for one in repair(CaptureStore(tmp_path))] == [(str(second), "its index was made anew")]
