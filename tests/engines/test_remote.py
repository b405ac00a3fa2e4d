"""An engine's requests and replies cross from server to server as they are."""

import math
from array import array

import pytest

from nemo_gym.engines import remote
from nemo_gym.engines.engine import EngineOutput, EngineReply, EngineRequest
from nemo_gym.engines.remote import Answer, Facts, RemoteEngine
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


def sending(answer):
    async def send(method, data):
        assert (method, remote.read_request(data)) == ("POST", REQUEST)
        return answer if isinstance(answer, bytes) else remote.encode(answer)

    return RemoteEngine(send, Facts("/model", 16, 0))


async def test_all_of_a_reply_comes_across():
    told, pieces = [], []
    reply = await sending(Answer(ATTEMPTS, REPLY)).generate(REQUEST, pieces.append, told.append)
    assert reply.outputs == REPLY.outputs
    assert reply.cached == 5
    assert reply.prompt_logprobs.typecode == "f"
    assert math.isnan(reply.prompt_logprobs[0])
    assert reply.prompt_logprobs[1] == -2.5
    assert told == list(ATTEMPTS)
    assert [(piece.index, piece.text, piece.tokens) for piece in pieces] == [
        (0, "a", TRACE),
        (1, "", TokenTrace(array("i"))),
    ]


async def test_a_failure_is_the_same_failure_here():
    error = ModelError(400, "invalid", "too long", code="context_length_exceeded", param="messages", retry_after=2.0)
    told = []
    with pytest.raises(ModelError) as raised:
        await sending(Answer(ATTEMPTS[:1], refused=remote.refused(error))).generate(REQUEST, None, told.append)
    for name in ("status", "kind", "message", "code", "param", "retry_after"):
        assert getattr(raised.value, name) == getattr(error, name)
    assert told == list(ATTEMPTS[:1])


@pytest.mark.parametrize("answer", [b"", b"{}", b"\xff" * 9, remote.encode({"attempts": []}), remote.encode(REPLY)])
async def test_what_is_no_answer_is_told(answer):
    with pytest.raises(ModelError) as raised:
        await sending(answer).generate(REQUEST)
    assert (raised.value.status, raised.value.kind) == (502, "backend")


@pytest.mark.parametrize("data", [b"", b"{}", b"\xc1", remote.encode({"prompt_ids": "x", "sampling": {}})])
def test_what_is_no_request_is_refused(data):
    with pytest.raises(ModelError, match="no request for an engine") as raised:
        remote.read_request(data)
    assert raised.value.status == 400
