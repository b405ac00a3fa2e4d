"""Disks that are full, or that nobody may write to (C7)."""

from __future__ import annotations

import os
import subprocess

import pytest
from records import conversation, record

from nemo_gym.capture import CaptureStore, ShardWriter
from nemo_gym.exchange.errors import ModelError
from tests import disks


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 512 KiB."""
    with disks.small_disk(tmp_path / "small", "512k") as where:
        yield where


@pytest.mark.parametrize("durability", ["fsync", "flush"])
async def test_a_full_disk_refuses_loses_nothing_and_recovers(small_disk, durability):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 200_000)
    writer = ShardWriter(str(small_disk), "policy", "run", durability)
    acknowledged, refused = [], None
    for one in conversation(400, words=200, ids=200):
        try:
            writer.check()
            await writer.commit(one)
        except ModelError as error:
            refused = error
            break
        acknowledged.append(one)
    assert refused is not None and (refused.status, refused.kind) == (503, "capture")
    assert acknowledged
    assert list(CaptureStore(small_disk).calls("r1")) == acknowledged
    with pytest.raises(ModelError):
        writer.check()
    ballast.unlink()
    writer._retry_at = 0
    writer.check()
    late = record()
    await writer.commit(late)
    assert (await writer.seal("r1")).incomplete == "capture_error"
    writer.close()
    store = CaptureStore(small_disk)
    assert list(store.calls("r1")) == [*acknowledged, late]
    assert store.verify().problems == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(ModelError, match="cannot write captures below"):
        ShardWriter(str(tmp_path), "policy", "run", "fsync")


def test_a_read_only_file_system_is_an_error_at_once_and_can_be_read(small_disk):
    import asyncio

    made = conversation(2)

    async def write() -> None:
        writer = ShardWriter(str(small_disk), "policy", "run", "flush")
        for one in made:
            await writer.commit(one)
        writer.close()

    asyncio.run(write())
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(ModelError, match=r"cannot write captures below .*: Read-only file system"):
        ShardWriter(str(small_disk), "policy", "run", "fsync")
    assert list(CaptureStore(small_disk).calls()) == made
    assert CaptureStore(small_disk).verify().ok
