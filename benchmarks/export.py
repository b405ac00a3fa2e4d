"""What an export costs: tokens a second on one core and memory, for runs of growing size.

    python -m benchmarks.export [--rollouts 500,2000] [--turns 20] [--tokens 500] [--formats token_rows] [--dir DIR]

Rollouts of 20 turns, each with as many tokens as are asked for, half of them generated; sixteen rollouts under way
together, in sealed shards as a model server leaves them, and a journal whose rows hold the conversation's token ids as
a job's do. The export runs in a process of its own, whose CPU time and peak memory are measured; tokens are those
captured. CPU time, not wall time: a busy machine takes longer, not more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from msgspec.structs import replace

from benchmarks.capture import rollout
from nemo_gym.capture import CallRecord, ShardWriter
from nemo_gym.exchange.ids import uuid7

TOGETHER = 16
DISTINCT = 8
"""Conversations that are made up; all others are these under other ids."""

_MEASURED = """
import json, sys, time
from nemo_gym.export.exporter import export

def peak():  # getrusage would have the parent's, from before this program was loaded
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

began = time.process_time(), peak()
summary = export(sys.argv[1], sys.argv[2].split(","))
cpu = time.process_time() - began[0]
print(json.dumps([cpu, began[1], peak(), summary.captured, summary.trained, summary.rollouts]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rollouts", default="500,2000", help="sizes of runs, with commas")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=500, help="of a turn")
    parser.add_argument("--formats", default="token_rows")
    parser.add_argument("--dir", help="where to write; a temporary folder unless it is given")
    arguments = parser.parse_args()
    print(f"{'rollouts':>9} {'tokens':>13} {'CPU s':>7} {'tokens/s':>11} {'peak MB':>8} {'(at start':>9} MB)")
    for count in map(int, arguments.rollouts.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            make(Path(folder), count, arguments.turns, arguments.tokens)
            cpu, start, peak, captured, _, exported = measured(folder, arguments.formats)
            assert exported == count
            print(f"{count:>9,} {captured:>13,} {cpu:>7.2f} {captured / cpu:>11,.0f} {peak:>8.0f} {start:>9.0f}")


def measured(folder: str, formats: str) -> list[Any]:
    one_core = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "ARROW_NUM_THREADS", "ARROW_IO_THREADS"), "1")
    found: list[Any] = json.loads(
        subprocess.run(
            [sys.executable, "-c", _MEASURED, folder, formats], capture_output=True, check=True, env=one_core
        ).stdout
    )
    return found


def make(folder: Path, count: int, turns: int, tokens: int) -> None:
    seed = random.Random(1)
    made = [rollout(turns, tokens, seed)[0] for _ in range(DISTINCT)]
    with (folder / "rollouts.jsonl").open("wb") as journal:
        asyncio.run(_record(folder, made, count, journal))


async def _record(folder: Path, made: list[list[CallRecord]], count: int, journal: Any) -> None:
    writer = ShardWriter(str(folder / "captures"), "policy_model", "run", "none")
    for first in range(0, count, TOGETHER):
        numbers = range(first, min(first + TOGETHER, count))
        calls = [under_other_ids(made[number % DISTINCT], f"rollout-{number}") for number in numbers]
        for turn in zip(*calls, strict=True):
            await asyncio.gather(*(writer.commit(record) for record in turn))
        for number in numbers:
            await writer.seal(f"rollout-{number}")
            journal.write(_row(number, made[number % DISTINCT]))
    writer.close()


def under_other_ids(records: list[CallRecord], rollout_id: str) -> Iterator[CallRecord]:
    parent = None
    for record in records:
        call_id = uuid7()
        yield replace(record, call_id=call_id, parent_call_id=parent, rollout_id=rollout_id)
        parent = call_id


def _row(number: int, records: list[CallRecord]) -> bytes:
    output = []
    for record in records:
        assert record.reply is not None and record.reply.prompt_ids is not None
        (choice,) = record.reply.choices
        assert choice.tokens is not None and choice.tokens.ids is not None and choice.tokens.logprobs is not None
        ids = {
            "generation_token_ids": choice.tokens.ids.tolist(),
            "generation_log_probs": choice.tokens.logprobs.tolist(),
        }
        output.append({"type": "message", "prompt_token_ids": record.reply.prompt_ids.tolist(), **ids})
    row = {
        "_ng_task_index": number // 4,
        "_ng_rollout_index": number % 4,
        "_ng_rollout_id": f"rollout-{number}",
        "_ng_rollout": {"calls": len(records), "incomplete": None, "seconds": 1.0},
        "agent_ref": {"name": "agent"},
        "response": {"output": output, "usage": {"input_tokens": 1, "output_tokens": 1}},
        "reward": number % 4 / 3,
    }
    return orjson.dumps(row) + b"\n"


if __name__ == "__main__":
    main()
