"""What an export costs: tokens a second on one core and memory, for runs of growing size.

    python -m benchmarks.export [--rollouts 512,2048] [--turns 20] [--tokens 500] [--formats token_rows] [--dir DIR]

Rollouts of 20 turns, each with as many tokens as are asked for, half of them generated; sixteen rollouts under way
together, in sealed shards as a model server leaves them, and a journal whose rows hold the conversation's token ids as
a job's do. The export runs in a process of its own, whose CPU time and peak memory are measured; tokens are those
captured. CPU time, not wall time: a busy machine takes longer, not more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from benchmarks.capture import rollout
from benchmarks.capture_reader import under_other_ids
from nemo_gym.capture import CallRecord
from nemo_gym.capture.columns import to_batch
from nemo_gym.capture.encoding import Encoder
from nemo_gym.capture.redact import Redactor
from nemo_gym.capture.sealing import seal
from nemo_gym.capture.shard import Shard

TOGETHER = 16
SHARD_BYTES = 64 << 20

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
    parser.add_argument("--rollouts", default="512,2048", help="sizes of runs, with commas")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=500, help="of a turn")
    parser.add_argument("--formats", default="token_rows")
    parser.add_argument("--dir", help="where to write; a temporary folder unless it is given")
    arguments = parser.parse_args()
    print(f"{'rollouts':>9} {'tokens':>13} {'CPU s':>7} {'tokens/s':>11} {'peak MB':>8} {'(at start':>9} MB)")
    for asked in map(int, arguments.rollouts.split(",")):
        count = max(asked // TOGETHER, 1) * TOGETHER
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
    """Sixteen rollouts as they are recorded, again and again under other ids."""
    encoder, seed = Encoder(Redactor()), random.Random(1)
    made = [rollout(turns, tokens, seed)[0] for _ in range(TOGETHER)]
    rows = []
    for turn in zip(*made, strict=True):
        rows += [encoder.row(record) | {"rollout_id": f"rollout-{number}"} for number, record in enumerate(turn)]
    batch = to_batch(rows)
    captures = folder / "captures" / "run"
    captures.mkdir(parents=True)
    results = [_row(number, records) for number, records in enumerate(made)]
    shard: Shard | None = None
    with (folder / "rollouts.jsonl").open("wb") as journal:
        for number in range(count // TOGETHER):
            if shard is None:
                shard = Shard(captures / f"policy_model-1-{number}.arrows", "none")
            shard.append(shard.following(partial(under_other_ids, batch, number)))
            journal.writelines(
                row.replace(b'"_ID"', b'"rollout-%d-%d"' % (one, number)) for one, row in enumerate(results)
            )
            if shard.size >= SHARD_BYTES or number == count // TOGETHER - 1:
                shard.seal()
                assert seal(shard.path) is not None
                shard = None


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
        "_ng_rollout_id": "_ID",
        "_ng_rollout": {"calls": len(records), "incomplete": None, "seconds": 1.0},
        "agent_ref": {"name": "agent"},
        "response": {"output": output, "usage": {"input_tokens": 1, "output_tokens": 1}},
        "reward": number % 4 / 3,
    }
    return orjson.dumps(row) + b"\n"


if __name__ == "__main__":
    main()
