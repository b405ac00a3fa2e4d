"""What streams and calls take of a server's memory, on a small scale; `benchmarks/memory.py` has the large one."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks import memory


@pytest.mark.ci
@pytest.mark.parametrize("size", [2_000, 200_000])
async def test_slow_streams(size: int) -> None:
    """Less than 64 KiB and twice the body each, and a margin for what a process takes once; none is cut."""
    with memory.served() as (port, pid):
        found = await memory.streams(port, pid, 250, size)
    assert found.whole == found.count
    assert found.peak - found.before < found.count * found.allowed + (64 << 20)


@pytest.mark.ci
async def test_small_calls_leave_nothing_behind() -> None:
    with memory.served() as (port, pid):
        early, late = await memory.calls(port, pid, 16_000, [6_000, 16_000])
    # Half a kilobyte a call would be 5 MB; an allocator's whims are below that.
    assert late - early < 5 << 20


async def settled(pid: int, seconds: int = 30) -> int:
    """The least within a while: a shard that is being sealed takes its share meanwhile."""
    least = memory.resident(pid)
    for _ in range(seconds):
        await asyncio.sleep(1)
        least = min(least, memory.resident(pid))
    return least


@pytest.mark.nightly
async def test_a_long_run_of_small_calls() -> None:
    with memory.served() as (port, pid):
        (early,) = await memory.calls(port, pid, 200_000, [10_000])
        late = await settled(pid)
    assert late - early < 16 << 20


@pytest.mark.ci
async def test_shards_that_are_sealed_leave_nothing_behind() -> None:
    with memory.served(max_shard_bytes=4 << 20) as (port, pid):
        (early,) = await memory.calls(port, pid, 16_000, [1_500])
        late = await settled(pid)
    # Some nine shards: one alone took forty megabytes that were never given back.
    assert late - early < 24 << 20
