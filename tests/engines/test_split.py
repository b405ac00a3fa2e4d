"""Prompts computed by one pool, replies sampled by another: who is asked for what, and what becomes of it."""

import asyncio
from array import array

import pytest

pytest.importorskip("numpy")

from nemo_gym.engines.engine import EngineOutput, EnginePiece, EngineReply, EngineRequest
from nemo_gym.engines.split import SplitEngine
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.reply import TokenTrace
from nemo_gym.exchange.request import Sampling

IDS = array("i", [1, 2, 3])
SAMPLING = Sampling(max_tokens=8, stop=("x",), seed=5, logprobs=2)
REQUEST = EngineRequest(IDS, SAMPLING, {"json": {}}, True, (7,), affinity="r1")
HANDLE = {"remote_engine_id": "p", "do_remote_prefill": True}


class Scripted:
    """A replica that keeps what it is asked, and replies with what its name says."""

    def __init__(self, name, *failures, handoff=None):
        self.name, self.state, self.why, self.handoff = name, "ready", "is ready", handoff
        self.failures, self.asked = list(failures), []
        self.in_flight, self.context, self.capacity = 0, 64, None
        self.during = None

    async def generate(self, call_id, request, on_piece=None):
        self.asked.append(request)
        if self.during is not None:
            await self.during()
        if self.failures:
            raise self.failures.pop(0)
        if on_piece is not None:
            on_piece(EnginePiece(0, self.name, TokenTrace()))
        tokens = TokenTrace(array("i", [9]), array("f", [-1.0]), ((0, self.engine.weights.version),))
        prompt = array("f", [0.0, -1.0, -2.0]) if request.prompt_logprobs else None
        cached = 2 if self.name.startswith("prefill") else 3
        outputs = tuple(EngineOutput(place, tokens, self.name, "length") for place in range(request.sampling.n))
        return EngineReply(outputs, cached, prompt, handoff=self.handoff)


def pair(prefill=None, decode=None, **options):
    prefill = prefill or Scripted("prefill-0", handoff=HANDLE)
    decode = decode or Scripted("vllm-1", handoff={"again": True})
    engine = SplitEngine(**options)
    for replica in (prefill, decode):
        replica.engine = engine
        engine.replicas.append(replica)
        engine.changed(replica)
    return engine, prefill, decode


async def test_the_prompt_is_computed_by_one_and_gone_on_with_by_another():  # D1
    engine, prefill, decode = pair()
    told = []
    reply = await engine.generate(REQUEST, on_attempt=told.append)
    (first,), (second,) = prefill.asked, decode.asked
    assert (first.prompt_ids, second.prompt_ids) == (IDS, IDS)
    assert (first.sampling.max_tokens, first.sampling.stop, first.ends, first.guide) == (1, (), (), None)
    assert first.endless
    assert not second.endless
    assert first.handoff == {"do_remote_decode": True, "do_remote_prefill": False}
    assert second.handoff == {"do_remote_decode": False, **HANDLE}
    assert (second.sampling, second.guide, second.ends) == (SAMPLING, {"json": {}}, (7,))
    assert [output.text for output in reply.outputs] == ["vllm-1"]
    assert [attempt.replica for attempt in told] == ["prefill-0", "vllm-1"]


async def test_nothing_of_the_handoff_is_replied_and_what_was_cached_is_prefill_s():  # D2
    engine, prefill, decode = pair()
    reply = await engine.generate(REQUEST)
    assert (reply.handoff, reply.cached) == (None, 2)
    assert reply.prompt_logprobs == array("f", [0.0, -1.0, -2.0])
    assert (prefill.asked[0].prompt_logprobs, decode.asked[0].prompt_logprobs) == (True, False)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_of_one_token_is_prefill_s_whole(streamed):  # D2
    engine, prefill, decode = pair()
    one = EngineRequest(IDS, Sampling(max_tokens=1, stop=("x",), n=2), ends=(7,))
    pieces = []
    reply = await engine.generate(one, pieces.append if streamed else None)
    assert (prefill.asked, decode.asked) == ([one], [])
    assert ([output.index for output in reply.outputs], reply.handoff) == ([0, 1], None)
    assert bool(pieces) == streamed


async def test_only_the_reply_is_relayed():
    engine, _, _ = pair()
    pieces = []
    await engine.generate(REQUEST, pieces.append)
    assert [piece.text for piece in pieces] == ["vllm-1"]


async def test_each_choice_has_a_prompt_of_its_own():
    engine, prefill, decode = pair()
    several = EngineRequest(IDS, Sampling(max_tokens=8, n=3, seed=5))
    pieces = []
    reply = await engine.generate(several, pieces.append)
    assert len(prefill.asked) == len(decode.asked) == 3
    assert sorted(one.sampling.seed for one in decode.asked) == [5, 6, 7]
    assert {one.sampling.n for one in decode.asked} == {1}
    assert [output.index for output in reply.outputs] == [piece.index for piece in pieces] == [0, 1, 2]


async def test_both_at_once_find_each_other():  # D2
    engine, prefill, decode = pair(order="decode_first", handoff={"remote_bootstrap_addr": "http://10.0.0.7:8998"})
    met = asyncio.Barrier(2)
    prefill.during = decode.during = met.wait
    reply = await asyncio.wait_for(engine.generate(REQUEST), 5)
    (first,), (second,) = prefill.asked, decode.asked
    assert first.handoff["transfer_id"] == second.handoff["transfer_id"]
    assert (first.handoff["do_remote_decode"], second.handoff["do_remote_prefill"]) == (True, True)
    assert second.handoff["remote_bootstrap_addr"] == "http://10.0.0.7:8998"
    assert (reply.outputs[0].text, reply.cached, reply.handoff) == ("vllm-1", 2, None)


async def test_a_prompt_that_fails_ends_the_call():
    refused = ModelError(400, "invalid", "too long")
    engine, _, decode = pair(Scripted("prefill-0", refused), order="decode_first")
    ended = asyncio.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    decode.during = forever
    with pytest.raises(ModelError, match="too long"):
        await engine.generate(REQUEST)
    assert ended.is_set()
    engine, _, decode = pair(Scripted("prefill-0", refused))
    with pytest.raises(ModelError, match="too long"):
        await engine.generate(REQUEST)
    assert decode.asked == []


async def test_a_prompt_of_other_weights_is_computed_again():
    engine, prefill, decode = pair()

    real = engine._answer

    async def later(pool, request, *more):
        if pool is engine.pool and len(prefill.asked) == 1:
            engine.weights.version = 1
        return await real(pool, request, *more)

    engine._answer = later
    told = []
    await engine.generate(REQUEST, on_attempt=told.append)
    assert (len(prefill.asked), len(decode.asked)) == (2, 1)
    assert [attempt.error for attempt in told] == [None, "invalid", None, None]


async def test_a_pool_that_is_lost_says_so():
    engine, prefill, decode = pair()
    prefill.state, prefill.why = "lost", "is given up"
    engine.changed(prefill)
    with pytest.raises(ModelError, match="no engine replica is left: prefill-0 is given up"):
        await engine.generate(REQUEST)
    assert decode.asked == []


async def test_a_prompt_without_room_is_refused():
    engine, prefill, _ = pair()
    with pytest.raises(ModelError, match="maximum context length is 64"):
        await engine.generate(EngineRequest(array("i", range(64)), SAMPLING))
    assert prefill.asked == []
    await engine.generate(EngineRequest(array("i", range(63)), SAMPLING))
    assert prefill.asked[0].endless is False
