"""What an agent server costs a rollout, beside the same client run by hand: folders, the watch, the trajectory.

    python -m benchmarks.agents [rollouts]

The client is a small program of two model calls and one tool; model server, capture and scripted backend are real.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.agent_server.test_command import CLIENT, ROW, world

LIMIT_S = 0.3


async def measure(rollouts: int) -> tuple[list[float], list[float]]:
    """Seconds of each rollout by the agent server, and of each client by hand, taken in turn."""
    served, by_hand = [], []
    with tempfile.TemporaryDirectory() as folder:
        async with world(Path(folder)) as at, httpx.AsyncClient(timeout=60) as client:
            for number in range(rollouts + 1):
                started = time.perf_counter()
                answer = await client.post(f"{at.url}/run", json=ROW | {"_ng_rollout_id": f"served-{number}"})
                answer.raise_for_status()
                served.append(time.perf_counter() - started)
                work = Path(folder) / f"by-hand-{number}"
                (work / "out").mkdir(parents=True)
                environment = {"BASE_URL": f"{at.model.url}/ng-rollout/hand-{number}/v1", "MODEL": "policy"}
                started = time.perf_counter()
                await asyncio.to_thread(run, work, environment)
                by_hand.append(time.perf_counter() - started)
    return served[1:], by_hand[1:]  # the first of each finds nothing warm


def run(work: Path, environment: dict[str, str]) -> None:
    argv = [sys.executable, "-c", CLIENT]
    subprocess.run(argv, cwd=work, env=environment, input="Make it.", text=True, check=True, capture_output=True)


def main() -> None:
    rollouts = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    served, by_hand = asyncio.run(measure(rollouts))
    over = statistics.median(served) - statistics.median(by_hand)
    print(f"a rollout served   {statistics.median(served):.3f} s (median of {rollouts})")
    print(f"a client by hand   {statistics.median(by_hand):.3f} s")
    print(f"over               {over:.3f} s, limit {LIMIT_S} s")
    sys.exit(over > LIMIT_S)


if __name__ == "__main__":
    main()
