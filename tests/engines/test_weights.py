"""One version in all replicas, whatever fails on the way. The replicas are scripted; live ones are in tests/live."""

import asyncio
import contextlib
import math

import pytest

pytest.importorskip("numpy")

from nemo_gym.engines.packed import ActorFailure
from nemo_gym.engines.weights import Weights
from nemo_gym.exchange.errors import ModelError

STAMP = (("model.safetensors", 1, 1),)


class Scripted:
    """An engine's weights: what each step does may be told beforehand."""

    def __init__(self, name="vllm-0", state="ready"):
        self.name, self.state = name, state
        self.version = 0
        self.steps = []
        self.restarts = []
        self.paused_until = -math.inf
        self.fails = {}
        self.stamp = STAMP
        self.probe = (-1.0, -2.0, -0.5)
        self._staged = None

    async def ask(self, method, step, *args):
        assert method == "weights"
        self.steps.append((step, *args))
        await asyncio.sleep(0)
        if step in self.fails:
            failure = self.fails[step]
            if isinstance(failure, Exception):
                raise failure
            if failure is not None:
                return failure
        if step == "stage":
            self._staged = args[0]
            return self.stamp
        if step == "load":
            self.version = args[0]
        return self.probe if step == "probe" else None

    def restart(self, why):
        self.state = "restarting"
        self.restarts.append(why)


def loaded_steps(replica):
    return [step for step, *_ in replica.steps]


async def test_all_stop_load_and_go_on():
    replicas = [Scripted("a"), Scripted("b")]
    weights = Weights(replicas, "/model", in_flight="keep")
    loaded = await weights.load("/new")
    assert (loaded.policy_version, loaded.replicas, weights.version) == (1, 2, 1)
    for replica in replicas:
        assert loaded_steps(replica) == ["stage", "pause", "load", "resume", "probe", "resume", "unstage"]
        assert ("pause", "keep") in replica.steps
        assert replica.version == 1
        assert replica.paused_until < math.inf
    assert weights.state == "serving"
    assert (await weights.load("/newer", 7, "abort")).policy_version == 7
    assert ("pause", "abort") in replicas[0].steps


async def test_no_call_begins_meanwhile():
    replica = Scripted()
    weights = Weights([replica], "/model")
    admitted = asyncio.Event()

    async def held(method, step, *args):
        if step == "load":
            assert weights.state == "loading"
            waiting = asyncio.create_task(weights.admitted())
            waiting.add_done_callback(lambda _: admitted.set())
            await asyncio.sleep(0.01)
            assert not admitted.is_set()
        return await Scripted.ask(replica, method, step, *args)

    replica.ask = held
    await weights.load("/new")
    await asyncio.wait_for(admitted.wait(), 30)


async def test_what_is_refused_stops_nothing():
    good, bad = Scripted("a"), Scripted("b")
    bad.fails["stage"] = ActorFailure(True, "there is no such folder")
    weights = Weights([good, bad], "/model")
    with pytest.raises(ModelError, match="path: /new: there is no such folder") as refused:
        await weights.load("/new")
    assert (refused.value.status, refused.value.param) == (400, "path")
    assert weights.version == 0
    assert "pause" not in loaded_steps(good) + loaded_steps(bad)


@pytest.mark.parametrize("version", [0, 3, 4])
async def test_versions_only_rise(version):
    weights = Weights([Scripted()], "/model")
    await weights.load("/four", 4)
    with pytest.raises(ModelError, match="policy_version: expected one above 4") as refused:
        await weights.load("/other", version)
    assert refused.value.status == 400
    assert (await weights.load("/four", 4)).seconds == 0.0  # asked again: it was done


async def test_one_that_cannot_load_is_restarted_and_the_others_serve():
    good, bad = Scripted("a"), Scripted("b")
    bad.fails["load"] = ActorFailure(False, "it broke")
    weights = Weights([good, bad], "/model")
    await weights.load("/new")
    assert (good.version, weights.version) == (1, 1)
    assert bad.restarts == ["new weights could not be loaded: it broke"]


async def test_if_none_can_load_all_have_the_old_version_again():
    replicas = [Scripted("a"), Scripted("b")]
    weights = Weights(replicas, "/model")
    await weights.load("/one")
    for replica in replicas:
        replica.fails["load"] = ActorFailure(True, "norm.weight is not finite")
        replica.steps.clear()

    asked = Scripted.ask

    async def once(self, method, step, *args):
        answer = await asked(self, method, step, *args)
        if step == "load":
            self.fails.pop("load", None)
        return answer

    for replica in replicas:
        replica.ask = once.__get__(replica)
    with pytest.raises(ModelError, match=r"norm\.weight is not finite") as refused:
        await weights.load("/two")
    assert refused.value.status == 400
    assert weights.version == 1
    for replica in replicas:
        assert (replica.version, replica.restarts) == (1, [])
        assert [step for step in replica.steps if step[0] in ("stage", "load")] == [
            ("stage", "/two"),
            ("load", 2),
            ("stage", "/one"),
            ("load", 1),
        ]


@pytest.mark.parametrize(
    ("probe", "words"), [((-1.0, math.nan, -0.5), "not finite"), ((-1.0, -2.9, -0.5), "do not agree")]
)
async def test_replicas_that_disagree_have_the_old_version_again(probe, words):
    replicas = [Scripted("a"), Scripted("b")]
    replicas[1].probe = probe
    weights = Weights(replicas, "/model")
    with pytest.raises(ModelError, match=words):
        await weights.load("/new")
    assert weights.version == 0
    assert [replica.version for replica in replicas] == [0, 0]
    assert weights.state == "serving"


async def test_one_that_restarts_gets_the_current_version_before_any_call():
    weights = Weights([Scripted()], "/model")
    await weights.load("/new", 5)
    fresh = Scripted("b", "restarting")
    await weights.renew(fresh)
    assert fresh.version == 5
    assert loaded_steps(fresh) == ["stage", "pause", "load", "resume", "unstage"]
    fresh.stamp = (("model.safetensors", 1, 2),)
    with pytest.raises(ModelError, match="version 5 have changed since"):
        await weights.renew(fresh)


async def test_a_fresh_one_of_the_first_version_has_it_already():
    fresh = Scripted()
    await Weights([fresh], "/model").renew(fresh)
    assert fresh.steps == []


async def test_asleep_calls_wait_and_new_weights_wake():
    replica = Scripted()
    weights = Weights([replica], "/model")
    await weights.sleep(2)
    assert (weights.state, replica.steps) == ("asleep", [("sleep", 2, "wait")])
    assert replica.paused_until == math.inf
    await weights.sleep(1)  # it is asleep
    fresh = Scripted("b", "restarting")
    await weights.renew(fresh)
    assert fresh.steps == [("sleep", 2, "wait")]  # the GPU is another's now
    await weights.load("/new")
    assert (weights.state, weights.version, replica.steps[2]) == ("serving", 1, ("wake", 2))
    await weights.sleep(2, "abort")
    replica.steps.clear()
    await weights.wake()
    assert weights.state == "serving"
    assert loaded_steps(replica) == ["wake", "stage", "pause", "load", "resume", "unstage"]  # level 2 kept none
    await weights.wake()


async def test_one_that_cannot_sleep_serves_on():
    replica = Scripted()
    replica.fails["sleep"] = ActorFailure(True, "level: the engine was started without it")
    weights = Weights([replica], "/model")
    with pytest.raises(ModelError, match="level"):
        await weights.sleep()
    await asyncio.wait_for(weights.admitted(), 30)
    assert weights.state == "serving"


async def test_two_at_once_come_one_after_the_other():
    weights = Weights([Scripted()], "/model")
    first, second = await asyncio.gather(weights.load("/one"), weights.load("/two"))
    assert {first.policy_version, second.policy_version} == {1, 2}


async def test_nobody_waits_for_one_that_never_answers():
    replica = Scripted()
    weights = Weights([replica], "/model", seconds=0.05)

    async def never(method, step, *args):
        if step == "pause":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            raise asyncio.CancelledError
        return await Scripted.ask(replica, method, step, *args)

    replica.ask = never
    with pytest.raises(ModelError, match="vllm-0 did not pause within"):
        await weights.load("/new")
    assert (weights.version, weights.state) == (0, "serving")
    assert replica.restarts  # nobody knows what it has
