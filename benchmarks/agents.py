"""What an agent server costs a rollout, beside the same client run by hand: folders, the watch, the trajectory.

    python -m benchmarks.agents [rollouts]

The client is a small program of two model calls and one tool; model server, capture and scripted backend are real.
Processor time is told beside the wall's, since on a machine that others use only that stays the same.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.agent_server.test_command import CLIENT, ROW, world

LIMIT_S = 0.3


class Cost:
    """Wall and processor seconds since it was made, of this process and of those that it has awaited."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), _processor()

    def so_far(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, _processor() - self._processor


def _processor() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


Costs = list[tuple[float, float]]


async def measure(rollouts: int) -> tuple[Costs, Costs]:
    """What each rollout by the agent server cost, and each client by hand, taken in turn."""
    served, by_hand = [], []
    with tempfile.TemporaryDirectory() as folder:
        async with world(Path(folder)) as at, httpx.AsyncClient(timeout=60) as client:
            for number in range(rollouts + 1):
                cost = Cost()
                answer = await client.post(f"{at.url}/run", json=ROW | {"_ng_rollout_id": f"served-{number}"})
                answer.raise_for_status()
                served.append(cost.so_far())
                work = Path(folder) / f"by-hand-{number}"
                (work / "out").mkdir(parents=True)
                environment = {"BASE_URL": f"{at.model.url}/ng-rollout/hand-{number}/v1", "MODEL": "policy"}
                cost = Cost()
                await asyncio.to_thread(run, work, environment)
                by_hand.append(cost.so_far())
    return served[1:], by_hand[1:]  # the first of each finds nothing warm


def run(work: Path, environment: dict[str, str]) -> None:
    argv = [sys.executable, "-c", CLIENT]
    subprocess.run(argv, cwd=work, env=environment, input="Make it.", text=True, check=True, capture_output=True)


def main() -> None:
    rollouts = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    served, by_hand = (list(zip(*costs, strict=True)) for costs in asyncio.run(measure(rollouts)))
    over = [
        statistics.median(ours) - statistics.median(bare) for ours, bare in zip(served, by_hand, strict=True)
    ]  # of the wall, of processors
    for label, (wall, processor) in (("a rollout served", served), ("a client by hand", by_hand)):
        told = f"{statistics.median(wall):.3f} s, processor {statistics.median(processor):.3f} s"
        print(f"{label}   {told} (medians of {rollouts})")
    print(f"over               {over[0]:.3f} s, processor {over[1]:.3f} s, limit {LIMIT_S} s")
    sys.exit(over[0] > LIMIT_S)


if __name__ == "__main__":
    main()
