"""What the way to an engine costs, and what more replicas give.

    python -m benchmarks.engines overhead      # all of it, in a few minutes
    python -m benchmarks.engines replicas      # two replicas beside one, alone
    python -m benchmarks.engines simulation    # 1 to 64 replicas that only sleep: what the pool itself loses

Two replicas of vLLM on the embedded model are started, and one more engine in this process. Replies are of a fixed
length, so all ways do the same work. The ways take turns, short ones, in changing order, and a way's turn is compared
with the turn of the engine itself in the same round: what else the machine does burdens both, and the median of the
rounds is what counts. The clients are a process of their own (asking.py). What a call costs in this process (the server
and Ray's own threads) is told as CPU besides. The simulation's clock jumps from event to event, so that it shows the
choices alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import random
import statistics
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import uvloop
from msgspec import Struct

from benchmarks.asking import Calls, Clients, clients
from nemo_gym.engines.deployment import Deployment
from nemo_gym.engines.engine import EngineReply, EngineRequest
from nemo_gym.engines.packed import Asked, packed
from nemo_gym.engines.ray_engine import RayEngine
from nemo_gym.engines.replica import Replica
from nemo_gym.engines.vllm_actor import VllmActor
from nemo_gym.exchange.parts import Message, Text
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.web.peers import ServerClient
from nemo_gym.web.serve import settle_interpreter
from responses_api_models.local_vllm_model.app import LocalVLLMModel, LocalVLLMModelConfig
from tests.pool import virtual
from tests.serving import recording, serving

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny_policy"
NEVER = {0: -100.0, 2: -100.0}
"""No end token is drawn: replies have the length that was asked for."""
ARGS = {"model": str(MODEL), "dtype": "float32", "enforce_eager": True, "block_size": 32, "max_model_len": 1024}
QUESTION = "What is the weather in Paris? Tell me in a few words, and then what I should wear."
MOST_MS = 10.0
"""More than the engine itself takes, of a call that is alone."""
MOST_LOST = 0.15
"""Of the engine's own throughput, at 32 concurrent."""
LOADS = ((1, 4, 8), (32, 64, 64))
"""Concurrent, the calls of one turn, and the tokens of a reply. What a lone call's way takes is the same for a long
reply; in a short one it can be told from what the engine itself takes now more and now less."""
ROUNDS = 3
"""At least, whatever time they take."""

Ask = Callable[[int], Awaitable[Any]]


class Turn(Struct):
    seconds: float
    """Of the median call."""
    rate: float
    """Calls a second."""
    cpu: float = 0.0
    """Seconds of this process for a call."""


Way = Callable[[], Awaitable[Turn]]


async def turn(ask: Ask, concurrent: int, calls: int) -> Turn:
    return Turn(*await rate(ask, concurrent, calls))


async def rate(ask: Ask, concurrent: int, calls: int) -> tuple[float, float]:
    """Seconds of the median call; calls a second."""
    now = asyncio.get_running_loop().time
    numbers = iter(range(calls))
    seconds: list[float] = []

    async def client() -> None:
        for number in numbers:
            began = now()
            await ask(number)
            seconds.append(now() - began)

    began = now()
    await asyncio.gather(*(client() for _ in range(concurrent)))
    return statistics.median(seconds), calls / (now() - began)


async def rounds(ways: Mapping[str, Way], calls: int, seconds: float) -> dict[str, list[Turn]]:
    """Turns of each way, by rounds, the order changing; the first round warms and is forgotten."""
    found: dict[str, list[Turn]] = {name: [] for name in ways}
    names = list(ways)
    await each(ways, names, calls, {name: [] for name in ways})
    began = time.monotonic()
    while len(found[names[0]]) < ROUNDS or time.monotonic() - began < seconds:
        names = [*names[1:], names[0]]
        await each(ways, names, calls, found)
    return found


async def each(ways: Mapping[str, Way], names: list[str], calls: int, found: dict[str, list[Turn]]) -> None:
    for name in names:
        began = time.process_time()
        taken = await ways[name]()
        taken.cpu = (time.process_time() - began) / calls
        found[name].append(taken)


def report(title: str, found: Mapping[str, list[Turn]], beside: str) -> dict[str, tuple[float, float]]:
    """Prints the medians of the rounds; of each way, what a call takes more (ms) and which part of the throughput it
    loses, as the median of the rounds too."""
    base = found[beside]
    print(f"\n{title}: medians of {len(base)} rounds, beside {beside!r}")
    told: dict[str, tuple[float, float]] = {}
    for way, turns in found.items():
        pairs = list(zip(turns, base, strict=True))
        more = statistics.median((one.seconds - other.seconds) * 1e3 for one, other in pairs)
        lost = statistics.median(1 - one.rate / other.rate for one, other in pairs)
        told[way] = more, lost
        seconds, each_s, cpu = (
            statistics.median(getattr(one, name) for one in turns) for name in ("seconds", "rate", "cpu")
        )
        print(
            f"  {way:13} {seconds * 1e3:7.1f} ms a call {more:+6.1f}  {each_s:6.1f} calls/s {-lost:+6.1%}"
            f"  {cpu * 1e3:5.2f} ms of CPU here",
            flush=True,
        )
    return told


def verdict(way: str, name: str, found: float, most: float, form: str) -> None:
    held = "held" if found <= most else "not held"
    print(f"  {name}, {way}: {format(found, form)}, asked for at most {format(most, form)}: {held}", flush=True)


class Timed(VllmActor):
    """An actor that asks its own engine, as fast as it can."""

    async def rate(self, data: bytes, concurrent: int, calls: int) -> tuple[float, float]:
        from nemo_gym.engines.packed import asked  # Ray pickles what the main module has, and this cannot be

        run, request = time.monotonic_ns(), asked(data).request
        return await rate(lambda number: self.generate(f"bench-{run}-{number}", request), concurrent, calls)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[str, LocalVLLMModel]]:
    """A model server with two replicas."""
    Deployment.actor = Timed
    with tempfile.TemporaryDirectory() as captures:
        config = LocalVLLMModelConfig(
            name="policy_model",
            model=str(MODEL),
            num_gpus=0,
            num_replicas=2,
            engine_args={"max_model_len": 1024},
            start_timeout_s=3000,
        )
        server = LocalVLLMModel(config=config, server_client=ServerClient({}))
        began = time.monotonic()
        async with serving(recording(server, captures)) as url, aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{url}/ready") as ready:
                    if ready.status == 200:
                        break
                await asyncio.sleep(0.5)
            print(f"two replicas and their server up in {time.monotonic() - began:.0f} s", flush=True)
            yield url, server


class Bench:
    """The ways to the first of two replicas, and to both.

    Args:
        seconds: for each table.
    """

    def __init__(self, server: LocalVLLMModel, asked_by: Clients, seconds: float):
        assert server._deployment is not None
        self.engine = server._deployment.engine
        self.first, self.second = self.engine.replicas
        self._clients = asked_by
        self._seconds = seconds
        backend: Any = server.backend
        self._ids = backend._renderer.ids(ModelRequest((Message("user", (Text(QUESTION),)),)))
        self._replies_of(64)

    def _replies_of(self, tokens: int) -> None:
        self._tokens = tokens
        self._request = EngineRequest(self._ids, Sampling(temperature=1.0, max_tokens=tokens, logit_bias=NEVER))
        self._body = {
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": tokens,
            "temperature": 1.0,
            "logit_bias": {str(token): bias for token, bias in NEVER.items()},
        }

    async def _over_ray(self, number: int) -> None:
        await self.engine.generate(self._request)

    def _only(self, replicas: list[Replica]) -> None:
        """These alone are in the pool."""
        for replica in self.engine.replicas:
            self.engine.pool.remove(replica.name)
            if replica in replicas:
                self.engine.changed(replica)

    def _here(self, replicas: list[Replica], concurrent: int, calls: int) -> Way:
        async def take() -> Turn:
            self._only(replicas)
            return await turn(self._over_ray, concurrent, calls)

        return take

    def _over_http(self, replicas: list[Replica], concurrent: int, calls: int) -> Way:
        async def take() -> Turn:
            self._only(replicas)
            taken = await self._clients.ask(Calls(self._body, concurrent, calls, self._tokens))
            return Turn(taken.seconds, taken.rate)

        return take

    def _in_its_actor(self, concurrent: int, calls: int) -> Way:
        async def take() -> Turn:
            return Turn(*await self.first.ask("rate", packed(Asked("", self._request)), concurrent, calls))

        return take

    async def overhead(self) -> None:
        for concurrent, calls, tokens in LOADS:
            self._replies_of(tokens)
            ways = {
                "in its actor": self._in_its_actor(concurrent, calls),
                "over Ray": self._here([self.first], concurrent, calls),
                "over HTTP": self._over_http([self.first], concurrent, calls),
            }
            found = await rounds(ways, calls, self._seconds)
            told = report(f"{concurrent} concurrent, {tokens} tokens", found, "in its actor")
            for way in ("over Ray", "over HTTP"):
                more, lost = told[way]
                if concurrent == 1:
                    verdict(way, "more a call", more, MOST_MS, ".1f")
                else:
                    verdict(way, "throughput lost", lost, MOST_LOST, ".1%")

    async def replicas(self) -> None:
        _, calls, tokens = LOADS[-1]
        self._replies_of(tokens)
        ways = {
            "one replica": self._over_http([self.first], 32, calls),
            "two replicas": self._over_http([self.first, self.second], 32, calls),
        }
        report("over HTTP, 32 concurrent", await rounds(ways, calls, self._seconds), "one replica")

    async def in_process(self) -> None:
        actor = await asyncio.to_thread(VllmActor, ARGS, 0.0)
        numbers = iter(range(1_000_000_000))

        async def ask(number: int) -> None:
            await actor.generate(f"here-{next(numbers)}", self._request)

        try:
            for concurrent, calls, tokens in LOADS:
                self._replies_of(tokens)
                ways: dict[str, Way] = {
                    "in its actor": self._in_its_actor(concurrent, calls),
                    "in process": functools.partial(turn, ask, concurrent, calls),
                }
                found = await rounds(ways, calls, self._seconds)
                report(
                    f"{concurrent} concurrent, {tokens} tokens, beside an engine in this process", found, "in its actor"
                )
        finally:
            logging.getLogger("vllm").setLevel(logging.CRITICAL)  # it would tell at length that its engine is gone
            await actor.close()
            del type(actor._engine).__del__  # at the exit, when vLLM's modules are gone, it would fail at what is done


async def engines(told: argparse.Namespace) -> None:
    async with served() as (url, server), clients(urlsplit(url).port or 0) as asked_by:
        settle_interpreter()
        bench = Bench(server, asked_by, told.seconds)
        if told.part == "overhead":
            await bench.overhead()
        await bench.replicas()
        if told.part == "overhead":
            await bench.in_process()


class Sleeping:
    """A replica that takes so many calls at once, and a time for each; what comes on top waits in it."""

    def __init__(self, name: str, seconds: float, at_once: int) -> None:
        self.name, self.state, self.why = name, "ready", "is ready"
        self.in_flight, self.context, self.capacity = 0, 4096, None
        self._seconds = seconds
        self._drawn = random.Random(name)
        self._room = asyncio.Semaphore(at_once)

    async def generate(self, call_id: str, request: EngineRequest, on_piece: Any = None) -> EngineReply:
        async with self._room:
            await asyncio.sleep(self._seconds * self._drawn.uniform(0.5, 1.5))
        return EngineReply(())


async def simulation(seconds: float, at_once: int) -> None:
    print(
        f"\nsimulation: replicas that take {at_once} calls at once, of {seconds:g} s on the average; so many in flight"
    )
    for number in (1, 2, 4, 8, 16, 32, 64):
        engine = RayEngine()
        for one in range(number):
            replica: Any = Sleeping(f"vllm-{one}", seconds, at_once)
            engine.replicas.append(replica)
            engine.changed(replica)
        prompt = array("i", range(200))

        async def ask(call: int, engine: RayEngine = engine, prompt: array = prompt) -> None:
            request = EngineRequest(prompt, Sampling(max_tokens=100), affinity=f"rollout-{call % 997}")
            await engine.generate(request)

        began = time.process_time()
        calls = number * at_once * 32
        _, each = await rate(ask, number * at_once, calls)
        cpu = (time.process_time() - began) / calls
        most = number * at_once / seconds
        print(
            f"  {number:3} replicas: {each:9.1f} calls/s, {each / most:.1%} of the most; {cpu * 1e6:.0f} µs CPU a call",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["overhead", "replicas", "simulation"])
    parser.add_argument("--seconds", type=float, default=15.0, help="of measuring, for each table")
    parser.add_argument("--call", type=float, default=0.5, help="seconds of a simulated call")
    parser.add_argument("--at-once", type=int, default=16, help="calls in one simulated replica")
    told = parser.parse_args()
    if told.part != "simulation":
        uvloop.run(engines(told))  # this and the interpreter's settings as a server's process has them
    if told.part != "replicas":
        virtual.run(simulation(told.call, told.at_once))


if __name__ == "__main__":
    main()
