"""How long after its client hung up a backend is free, in milliseconds: `python -m benchmarks.hangup`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import median

from tests.bench import bench
from tests.model_server.test_hangup import BODIES, Case, freed_after
from tests.scripted import Answer

TIMES = 20


async def main() -> None:
    for path in BODIES:
        for rollout in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                async with bench(Path(folder), [Answer(hang=True)], repeat_grace_s=0.0) as at:
                    taken = [1000 * await freed_after(at, Case(path, rollout=rollout)) for _ in range(TIMES)]
            where = "in a rollout, without a grace" if rollout else "in none"
            print(f"{path:22} {where:30} p50 {median(taken):6.1f}  max {max(taken):6.1f}")


if __name__ == "__main__":
    asyncio.run(main())
