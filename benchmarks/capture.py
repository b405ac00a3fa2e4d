"""What recording costs a server: syncs, throughput, latency, CPU a call, and how a capture grows.

    python -m benchmarks.capture [--dir DIR]      # DIR: on the disk in question (default: the working folder)

CPU times are those of this process, the best of a few runs; a busy machine makes batches larger, so quote the worse
figures for calls per sync. Absolute figures are one machine's; the ratios travel.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import math
import os
import random
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from nemo_gym.capture import CallRecord, ShardWriter, Times
from nemo_gym.capture.shard import File
from nemo_gym.dialects.chat import read_request
from nemo_gym.dialects.elements import Elements
from nemo_gym.exchange.call import Attempt
from nemo_gym.exchange.ids import uuid7
from nemo_gym.exchange.parts import Text
from nemo_gym.exchange.reply import Choice, ModelReply, TokenTrace, Usage
from nemo_gym.web.serve import settle_interpreter

RUNS = 5
ROLLOUT, TOGETHER = 8, 32
"""Calls of a rollout, and rollouts at a time."""
WORK_S = 0.00025
"""What the rest of a call takes of a server's loop. Where clients wait for a backend instead, throughput is theirs."""
_WORDS = [a + b for a in ("br", "st", "pl", "gr", "tw") for b in ("ing", "one", "and", "ick", "all", "est", "ound")]


class Disk(File):
    """Counts syncs, and takes its time instead if told to."""

    syncs = 0
    slow_s = 0.0

    def sync(self) -> None:
        Disk.syncs += 1
        if Disk.slow_s:
            time.sleep(Disk.slow_s)
        else:
            super().sync()


_elements = Elements()  # as a server reads what it is sent: what it has seen before is one object in all requests


def text(words: int, seed: random.Random) -> str:
    return " ".join(seed.choices(_WORDS, k=words))


def call(
    messages: list[dict[str, Any]], said: str, prompt: array | None, ids: array | None, **fields: Any
) -> CallRecord:
    request = read_request(
        _elements.decode(msgspec.json.encode({"model": "m", "messages": messages, "temperature": 1.0}))
    )
    tokens = None if ids is None else TokenTrace(ids, array("f", (-random.random() for _ in ids)), ((0, 3),))
    usage = Usage(100 if prompt is None else len(prompt), 200 if ids is None else len(ids))
    now = time.time()
    reply = ModelReply(uuid7(), "m", 1, (Choice(0, (Text(said),), "stop", tokens),), usage, prompt)
    record = CallRecord(
        *(uuid7(), "run", None, 0, None, None, "first", "policy", "chat", "chat", False),
        Times(now, now, None, now),
        (Attempt("replica-0", now, now),),
        *("answered", True, request, request, reply, None),
    )
    return replace(record, **fields)


def small(number: int, seed: random.Random) -> CallRecord:
    """A short question, 200 tokens of answer, no ids: a chat call of an OpenAI-compatible backend."""
    system = {"role": "system", "content": "You are a careful agent. " * 6}
    messages = [system, {"role": "user", "content": text(60, seed)}]
    return call(messages, text(150, seed), None, None, rollout_id=f"r{number // 5}")


def large(number: int, seed: random.Random) -> CallRecord:
    """16k prompt ids and 1k generated with log-probs."""
    prompt = array("i", (seed.randrange(150_000) for _ in range(16_000)))
    ids = array("i", (seed.randrange(150_000) for _ in range(1_000)))
    return call([{"role": "user", "content": text(12_000, seed)}], text(750, seed), prompt, ids)


def rollout(turns: int, new_tokens: int, seed: random.Random) -> tuple[list[CallRecord], int]:
    """Its calls, and the bytes of the raw arrays and texts that are new in them."""
    made: list[CallRecord] = []
    messages: list[dict[str, Any]] = [{"role": "system", "content": text(200, seed)}]
    prompt = array("i", (seed.randrange(150_000) for _ in range(300)))
    new = 4 * len(prompt) + len(messages[0]["content"])
    for _ in range(turns):
        asked, said = text(new_tokens * 3 // 8, seed), text(new_tokens * 3 // 8, seed)
        observed = array("i", (seed.randrange(150_000) for _ in range(new_tokens // 2)))
        ids = array("i", (seed.randrange(150_000) for _ in range(new_tokens // 2)))
        messages = [*messages, {"role": "user", "content": asked}]
        prompt = prompt + observed
        parent = {"parent_call_id": made[-1].call_id, "relation": "turn"} if made else {}
        made.append(call(messages, said, prompt, ids, rollout_id=f"r{turns}", **parent))
        messages = [*messages, {"role": "assistant", "content": said}]
        prompt = prompt + ids
        new += 4 * len(observed) + 8 * len(ids) + len(asked) + len(said)
    return made, new


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Cost:
    def __init__(self, records: int, cpu_s: float, wall_s: float, syncs: int, latencies: list[float]) -> None:
        self.cpu_ms, self.rate = 1e3 * cpu_s / records, records / wall_s
        self.per_sync = records / max(syncs, 1)
        self.latency_ms = 1e3 * statistics.median(latencies)


async def _written(folder: str, made: list[CallRecord], durability: Any, concurrency: int, work_s: float) -> Cost:
    writer = ShardWriter(folder, "policy", "run", durability, open_file=Disk)
    left = iter(made)
    latencies: list[float] = []

    async def client() -> None:
        for record in left:
            if work_s:
                await asyncio.sleep(0)
                busy(work_s)
            began = time.perf_counter()
            await writer.commit(record)
            latencies.append(time.perf_counter() - began)

    settle_interpreter()  # as in a server
    syncs, cpu, wall = Disk.syncs, time.process_time(), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    cost = Cost(len(made), time.process_time() - cpu, time.perf_counter() - wall, Disk.syncs - syncs, latencies)
    gc.unfreeze()
    writer._sealer.put = lambda path: None  # type: ignore[method-assign]  # packing is measured elsewhere
    writer.close()
    return cost


def written(
    made: list[CallRecord], folder: Path, durability: str = "fsync", concurrency: int = 64, work_s: float = 0.0
) -> Cost:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return asyncio.run(_written(place, made, durability, concurrency, work_s))


def _many(make: Callable[[int, random.Random], CallRecord], count: int) -> list[CallRecord]:
    seed = random.Random(1)
    return [make(number, seed) for number in range(count)]


def syncs_and_throughput(folder: Path) -> None:
    made = _many(small, 3000)
    at_64 = [written(made, folder) for _ in range(RUNS)]
    print(f"calls per sync, 64 concurrent:        {min(one.per_sync for one in at_64):.1f} (asked for: 12)")
    made, ratios = _many(small, 4000), []  # so many that beginning and end, where nothing overlaps, weigh little
    for _ in range(RUNS):
        rates = {}
        for slow_s, durability in ((0.005, "fsync"), (0.0, "none")):
            Disk.slow_s = slow_s
            rates[durability] = written(made, folder, durability, work_s=WORK_S).rate
        Disk.slow_s = 0.0
        ratios.append(rates["fsync"] / rates["none"])
    ratio = statistics.median(ratios)
    print(
        f"throughput, a sync of 5 ms / no sync: {ratio:.2f} at 64 concurrent, a server at its limit (asked for: 0.90)"
    )


def latency(folder: Path) -> None:
    made = _many(small, 200)
    one = min((written(made, folder, concurrency=1) for _ in range(RUNS)), key=lambda cost: cost.latency_ms)
    bare = min(sync_ms(folder) for _ in range(RUNS))
    print(
        f"latency added, 1 concurrent:          {one.latency_ms:.2f} ms; one bare sync of as much {bare:.2f} ms", end=""
    )
    print(f"; beyond it {one.latency_ms - bare:.2f} ms (asked for: 0.5)")


def sync_ms(folder: Path) -> float:
    """The median of what a small batch takes to write and sync, with nothing else of ours."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        file = File(Path(place) / "f")
        times = []
        for _ in range(200):
            began = time.perf_counter()
            file.write(b"x" * 7000)
            file.sync()
            times.append(time.perf_counter() - began)
        file.close()
    return 1e3 * statistics.median(times)


@contextlib.contextmanager
def bare_server() -> Iterator[Callable[[int], float]]:
    """Gives what a call costs a server that only passes bytes on, in ms of CPU; asked in turns."""
    from benchmarks import server

    case = server.cases()[0]
    with contextlib.ExitStack() as stack:
        port, _ = stack.enter_context(server.process("backend", stdin=case.reply))
        one = stack.enter_context(server.process("bytes", "--url", f"http://{server.HOST}:{port}/v1"))
        server.measure(*one, case, 500, 0)
        yield lambda turn: server.measure(*one, case, 2000, turn)[0]


def cpu(folder: Path) -> None:
    made = _many(small, 3000)
    with bare_server() as bare:
        turns = [(written(made, folder).cpu_ms, bare(turn)) for turn in range(1, RUNS + 1)]
    best, ratio = min(cost for cost, _ in turns), statistics.median(cost / beside for cost, beside in turns)
    print(f"CPU, small call, 64 concurrent:       {best:.3f} ms (asked for: 0.08)", end="")
    print(f"; {ratio:.2f} of a bare server's {min(beside for _, beside in turns):.3f} ms (asked for: 0.80)")
    made = _many(large, 100)
    best = min(written(made, folder, concurrency=16).cpu_ms for _ in range(RUNS))
    print(f"CPU, 16k + 1k ids, 16 concurrent:     {best:.3f} ms (asked for: 1.5)")


def growth(folder: Path) -> None:
    sizes: dict[str, dict[int, int]] = {"open": {}, "sealed": {}}
    for turns in (20, 60, 200):
        made, new = rollout(turns, 500, random.Random(turns))
        with tempfile.TemporaryDirectory(dir=folder) as place:
            writer = ShardWriter(place, "policy", "run", "flush")

            async def write(writer: ShardWriter = writer, made: list[CallRecord] = made) -> None:
                for one in made:
                    await writer.commit(one)

            asyncio.run(write())
            sizes["open"][turns] = sum(one.stat().st_size for one in Path(place).rglob("*-*"))
            writer.close()
            sizes["sealed"][turns] = sum(one.stat().st_size for one in Path(place).rglob("*-*"))
        ratios = ", ".join(f"{name} {size[turns] / new:.2f} x" for name, size in sizes.items())
        print(f"size of {turns:3} turns:                    {new:,} bytes are new; {ratios} (asked for: 3)")
    for name, size in sizes.items():
        exponent = math.log(size[200] / size[20]) / math.log(10)
        print(f"growth, {name + ':':31} turns to the power of {exponent:.3f} (asked for: 1.1)")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def resident_after(folder: Path, marks: list[int]) -> list[int]:
    """What this process holds after so many small calls, of rollouts that are sealed, all in one open shard."""
    found: list[int] = []

    async def write(place: str) -> None:
        writer = ShardWriter(place, "policy", "run", "flush", max_shard_bytes=1 << 40)
        seed = random.Random(3)
        for number in range(0, marks[-1], ROLLOUT * TOGETHER):
            names = [f"r{number + one}" for one in range(TOGETHER)]
            for _ in range(ROLLOUT):
                made = [replace(small(number, seed), rollout_id=name) for name in names]
                await asyncio.gather(*map(writer.commit, made))
            await asyncio.gather(*map(writer.seal, names))
            while len(found) < len(marks) and number + ROLLOUT * TOGETHER >= marks[len(found)]:
                found.append(resident())
        writer._sealer.put = lambda path: None  # type: ignore[method-assign]
        writer.close()

    with tempfile.TemporaryDirectory(dir=folder) as place:
        asyncio.run(write(place))
    return found


def memory(folder: Path) -> None:
    marks = [10_000, 50_000, 100_000, 200_000]
    sizes = [
        f"{size >> 20} MiB after {mark:,}" for mark, size in zip(marks, resident_after(folder, marks), strict=True)
    ]
    print(f"memory, one shard:                    {', '.join(sizes)} calls (asked for: no growth)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--dir", default=".", type=Path)
    parts = {"syncs": syncs_and_throughput, "latency": latency, "cpu": cpu, "growth": growth, "memory": memory}
    parser.add_argument("--only", choices=list(parts))
    arguments = parser.parse_args()
    for name, part in parts.items():
        if arguments.only in (None, name):
            part(arguments.dir)


if __name__ == "__main__":
    main()
