"""A rollout's calls at one server: from memory, from the disk, after a restart, beside other workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from records import conversation, record

from nemo_gym.capture import CallRecord, CaptureStore, ShardWriter, from_json, to_json
from nemo_gym.capture.served import ServedCalls


def writer_in(directory: Path, name: str = "policy", **settings) -> ShardWriter:
    return ShardWriter(str(directory), name, "run", settings.pop("durability", "fsync"), **settings)


def another_process_writes(directory: Path, records: list[CallRecord]) -> None:
    """A server of the same name that was killed."""
    import msgspec

    code = (
        "import asyncio, os, sys, msgspec\n"
        "from nemo_gym.capture import ShardWriter, from_json\n"
        "async def main():\n"
        "    writer = ShardWriter(sys.argv[1], 'policy', 'run', 'fsync')\n"
        "    for data in msgspec.json.decode(sys.stdin.buffer.read()):\n"
        "        await writer.commit(from_json(data))\n"
        "    os._exit(9)\n"
        "asyncio.run(main())\n"
    )
    data = msgspec.json.encode([to_json(one) for one in records])
    assert subprocess.run([sys.executable, "-c", code, str(directory)], input=data, check=False).returncode == 9


async def test_from_memory_and_from_the_disk(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, durability="none", max_records=4)
    served = ServedCalls(writer)
    made = conversation(3)
    for one in made:
        await writer.commit(one)
    assert await served.records("r1") == made
    for number in range(6):
        await writer.commit(record(rollout_id=f"other{number}"))
        assert len(await served.records(f"other{number}")) == 1
    assert writer.calls("r1") is None
    assert await served.records("r1") == made
    assert await served.records("unknown") == []
    table = pa.ipc.open_stream(await served.arrow("r1")).read_all()
    assert table.column("call_id").to_pylist() == [one.call_id for one in made]
    assert table == CaptureStore(tmp_path).table(rollout_id="r1")
    assert pa.ipc.open_stream(await served.arrow("unknown")).read_all().num_rows == 0
    writer.close()


async def test_what_was_recorded_before_a_restart_is_there(tmp_path: Path) -> None:  # C6
    made = conversation(6)
    another_process_writes(tmp_path, made[:3])
    writer = writer_in(tmp_path)
    served = ServedCalls(writer)
    for one in made[3:]:
        await writer.commit(one)
    assert await served.records("r1") == made
    assert pa.ipc.open_stream(await served.arrow("r1")).read_all().num_rows == 6
    writer.close()


async def test_other_servers_of_the_run_are_not_asked(tmp_path: Path) -> None:
    """A worker beside this one (a living writer) and a server of another name have their own rollouts."""
    other = writer_in(tmp_path, "policy-2")
    await other.commit(record(rollout_id="r1"))
    other.close()
    mine = writer_in(tmp_path)
    served = ServedCalls(mine)
    await mine.commit(first := record(rollout_id="r1"))
    assert await served.records("r1") == [first]
    assert from_json(to_json(first)) == first
    mine.close()
