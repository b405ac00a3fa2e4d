"""What reading a large capture costs: two columns of a million calls, one rollout of them, and memory.

    python -m benchmarks.capture_reader [--calls 1000000] [--dir DIR]

The capture is made of a few thousand recorded calls, written again under other ids, in sealed shards of 50,000 calls.
CPU times are those of this process, the best of a few runs.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.capture import rollout
from nemo_gym.capture import CaptureStore
from nemo_gym.capture.columns import to_batch
from nemo_gym.capture.encoding import Encoder
from nemo_gym.capture.redact import Redactor
from nemo_gym.capture.schema import DIGEST
from nemo_gym.capture.sealing import seal
from nemo_gym.capture.shard import Shard

SHARD = 50_000
TURNS, ROLLOUTS = 20, 50
RUNS = 3


def recorded() -> pa.RecordBatch:
    """Rollouts side by side, a turn of each after a turn of each."""
    encoder, seed = Encoder(Redactor()), random.Random(2)
    made = [rollout(TURNS, 40, seed)[0] for _ in range(ROLLOUTS)]
    rows = []
    for turn in zip(*made, strict=True):
        for number, record in enumerate(turn):
            rows.append(encoder.row(record) | {"rollout_id": f"rollout-{number}"})
    return to_batch(rows)


def under_other_ids(batch: pa.RecordBatch, number: int, chain: bytes) -> bytes:
    for name in ("call_id", "parent_call_id", "rollout_id"):
        place = batch.schema.get_field_index(name)
        ids = pc.binary_join_element_wise(batch.column(place), str(number), "-")
        batch = batch.set_column(place, batch.schema.field(place), ids)
    place = batch.schema.get_field_index("chain")
    first = pa.array([chain, *[None] * (batch.num_rows - 1)], DIGEST)
    return batch.set_column(place, batch.schema.field(place), first).serialize().to_pybytes()


def made(folder: Path, calls: int) -> None:
    batch = recorded()
    for number in range(0, calls // batch.num_rows):
        if number * batch.num_rows % SHARD == 0:
            shard = Shard(folder / f"policy-1-{number}.arrows", "none")
        shard.append(shard.following(partial(under_other_ids, batch, number)))
        if (number + 1) * batch.num_rows % SHARD == 0 or number == calls // batch.num_rows - 1:
            shard.seal()
            assert seal(shard.path) is not None


def cost(what: Callable[[], Any]) -> tuple[float, float, Any]:
    """CPU and wall seconds of the best run, and what came of it."""
    best = (float("inf"), float("inf"), None)
    for _ in range(RUNS):
        cpu, wall = time.process_time(), time.perf_counter()
        found = what()
        best = min(best, (time.process_time() - cpu, time.perf_counter() - wall, found), key=lambda one: one[0])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path, default=Path())
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as place:
        began = time.process_time()
        made(Path(place), arguments.calls)
        size = sum(path.stat().st_size for path in Path(place).iterdir())
        print(f"made in {time.process_time() - began:.0f} s CPU, {size >> 20} MiB")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        store = CaptureStore(place)

        def scan() -> int:
            _, pieces = store.tables(["status", "completion_tokens"])
            return sum(pc.sum(piece.column(1)).as_py() for piece in pieces)

        cpu, wall, _ = cost(scan)
        print(f"scan of {arguments.calls:,} calls by two columns: {cpu:.2f} s CPU, {wall:.2f} s (asked for: 2)")
        some = f"rollout-7-{arguments.calls // (TURNS * ROLLOUTS) // 2}"
        cpu, wall, found = cost(lambda: list(store.calls(some)))
        assert len(found) == TURNS
        print(f"one rollout of them, {TURNS} calls: {1e3 * cpu:.0f} ms CPU, {1e3 * wall:.0f} ms (asked for: 50)")
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"memory beyond what making it took: {max(after - before, 0) >> 10} MiB")


if __name__ == "__main__":
    main()
