"""What choosing a replica costs: a place taken and given back, with 10,000 calls in flight over 64 replicas.

    python -m benchmarks.router

CPU time of this process, the best of a few runs, so a busy machine changes it little.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

from nemo_gym.pool.pool import Place, Pool

RUNS = 5


async def measure(replicas: int, in_flight: int, decisions: int, *, affinity: bool) -> tuple[float, float, float]:
    """Seconds of CPU for one decision; the least and the greatest load, as parts of the mean."""
    pool = Pool({f"http://node{number}:8000/v1": number for number in range(replicas)})
    seeded = random.Random(1)
    until = asyncio.get_running_loop().time() + 3600
    rollouts = [f"rollout-{number}" if affinity else None for number in range(in_flight)]
    held: list[Place[int]] = [await pool.take(rollout, until=until) for rollout in rollouts]
    best = float("inf")
    for _ in range(RUNS):
        places = [seeded.randrange(in_flight) for _ in range(decisions // RUNS)]
        began = time.process_time()
        for place in places:
            pool.give_back(held[place])
            held[place] = await pool.take(rollouts[place], until=until)
        best = min(best, (time.process_time() - began) / len(places))
    loads = [replica.in_flight for replica in pool.replicas]
    mean = in_flight / replicas
    return best, min(loads) / mean, max(loads) / mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=10_000)
    parser.add_argument("--decisions", type=int, default=20_000)
    told = parser.parse_args()
    for affinity in (True, False):
        seconds, least, most = asyncio.run(measure(told.replicas, told.in_flight, told.decisions, affinity=affinity))
        kind = "by rollout" if affinity else "without one"
        print(f"{kind:12}  {seconds * 1e6:6.1f} µs a decision   load {least:.3f} to {most:.3f} of the mean")


if __name__ == "__main__":
    main()
