"""What the way to an engine costs, and what more replicas give.

    python -m benchmarks.engines overhead      # a call over HTTP beside the same engine, asked in its own actor
    python -m benchmarks.engines in-process    # an engine of the same kind in this process
    python -m benchmarks.engines replicas      # two replicas beside one
    python -m benchmarks.engines simulation    # 1 to 64 replicas that only sleep: what the pool itself loses

All but the last start vLLM on the embedded model. Replies are of a fixed length, so all ways do the same
work; the ways take turns, several times, and the median of the turns counts, since a machine is never quiet. What a
call costs in this process (the server, its client and Ray's own threads) is told as CPU besides, which load hardly
changes. The simulation's clock jumps from event to event, so that it shows the choices alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from nemo_gym.engines.deployment import Deployment
from nemo_gym.engines.engine import EngineReply, EngineRequest
from nemo_gym.engines.ray_engine import RayEngine
from nemo_gym.engines.vllm_actor import VllmActor
from nemo_gym.exchange.parts import Message, Text
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.model_server.app import ModelApp
from nemo_gym.web.peers import ServerClient
from nemo_gym.web.service import ServerContext
from responses_api_models.local_vllm_model.app import LocalVLLMModel, LocalVLLMModelConfig
from tests.pool import virtual
from tests.serving import serving

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny_policy"
NEVER = {0: -100.0, 2: -100.0}
"""No end token is drawn: replies have the length that was asked for."""
ARGS = {"model": str(MODEL), "dtype": "float32", "enforce_eager": True, "block_size": 32, "max_model_len": 1024}
QUESTION = "What is the weather in Paris? Tell me in a few words, and then what I should wear."

Ask = Callable[[int], Awaitable[Any]]


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


class Timed(VllmActor):
    """An actor that asks its own engine, as fast as it can."""

    async def rate(self, ids: np.ndarray, sampling: Sampling, concurrent: int, calls: int) -> tuple[float, float]:
        run = time.monotonic_ns()
        return await rate(lambda number: self.generate(f"bench-{run}-{number}", ids, sampling), concurrent, calls)


@contextlib.asynccontextmanager
async def served(replicas: int) -> AsyncIterator[tuple[str, LocalVLLMModel]]:
    with tempfile.TemporaryDirectory() as captures:
        config = LocalVLLMModelConfig(
            name="policy_model",
            model=str(MODEL),
            num_gpus=0,
            num_replicas=replicas,
            engine_args={"max_model_len": 1024},
            start_timeout_s=3000,
        )
        context = ServerContext(
            name="policy_model",
            kind="responses_api_models",
            implementation="local_vllm_model",
            settings={},
            run_id="run1",
            admin_key="admin",
            capture={"dir": captures, "durability": "fsync"},
        )
        server = LocalVLLMModel(config=config, server_client=ServerClient({}))
        async with serving(ModelApp(server, context)) as url, aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{url}/ready") as ready:
                    if ready.status == 200:
                        break
                await asyncio.sleep(0.5)
            yield url, server


def over_http(session: aiohttp.ClientSession, url: str, tokens: int) -> Ask:
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": tokens,
        "temperature": 1.0,
        "logit_bias": {str(token): bias for token, bias in NEVER.items()},
    }

    async def ask(number: int) -> None:
        async with session.post(f"{url}/ng-rollout/r{number}/v1/chat/completions", json=body) as answer:
            reply = await answer.json()
            assert reply["usage"]["completion_tokens"] == tokens, reply

    return ask


async def overhead(tokens: int, calls: int, turns: int) -> None:
    Deployment.actor = Timed
    sampling = Sampling(temperature=1.0, max_tokens=tokens, logit_bias=NEVER)
    async with served(1) as (url, server), aiohttp.ClientSession() as session:
        backend: Any = server.backend
        ids = backend._renderer.ids(ModelRequest((Message("user", (Text(QUESTION),)),)))
        assert server._deployment is not None
        engine = server._deployment.engine
        (replica,) = engine.replicas
        ask = over_http(session, url, tokens)

        async def through_ray(number: int) -> None:
            await engine.generate(EngineRequest(ids, sampling))

        prompt = np.frombuffer(ids, dtype=np.int32)
        for concurrent in (1, 32):
            ways: dict[str, list[tuple[float, float, float]]] = {"in its actor": [], "over Ray": [], "over HTTP": []}
            count = calls if concurrent > 1 else max(8, calls // 8)
            for turn in range(turns + 1):
                asked = {
                    "in its actor": replica.ask("rate", prompt, sampling, concurrent, count),
                    "over Ray": rate(through_ray, concurrent, count),
                    "over HTTP": rate(ask, concurrent, count),
                }
                for way, figures in asked.items():
                    began = time.process_time()
                    seconds, each = await figures
                    cpu = (time.process_time() - began) / count
                    if turn:  # the first one warms
                        ways[way].append((seconds, each, cpu))
            report(concurrent, ways, "in its actor")


def report(concurrent: int, ways: dict[str, list[tuple[float, float, float]]], beside: str) -> None:
    medians = {
        way: tuple(statistics.median(column) for column in zip(*turns, strict=True)) for way, turns in ways.items()
    }
    base_s, base_rate, _ = medians[beside]
    print(f"\n{concurrent} concurrent")
    for way, (seconds, calls, cpu) in medians.items():
        print(
            f"  {way:14} {seconds * 1e3:8.1f} ms a call ({(seconds - base_s) * 1e3:+7.1f})"
            f"  {calls:8.1f} calls/s ({calls / base_rate - 1:+.1%})  {cpu * 1e3:6.2f} ms of CPU here"
        )


async def in_process(tokens: int, calls: int) -> None:
    actor = VllmActor(ARGS, 0.0)
    sampling = Sampling(temperature=1.0, max_tokens=tokens, logit_bias=NEVER)
    ids = np.arange(3, 63, dtype=np.int32)
    try:
        for concurrent in (1, 32):
            count = calls if concurrent > 1 else max(8, calls // 8)
            for turn in range(2):
                seconds, each = await rate(
                    lambda number: actor.generate(f"{concurrent}-{turn}-{number}", ids, sampling),  # noqa: B023
                    concurrent,
                    count,
                )
            print(f"in process, {concurrent:2} concurrent: {seconds * 1e3:8.1f} ms a call  {each:8.1f} calls/s")
    finally:
        await actor.close()


async def replicas(tokens: int, calls: int, turns: int) -> None:
    for number in (1, 2):
        async with served(number) as (url, _), aiohttp.ClientSession() as session:
            ask = over_http(session, url, tokens)
            found = [await rate(ask, 32, calls) for _ in range(turns + 1)][1:]
        seconds, each = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{number} replica(s), 32 concurrent: {seconds * 1e3:8.1f} ms a call  {each:8.1f} calls/s")


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
    print(f"replicas that take {at_once} calls at once, {seconds:g} s each on the average; so many in flight")
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
            f"  {number:3} replicas: {each:9.1f} calls/s, {each / most:.1%} of the most; {cpu * 1e6:.0f} µs of CPU each"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["overhead", "in-process", "replicas", "simulation"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--calls", type=int, default=256)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a simulated call")
    parser.add_argument("--at-once", type=int, default=16, help="calls in one simulated replica")
    told = parser.parse_args()
    parts: dict[str, Callable[[], Any]] = {
        "overhead": lambda: overhead(told.tokens, told.calls, told.turns),
        "in-process": lambda: in_process(told.tokens, told.calls),
        "replicas": lambda: replicas(told.tokens, told.calls, told.turns),
        "simulation": lambda: simulation(told.seconds, told.at_once),
    }
    run = virtual.run if told.part == "simulation" else asyncio.run
    run(parts[told.part]())


if __name__ == "__main__":
    main()
