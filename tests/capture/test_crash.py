"""Killed at any moment, or the power cut: nothing acknowledged is lost (C6)."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from load import fingerprint
from records import conversation

from nemo_gym.capture import CallRecord, CaptureStore, ShardWriter
from nemo_gym.capture.shard import File
from nemo_gym.exchange.errors import ModelError


def tiers(few: int, many: int, long: int) -> pytest.MarkDecorator:
    """How often: for a newcomer's run, for continuous integration, at night."""
    marked = [pytest.param(many, marks=pytest.mark.ci), pytest.param(long, marks=pytest.mark.nightly)]
    return pytest.mark.parametrize("times", [few, *marked])


_ROOT = Path(__file__).parents[2]


def _killed_under_load(directory: Path, seed: random.Random, name: str = "policy", at_least: int = 0) -> dict[str, str]:
    """Call id -> fingerprint of all that was acknowledged before the kill, which waits for the first `at_least`."""
    script = [sys.executable, str(Path(__file__).parent / "load.py"), str(directory), name]
    with subprocess.Popen(script, stdout=subprocess.PIPE, cwd=_ROOT, env={**os.environ, "PYTHONPATH": "."}) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"ready\n"
            said = b"".join(child.stdout.readline() for _ in range(at_least))
            time.sleep(seed.uniform(0.02, 0.4))
        finally:
            child.send_signal(signal.SIGKILL)
        said += child.stdout.read()
    lines = [line.split() for line in said.decode().splitlines(keepends=True) if line.endswith("\n")]
    return dict(lines)


@tiers(2, 200, 1000)
def test_a_process_killed_under_load_loses_nothing_acknowledged(tmp_path, times):
    seed = random.Random(7)
    acknowledged: dict[str, str] = {}
    for number in range(times):
        acknowledged |= _killed_under_load(tmp_path, seed, at_least=number % 2 * 5)
    assert len(acknowledged) > times
    store = CaptureStore(tmp_path)
    read = {record.call_id: fingerprint(record) for record in store.calls()}
    assert {call_id: read.get(call_id) for call_id in acknowledged} == acknowledged
    report = store.verify()
    assert report.problems == []
    assert report.calls == len(read)
    torn = {str(path) for path in store.paths()} - {one.path for one in report.torn}
    assert torn >= set(map(str, store.paths())) - set(report.open)  # only what was not closed may be torn


class PowerCut(File):
    """A disk that keeps what was synced, and of the rest some bytes, some zeros or nothing."""

    syncing = True
    gone = False
    files: list[PowerCut] = []  # noqa: RUF012

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path, self.written, self.kept = path, 0, 0
        PowerCut.files.append(self)

    def write(self, data):
        if PowerCut.gone:
            raise OSError(errno.EIO, "no power")
        super().write(data)
        self.written += memoryview(data).nbytes

    def sync(self):
        if PowerCut.syncing:
            self.kept = self.written

    def cut(self, size):
        if not PowerCut.gone:
            super().cut(size)

    def cut_power(self, seed: random.Random) -> None:
        """What is in the file after the power came back."""
        if not self.path.exists():
            return
        keep = seed.randint(self.kept, self.written)
        os.truncate(self.path, keep)
        if seed.random() < 0.5:  # the length arrived, the bytes did not
            os.truncate(self.path, seed.randint(keep, self.written))


async def _load_until_the_cut(directory: Path, seed: random.Random) -> list[CallRecord]:
    writer = ShardWriter(str(directory), "policy", "run", "fsync", open_file=PowerCut, max_shard_bytes=60_000)
    acknowledged: list[CallRecord] = []
    left = seed.randint(1, 40)
    cut = asyncio.Event()

    async def rollout(number: int) -> None:
        nonlocal left
        for record in conversation(12, rollout_id=f"r{number}", words=20, ids=20):
            try:
                await writer.commit(record)
            except ModelError:
                assert cut.is_set()
            if cut.is_set():
                return
            acknowledged.append(record)
            left -= 1
            if left <= 0:
                cut.set()
                PowerCut.gone = True
                for file in PowerCut.files:
                    file.cut_power(seed)

    await asyncio.gather(*(rollout(number) for number in range(6)))
    writer.close()
    return acknowledged


def _lost_to_cuts(tmp_path: Path, seed: random.Random, cuts: int) -> int:
    lost = 0
    for number in range(cuts):
        PowerCut.files.clear()
        PowerCut.gone = False
        directory = tmp_path / str(number)
        acknowledged = asyncio.run(_load_until_the_cut(directory, seed))
        store = CaptureStore(directory)
        read = {record.call_id: record for record in store.calls()}
        assert store.verify().problems == []
        lost += sum(read.get(record.call_id) != record for record in acknowledged)
    return lost


@tiers(10, 200, 2000)
def test_power_cuts_lose_nothing_acknowledged(tmp_path, times, no_sealer):
    PowerCut.syncing = True
    assert _lost_to_cuts(tmp_path, random.Random(3), times) == 0


def test_without_the_sync_they_would(tmp_path, no_sealer):
    PowerCut.syncing = False
    assert _lost_to_cuts(tmp_path, random.Random(3), 5) > 0


def test_two_servers_on_one_directory_one_killed(tmp_path):
    seed = random.Random(11)
    first = _killed_under_load(tmp_path, seed, "one")
    made = conversation(5, rollout_id="mine")

    async def write() -> None:
        writer = ShardWriter(str(tmp_path), "policy", "run", "fsync")
        for record in made:
            await writer.commit(record)
        writer.close()

    asyncio.run(write())
    store = CaptureStore(tmp_path)
    assert list(store.calls("mine")) == made
    assert set(first) <= {record.call_id for record in store.calls()}


@pytest.mark.parametrize(
    "tail", [b"\0" * 64, b"garbage" * 9, b"\xff\xff\xff\xff\x40\x00", b"\xff\xff\xff\xff" + b"\x7f" * 99]
)
def test_any_tail_is_read_up_to_the_tear(tmp_path, tail):
    made = conversation(4)

    async def write() -> None:
        writer = ShardWriter(str(tmp_path), "policy", "run", "flush")
        for record in made:
            await writer.commit(record)
        (path,) = CaptureStore(tmp_path).paths()
        with path.open("ab") as file:
            file.write(tail)
        store = CaptureStore(tmp_path)
        assert list(store.calls()) == made
        report = store.verify()
        assert (report.ok, report.open, [one.bytes for one in report.torn]) == (True, [str(path)], [len(tail)])
        writer.close()

    asyncio.run(write())


def test_every_cut_of_a_file_is_readable(tmp_path, no_sealer):
    made = conversation(3, words=10, ids=10)

    async def write() -> list[int]:
        writer = ShardWriter(str(tmp_path), "policy", "run", "flush")
        sizes = []
        for record in made:
            await writer.commit(record)
            sizes.append(CaptureStore(tmp_path).paths()[0].stat().st_size)
        writer.close()
        return sizes

    sizes = asyncio.run(write())
    (path,) = CaptureStore(tmp_path).paths()
    whole = path.read_bytes()
    for cut in [*range(0, len(whole), 1999), *sizes, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        store = CaptureStore(tmp_path)
        assert list(store.calls()) == made[: sum(cut >= size for size in sizes)]
        assert store.verify().problems == []
