"""A replica's start in a real Ray: one that hangs is started anew, one that fails says why. No vLLM."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
import pytest_asyncio

ray = pytest.importorskip("ray")

from nemo_gym.engines import cluster  # noqa: E402
from nemo_gym.engines.replica import Replica  # noqa: E402
from nemo_gym.exchange.errors import ModelError  # noqa: E402

pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.asyncio(loop_scope="module")]


class Slow:
    """An engine whose first `hangs` starts never end."""

    def __init__(self, started: str, hangs: int) -> None:
        file = Path(started)
        file.write_text(file.read_text() + "x" if file.exists() else "x")
        if len(file.read_text()) <= hangs:
            time.sleep(3600)
        if hangs < 0:
            raise ValueError("no such model")

    async def describe(self):
        return {"context": 7}

    async def check(self):
        return 0

    async def close(self):
        pass


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def local_ray():
    asked_to_end = []
    before = signal.signal(signal.SIGTERM, lambda *_: asked_to_end.append(True))
    await cluster.connect("local", 4)
    yield asked_to_end
    await cluster.disconnect()
    signal.signal(signal.SIGTERM, before)


@pytest_asyncio.fixture(loop_scope="module", scope="module", autouse=True)
async def begun_anew(local_ray, tmp_path_factory):
    """A start whose first try hangs; it takes its time while the other tests run."""
    folder = tmp_path_factory.mktemp("begun-anew")
    one = replica(folder, hangs=1)
    # Half of it is what a start may take, an interpreter's on a busy machine included.
    yield one, asyncio.create_task(one.start(60)), folder / "started"
    await one.close()


def replica(tmp_path, hangs) -> Replica:
    handle = ray.remote(Slow).options(max_restarts=3).remote(str(tmp_path / "started"), hangs)
    return Replica("vllm-0", handle, restart_s=60)


async def test_whoever_has_a_ray_is_still_asked_to_end_in_its_own_way(local_ray):
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: local_ray == [True])
    assert signal.alarm(0) == 0, "the process would be aborted in seconds"


async def test_a_start_that_always_hangs_ends(local_ray, tmp_path):
    one = replica(tmp_path, hangs=9)
    with pytest.raises(RuntimeError, match="vllm-0 did not start within 4 s"):
        await one.start(4)
    await one.close()


async def test_a_start_that_fails_says_why(local_ray, tmp_path):
    one = replica(tmp_path, hangs=-1)
    with pytest.raises(RuntimeError, match=r"vllm-0 could not start: .*no such model"):
        await one.start(60)


class Mortal(Slow):
    """An engine that can be told to die."""

    async def die(self):
        os._exit(1)


async def test_one_that_dies_too_often_is_given_up_and_says_why(local_ray, tmp_path):
    handle = ray.remote(Mortal).options(max_restarts=-1).remote(str(tmp_path / "started"), 0)
    states = []
    one = Replica("vllm-0", handle, restart_s=300, restarts=1, on_change=lambda replica: states.append(replica.state))
    await one.start(300)
    with pytest.raises(ModelError, match=r"vllm-0 died .* and is restarting"):
        await one.ask("die")
    await until(lambda: one.state == "ready")
    with pytest.raises(ModelError, match="vllm-0 is given up: its engine ended 2 times within 600 s"):
        await one.ask("die")
    assert (one.state, one.restarts) == ("lost", 2)
    assert states == ["ready", "restarting", "ready", "lost"]
    with pytest.raises(ModelError, match="is given up"):
        await one.ask("check")
    # Ray may have begun the next start before it was told to leave it.
    assert (tmp_path / "started").read_text() in ("xx", "xxx")


async def test_a_restart_has_the_current_weights_before_it_is_ready(local_ray, tmp_path):
    handle = ray.remote(Mortal).options(max_restarts=-1).remote(str(tmp_path / "started"), 0)
    renewed = []

    async def renew(replica):
        renewed.append(replica.state)
        if len(renewed) == 2:
            raise ModelError(502, "backend", "not yet")

    one = Replica("vllm-0", handle, restart_s=300, renew=renew)
    await one.start(300)
    with pytest.raises(ModelError):
        await one.ask("die")
    await until(lambda: one.state == "ready")
    assert renewed == ["starting", "restarting", "restarting"]
    await one.close()


async def test_a_start_that_hangs_is_begun_anew(begun_anew):
    one, starting, started = begun_anew
    await starting
    assert (one.state, one.context) == ("ready", 7)
    assert started.read_text() == "xx"


async def until(done):
    async with asyncio.timeout(300):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
