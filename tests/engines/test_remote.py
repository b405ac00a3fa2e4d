"""An engine's requests and replies cross from server to server as they are."""

import math
from array import array

import pytest

from nemo_gym.engines import remote
from nemo_gym.engines.engine import EngineOutput, EnginePiece, EngineReply, EngineRequest
from nemo_gym.engines.packed import packed
from nemo_gym.engines.remote import Answer, Facts, Frame, RemoteEngine
from nemo_gym.exchange.call import Attempt
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.reply import TokenTrace
from nemo_gym.exchange.request import Sampling

REQUEST = EngineRequest(
    array("i", [1, 2, 2**31 - 1]),
    Sampling(temperature=0.1, stop=("a", "ü"), logit_bias={5: -100.0}, n=2, logprobs=3),
    guide={"json": {"type": "object"}},
    prompt_logprobs=True,
    affinity="r1",
)
TRACE = TokenTrace(array("i", [7, 2]), array("f", [-0.1, -1e-30]), ((0, 3), (1, 4)), ("a", ""), ({"a": -0.1}, {}))
REPLY = EngineReply(
    (EngineOutput(0, TRACE, "a", "stop_sequence", "b"), EngineOutput(1, TokenTrace(array("i")), "", "length")),
    5,
    array("f", [math.nan, -2.5]),
)
ATTEMPTS = (Attempt("vllm-0", 1.5, 2.5, "unreachable"), Attempt("vllm-1", 2.5, 3.5))


def sending(answer, *pieces, cut=1):
    """`cut`: so many bytes at a time, where it comes in pieces."""

    async def send(method, data):
        assert (method, remote.read_request(data)) == ("POST", REQUEST)
        return answer if isinstance(answer, bytes) else packed(answer)

    async def flow(data):
        assert remote.read_request(data) == REQUEST
        frames = [Frame(piece) for piece in pieces] + [Frame(answer=answer)] * isinstance(answer, Answer)
        whole = b"".join(map(remote.framed, frames)) if frames else answer
        for start in range(0, len(whole), cut):
            yield whole[start : start + cut]

    return RemoteEngine(send, flow, Facts("/model", 16, 0))


async def test_all_of_a_reply_comes_across():
    told = []
    reply = await sending(Answer(ATTEMPTS, REPLY)).generate(REQUEST, on_attempt=told.append)
    assert reply.outputs == REPLY.outputs
    assert reply.cached == 5
    assert reply.prompt_logprobs.typecode == "f"
    assert math.isnan(reply.prompt_logprobs[0])
    assert reply.prompt_logprobs[1] == -2.5
    assert told == list(ATTEMPTS)


@pytest.mark.parametrize("cut", [1, 7, 10**6])
async def test_pieces_come_across_before_the_answer(cut):
    given = [EnginePiece(0, "", TokenTrace(array("i", [7]), array("f", [-0.1]))), EnginePiece(0, "a", TRACE)]
    told, pieces = [], []
    engine = sending(Answer(ATTEMPTS, REPLY), *given, cut=cut)
    reply = await engine.generate(REQUEST, pieces.append, told.append)
    assert reply.outputs == REPLY.outputs
    assert told == list(ATTEMPTS)
    assert pieces == given


async def test_an_answer_that_ends_before_it_is_whole_is_told():
    piece = EnginePiece(0, "a", TRACE)
    for cut_short in (remote.framed(Frame(piece)), remote.framed(Frame(answer=Answer(ATTEMPTS, REPLY)))[:-1]):
        with pytest.raises(ModelError, match="before it was whole") as raised:
            await sending(cut_short).generate(REQUEST, lambda _: None)
        assert (raised.value.status, raised.value.kind) == (502, "backend")
    with pytest.raises(ModelError, match="no answer of theirs"):
        await sending(b"\0\0\0\1\xc1").generate(REQUEST, lambda _: None)


async def test_a_failure_is_the_same_failure_here():
    error = ModelError(400, "invalid", "too long", code="context_length_exceeded", param="messages", retry_after=2.0)
    told = []
    with pytest.raises(ModelError) as raised:
        await sending(Answer(ATTEMPTS[:1], refused=remote.refused(error))).generate(REQUEST, None, told.append)
    with pytest.raises(ModelError, match="too long"):
        await sending(Answer((), refused=remote.refused(error))).generate(REQUEST, lambda _: None)
    for name in ("status", "kind", "message", "code", "param", "retry_after"):
        assert getattr(raised.value, name) == getattr(error, name)
    assert told == list(ATTEMPTS[:1])


@pytest.mark.parametrize("answer", [b"", b"{}", b"\xff" * 9, packed({"attempts": []}), packed(REPLY)])
async def test_what_is_no_answer_is_told(answer):
    with pytest.raises(ModelError) as raised:
        await sending(answer).generate(REQUEST)
    assert (raised.value.status, raised.value.kind) == (502, "backend")


@pytest.mark.parametrize("data", [b"", b"{}", b"\xc1", packed({"prompt_ids": "x", "sampling": {}})])
def test_what_is_no_request_is_refused(data):
    with pytest.raises(ModelError, match="no request for an engine") as raised:
        remote.read_request(data)
    assert raised.value.status == 400
