"""An engine behind a URL over a scripted server: what it is asked on each route, and what is made of its answers."""

from __future__ import annotations

import asyncio
import json
from array import array
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nemo_gym.backends.link import Link
from nemo_gym.backends.provider import Provider
from nemo_gym.dialects import chat
from nemo_gym.engines.engine import EngineRequest
from nemo_gym.engines.http import HttpEngine
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.request import Sampling
from nemo_gym.web import client
from tests.scripted import Answer, ScriptedBackend

PROMPT = array("i", [1, 2, 3])
ASKED = EngineRequest(PROMPT, Sampling(temperature=0.5, stop=("x",), logit_bias={7: 2.0}, max_tokens=50, min_p=0.1))


def choice(text: str, ids: list[int], **more: Any) -> dict[str, Any]:
    logprobs = {"tokens": [str(n) for n in ids], "token_logprobs": [-0.5] * len(ids)}
    return {"index": 0, "text": text, "token_ids": ids, "logprobs": logprobs, "finish_reason": None, **more}


def reply(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"choices": list(choices), "usage": {"prompt_tokens": 3, "completion_tokens": 2}, **more}


def chunks(*said: dict[str, Any], cut: int | None = None) -> list[tuple[float, bytes]]:
    """Each event in two pieces, so that lines are torn."""
    data = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in said) + b"data: [DONE]\n\n"
    data = data[:cut]
    return [(0.0, data[at : at + 37]) for at in range(0, len(data), 37)]


@asynccontextmanager
async def engine(*answers: Answer, **options: Any) -> Any:
    given = iter(answers)
    backend = ScriptedBackend(lambda _: next(given))
    server = await asyncio.start_server(backend.handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield HttpEngine(Link(chat, Provider(), "k", 30.0), url, "m", **options), backend
    finally:
        server.close()
        await client.close()


async def test_ids_go_in_and_come_out() -> None:
    answer = Answer(reply(choice("ab", [4, 5], finish_reason="stop", stop_reason="x")))
    async with engine(answer, context=40) as (made, backend):
        got = await made.generate(ASKED)
        (request,) = backend.requests
    body = request.json()
    assert (request.path, body["prompt"], body["model"]) == ("/v1/completions", [1, 2, 3], "m")
    assert (body["max_tokens"], body["stop"], body["logit_bias"], body["min_p"]) == (37, ["x"], {"7": 2.0}, 0.1)
    assert (body["return_token_ids"], body["logprobs"], body["skip_special_tokens"]) == (True, 0, False)
    (output,) = got.outputs
    assert (output.tokens.ids, list(output.tokens.logprobs), output.text) == (array("i", [4, 5]), [-0.5, -0.5], "ab")
    assert (output.finish, output.stop_sequence, output.tokens.texts) == ("stop_sequence", "x", None)


async def test_the_generate_route_tells_versions_and_alternatives() -> None:
    tops = [{"token": "a", "logprob": -0.1}, {"token": "z", "logprob": -9999.0}]
    content = [{"token": "a", "logprob": -0.1, "top_logprobs": tops}] * 2
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
    said = choice("ab", [4, 5], finish_reason="length", logprobs={"content": content}, weight_versions=spans)
    asked = EngineRequest(PROMPT, Sampling(logprobs=2), guide={"json_object": True}, adapter="other")
    async with engine(Answer(reply(said)), route="generate", defaults={"top_k": 20}) as (made, backend):
        (output,) = (await made.generate(asked)).outputs
        (request,) = backend.requests
    body = request.json()
    assert (request.path, body["token_ids"], body["model"]) == ("/inference/v1/generate", [1, 2, 3], "other")
    assert (body["output_mode"], body["sampling_params"]["top_k"]) == ("text", 20)
    assert body["sampling_params"]["structured_outputs"] == {"json_object": True}
    assert output.tokens.versions == ((0, 3), (1, 4))
    assert output.tokens.top == ({"a": -0.1}, {"a": -0.1})
    assert output.finish == "length"


async def test_pieces_join_to_the_whole_however_the_stream_is_torn() -> None:
    said = [reply(choice("a", [4])), reply(choice("", [5])), reply(choice("bé", [6], finish_reason="stop")), reply()]
    pieces: list[Any] = []
    async with engine(Answer(chunks=chunks(*said))) as (made, backend):
        got = await made.generate(ASKED, pieces.append)
        assert backend.requests[0].json()["stream"] is True
    assert [(piece.text, list(piece.tokens.ids)) for piece in pieces] == [("a", [4]), ("", [5]), ("bé", [6])]
    (output,) = got.outputs
    assert (output.text, output.tokens.ids, output.finish) == ("abé", array("i", [4, 5, 6]), "stop")


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (Answer(reply(choice("a", [4], finish_reason="abort"))), 502, "'abort'"),  # A19
        (Answer(reply(choice("a", [4]))), 502, "before it was whole"),
        (Answer(reply()), 502, "before it was whole"),
        (Answer({"choices": 7}), 502, "could not be read"),
        (Answer(chunks=chunks(reply(choice("a", [4])), cut=200)), 502, "before it was whole"),
        (Answer(chunks=chunks({"error": {"message": "it broke", "code": 500}})), 502, "it broke"),
        (Answer({"error": {"message": "temperature is bad"}}, 400), 400, "temperature is bad"),
        (Answer(reply(choice("a", [4], logprobs={"token_logprobs": [-1.0] * 3}, finish_reason="stop"))), 502, "number"),
    ],
)
async def test_what_is_not_whole_has_failed(answer: Answer, status: int, words: str) -> None:
    tries: list[Any] = []
    async with engine(answer) as (made, _):
        with pytest.raises(ModelError, match=words) as failed:
            await made.generate(ASKED, lambda _: None, tries.append)
    assert failed.value.status == status
    assert [one.error for one in tries] == [failed.value.kind]


async def test_a_prompt_that_does_not_fit_is_not_sent() -> None:  # A12
    async with engine(context=3) as (made, backend):
        with pytest.raises(ModelError, match="maximum context length is 3 tokens, and the prompt has 3") as failed:
            await made.generate(ASKED)
        assert backend.requests == []
    assert failed.value.code == "context_length_exceeded"


async def test_log_probs_of_the_prompt_are_its_own_tokens() -> None:
    given = [None, {"2": {"logprob": -1.5}, "9": {"logprob": -0.1}}, {"3": {"logprob": -2.5}}]
    answer = Answer(reply(choice("a", [4], finish_reason="stop", prompt_logprobs=given)))
    async with engine(answer) as (made, backend):
        got = await made.generate(EngineRequest(PROMPT, Sampling(), prompt_logprobs=True), lambda _: None)
        assert backend.requests[0].json()["stream"] is False
    assert str(got.prompt_logprobs[0]) == "nan"
    assert list(got.prompt_logprobs[1:]) == [-1.5, -2.5]


async def test_a_server_of_text_is_asked_with_what_every_server_knows() -> None:
    asked = EngineRequest(PROMPT, Sampling(temperature=1.0, max_tokens=5), prompt_text="abc")
    said = {"index": 0, "text": "d", "finish_reason": "stop"}
    async with engine(Answer(reply(said)), route="text") as (made, backend):
        got = await made.generate(asked)
        body = backend.requests[0].json()
    assert body == {"model": "m", "stream": False, "prompt": "abc", "temperature": 1.0, "max_tokens": 5}
    assert not made.takes_ids
    assert got.outputs[0].tokens.ids is None
    assert (got.usage.prompt, got.usage.completion) == (3, 2)


@pytest.mark.parametrize(
    ("answer", "gives"),
    [
        (Answer(reply(choice("a", [4], finish_reason="length", prompt_token_ids=[0]))), True),
        (Answer(reply({"index": 0, "text": "a", "finish_reason": "length"})), False),
        (Answer({"error": {"message": "prompt: expected a string"}}, 422), False),
        (Answer({"error": {"message": "no"}}, 404), None),
    ],
)
async def test_whether_a_route_gives_ids_is_asked(answer: Answer, gives: bool | None) -> None:
    async with engine(answer) as (made, _):
        assert await made.gives() is gives
