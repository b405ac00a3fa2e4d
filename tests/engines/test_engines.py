"""What needs no Ray: parameters, placement, routing, retries, and replies out of the actor's arrays."""

import asyncio
import os
import sys
from array import array

import pytest

pytest.importorskip("numpy")

from nemo_gym.engines.deployment import Deployment
from nemo_gym.engines.engine import EnginePiece, EngineReply, EngineRequest
from nemo_gym.engines.packed import ActorFailure, ActorOutput, ActorReply, Asked, answered, asked, packed
from nemo_gym.engines.placement import placement
from nemo_gym.engines.ray_engine import RayEngine
from nemo_gym.engines.replica import ABORTED, _reply
from nemo_gym.engines.sampling import engine_fields
from nemo_gym.engines.vllm_actor import _alternatives, _joined
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.reply import TokenTrace
from nemo_gym.exchange.request import Sampling

REQUEST = EngineRequest(array("i", [1, 2, 3]), Sampling(), affinity="r1")


class Scripted:
    """A replica that answers as told: a ModelError is raised, anything else returned."""

    def __init__(self, name, *answers, state="ready"):
        self.name, self.answers, self.state, self.why = name, list(answers), state, f"is {state}"
        self.in_flight, self.context, self.calls, self.capacity = 0, 16, 0, None
        self.engine = None

    async def generate(self, call_id, request, on_piece=None):
        self.calls += 1
        answer = self.answers.pop(0)
        if isinstance(answer, ModelError):
            if answer.kind == "unreachable":
                self.become("restarting")
            raise answer
        return answer

    async def check(self):
        return self.answers.pop(0)

    def become(self, state):
        self.state, self.why = state, f"is {state}"
        self.engine.changed(self)


def engine(*replicas, **options):
    made = RayEngine(**options)
    made.replicas.extend(replicas)
    for replica in replicas:
        replica.engine = made
        made.changed(replica)
    return made


def test_what_was_not_asked_for_is_the_model_s_default():
    fields = engine_fields(Sampling(temperature=0.5, stop=("x",)), 100, {"temperature": 0.7, "top_k": 20})
    assert (fields["temperature"], fields["top_k"], fields["stop"]) == (0.5, 20, ["x"])
    assert fields["max_tokens"] == 100
    assert "seed" not in fields
    assert fields["logprobs"] == 0


@pytest.mark.parametrize(("asked", "given"), [(None, 50), (10, 10), (500, 50)])
def test_a_completion_fits_the_context(asked, given):
    assert engine_fields(Sampling(max_tokens=asked), 50, {})["max_tokens"] == given


def test_placements():
    assert placement(1, 1, 0).bundles == ({"CPU": 1.0},)
    one = placement(1, 1, 1.0)
    assert (one.bundles, one.actor_gpus) == (({"CPU": 1.0, "GPU": 1.0},), 1.0)
    many = placement(2, 2, 1.0)
    assert len(many.bundles) == 4
    assert many.actor_gpus == 0
    assert many.engine_args["distributed_executor_backend"] == "ray"
    assert (many.strategy, placement(2, 1, 1.0, "spread").strategy) == ("PACK", "SPREAD")


LOST = ModelError(503, "unreachable", "the engine is restarting")


async def test_a_lost_call_is_asked_elsewhere_and_both_tries_are_told():
    reply = EngineReply(())
    told = []
    own = engine(Scripted("a", reply), Scripted("b", reply)).pool
    first = (await own.take("r1", until=float("inf"))).replica.name  # the rollout's own
    bad, good = Scripted(first, LOST), Scripted("ab".replace(first, ""), reply)
    assert await engine(bad, good).generate(REQUEST, on_attempt=told.append) is reply
    assert [(attempt.replica, attempt.error) for attempt in told] == [(bad.name, "unreachable"), (good.name, None)]


async def test_tries_are_bounded():
    with pytest.raises(ModelError, match="restarting"):
        await engine(Scripted("a", LOST), Scripted("b", LOST), tries=2).generate(
            REQUEST, on_attempt=(told := []).append
        )
    assert [attempt.error for attempt in told] == ["unreachable"] * 2
    assert {attempt.replica for attempt in told} == {"a", "b"}


async def test_a_call_waits_for_a_replica_that_restarts():
    reply = EngineReply(())
    replica = Scripted("a", LOST, reply)
    whole = engine(replica)
    asyncio.get_running_loop().call_later(0.05, replica.become, "ready")
    answer = await whole.generate(REQUEST)
    assert (answer, replica.calls) == (reply, 2)


async def test_waiting_is_bounded():
    with pytest.raises(ModelError, match="no replica is ready") as waited:
        await engine(Scripted("a", state="restarting"), seconds=0.05).generate(REQUEST)
    assert (waited.value.status, waited.value.retry_after) == (503, 5.0)
    with pytest.raises(ModelError, match="no engine replica is left: a is lost"):
        await engine(Scripted("a", state="lost")).generate(REQUEST)


async def test_what_was_passed_on_is_not_asked_for_again():  # A7, A8
    class Half(Scripted):
        async def generate(self, call_id, request, on_piece=None):
            on_piece(EnginePiece(0, "half of it", TokenTrace()))
            return await super().generate(call_id, request)

    pieces, told = [], []
    with pytest.raises(ModelError, match="restarting"):
        await engine(Half("a", LOST), Half("b", LOST)).generate(REQUEST, pieces.append, told.append)
    assert (len(pieces), len(told)) == (1, 1)


async def test_a_call_that_was_ended_for_new_weights_is_asked_anew():
    reply = EngineReply(())
    ended = ModelError(503, "overloaded", "ended", code=ABORTED, retry_after=0.0)
    replica = Scripted("a", ended, reply)
    told = []
    assert await engine(replica).generate(REQUEST, on_attempt=told.append) is reply
    assert [attempt.error for attempt in told] == ["overloaded", None]


async def test_a_refused_request_is_not_asked_again():
    replica = Scripted("a", ModelError(400, "invalid", "temperature must be non-negative"))
    with pytest.raises(ModelError, match="temperature"):
        await engine(replica).generate(REQUEST)
    assert replica.calls == 1


async def test_a_prompt_beyond_the_context_is_told_by_its_code():  # A12
    with pytest.raises(ModelError) as refused:
        await engine(Scripted("a")).generate(EngineRequest(array("i", range(16)), Sampling()))
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert "16 tokens" in refused.value.message


async def test_ready_means_that_every_replica_answers():
    assert await engine(Scripted("a", 4), Scripted("b", 3)).check() == 3
    with pytest.raises(ModelError, match="b is restarting"):
        await engine(Scripted("a", 4), Scripted("b", state="restarting")).check()


def output(finish="stop", stop=None):
    ids, logprobs = array("i", [7, 2]), array("f", [-0.25, -1.5])
    return ActorReply((ActorOutput(0, ids, logprobs, "hi", finish, stop, ((0, 3),)),), 5)


def test_a_request_arrives_as_it_was_asked():
    sampling = Sampling(temperature=0.7, logit_bias={5: -100.0}, stop=("END", "é"), n=2, logprobs=3, seed=11)
    guide, handoff = {"json": {"type": "object"}}, {"do_remote_decode": True, "remote_block_ids": [1, 2]}
    request = EngineRequest(
        array("i", [1, 2**31 - 1]), sampling, guide, True, (2, 7), "french", None, "r1", endless=True, handoff=handoff
    )
    assert asked(packed(Asked("c", request))) == Asked("c", request)


def test_an_answer_arrives_as_it_was_given():
    nan = float("nan")
    told = ActorReply(output("length").outputs, 5, array("f", [nan, -0.5]), {"remote_host": "h"})
    arrived = answered(packed(told))
    assert (arrived.outputs, arrived.cached, arrived.handoff) == (told.outputs, 5, {"remote_host": "h"})
    assert arrived.prompt_logprobs.tobytes() == told.prompt_logprobs.tobytes()
    assert answered(packed(ActorFailure(True, "no"))) == ActorFailure(True, "no")


def test_pieces_of_a_choice_are_one():
    (one,), (last,) = output(None).outputs, output("stop", "END").outputs
    whole = _joined([one, last])
    assert (whole.ids, whole.text, whole.finish) == (array("i", [7, 2, 7, 2]), "hihi", "stop")
    assert whole.logprobs == array("f", [-0.25, -1.5] * 2)


def test_arrays_come_out_as_they_went_in():
    reply = _reply(output())
    assert reply.cached == 5
    assert reply.outputs[0].tokens.ids == array("i", [7, 2])
    assert reply.outputs[0].tokens.logprobs == array("f", [-0.25, -1.5])
    assert _reply(output(stop="END")).outputs[0].finish == "stop_sequence"
    assert _reply(output(stop="END")).outputs[0].stop_sequence == "END"
    assert _reply(output(stop=2)).outputs[0].finish == "stop"


@pytest.mark.parametrize(("finish", "kind"), [("abort", "overloaded"), ("error", "backend"), (None, "backend")])
def test_an_engine_that_did_not_finish_has_failed(finish, kind):  # A19
    with pytest.raises(ModelError) as failed:
        _reply(output(finish))
    assert failed.value.kind == kind


def test_impossible_alternatives_are_left_out():
    class Flat:
        start_indices, end_indices = [0], [4]
        decoded_tokens, logprobs = ["a", "a", "b", "c"], [-0.1, -0.1, -2.5, float("-inf")]

    assert _alternatives(Flat, 0) == {"a": -0.1, "b": -2.5}


@pytest.mark.skipif(sys.platform != "linux", reason="the cores that a process may use are asked of Linux")
def test_replicas_of_one_machine_share_its_cores(monkeypatch):
    def threads(**settings):
        return Deployment({"model": "m"}, **{"gpus": 0.0} | settings)._threads()

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert threads(replicas=2) == 4
    assert threads(replicas=2, tensor_parallel=2) == 2
    assert threads(replicas=1, spare=15) == 1
    assert [threads(), threads(replicas=2, gpus=1.0), threads(replicas=2, ray_address="auto")] == [None] * 3
