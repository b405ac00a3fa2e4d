"""What an engine behind HTTP is told, and what it says: vLLM's generate route, and `/v1/completions` with ids or text.

A chunk of a stream and a whole answer have one shape on either route, so both are read by the same few lines. Special
tokens stay in the text: parsers need them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ..exchange.errors import ModelError
from ..exchange.reply import Finish, TokenTrace
from .engine import EnginePiece, EngineRequest

Route = Literal["completions", "generate", "text"]
"""`text`: `/v1/completions` of a server that takes and gives text alone."""

PATHS: dict[Route, str] = {"completions": "/completions", "generate": "/inference/v1/generate", "text": "/completions"}
"""The generate route is beside `/v1`, the others are below it."""

_PUBLISHED = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty")
_VLLM = ("top_k", "min_p")
_FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length"}
_NEVER = -9999.0
"""What servers write for a token that cannot be sampled."""


def body(
    route: Route, model: str, request: EngineRequest, room: int | None, stream: bool, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Args:
    room: tokens that the context still has; None where it is not known.
    defaults: of sampling, for what was not asked for.
    """
    told = {**defaults, **_sampling(route, request, room)}
    named = {"model": request.adapter or model, "stream": stream}
    if stream:
        named["stream_options"] = {"include_usage": True}
    if route == "generate":
        return {**named, "token_ids": request.prompt_ids.tolist(), "sampling_params": told, "output_mode": "text"}
    if route == "completions":
        return {**named, "prompt": request.prompt_ids.tolist(), "return_token_ids": True, **told}
    return {**named, "prompt": request.prompt_text, **told}


def _sampling(route: Route, request: EngineRequest, room: int | None) -> dict[str, Any]:
    asked = request.sampling
    told = {name: getattr(asked, name) for name in (*_PUBLISHED, *(_VLLM if route != "text" else ()))}
    told = {name: value for name, value in told.items() if value is not None}
    most = asked.max_tokens
    told["max_tokens"] = room if most is None else most if room is None else min(most, room)
    if asked.stop:
        told["stop"] = list(asked.stop)
    if asked.logit_bias:
        told["logit_bias"] = {str(token): bias for token, bias in asked.logit_bias.items()}
    if asked.n != 1:
        told["n"] = asked.n
    if asked.logprobs is not None or route != "text":
        told["logprobs"] = asked.logprobs or 0
    if route == "text":
        return told
    told |= {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    if request.ends:
        told["stop_token_ids"] = list(request.ends)
    if request.guide is not None:
        told["structured_outputs"] = dict(request.guide)
    if request.prompt_logprobs:
        told["prompt_logprobs"] = 0
    return told


# ---- what comes back


class _Alternative(Struct):
    token: str
    logprob: float


class _Token(Struct):
    token: str
    logprob: float
    top_logprobs: list[_Alternative] = []


class _Logprobs(Struct):
    """In the shape of completions or, on the generate route, in chat's."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None
    content: list[_Token] | None = None


class _Span(Struct):
    version: str
    start: int


class _Prompted(Struct):
    logprob: float


class Choice(Struct):
    index: int = 0
    text: str = ""
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[str, _Prompted] | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: list[_Span] | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class Counted(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class Said(Struct):
    """An answer, or a chunk of one."""

    choices: list[Choice] = []
    usage: Counted | None = None
    prompt_logprobs: list[dict[str, _Prompted] | None] | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(Said)


def read(data: bytes) -> Said:
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeError):
        raise ModelError(502, "backend", "the backend's reply could not be read") from None


def piece(choice: Choice, alternatives: int | None, route: Route) -> EnginePiece:
    """Args:
    alternatives: how many a token were asked for by the client; None: no log-probs for the client.
    """
    ids = None if route == "text" or choice.token_ids is None else array("i", choice.token_ids)
    texts, logprobs, top = _columns(choice.logprobs, alternatives)
    if ids is not None and logprobs is not None and len(logprobs) != len(ids):
        raise ModelError(502, "backend", "the backend gave a number of log-probs that is not that of its tokens")
    return EnginePiece(choice.index, choice.text, TokenTrace(ids, logprobs, (), texts, top))


def _columns(
    given: _Logprobs | None, alternatives: int | None
) -> tuple[tuple[str, ...] | None, array | None, tuple[Mapping[str, float], ...] | None]:
    if given is None:
        return None, None, None
    if given.content is not None:
        texts = [one.token for one in given.content]
        values: Sequence[float | None] = [one.logprob for one in given.content]
        others = [{other.token: other.logprob for other in one.top_logprobs} for one in given.content]
    else:
        texts, values = given.tokens, given.token_logprobs
        others = [one or {} for one in given.top_logprobs or [None] * len(texts)]
    logprobs = array("f", [_NEVER if value is None else value for value in values])
    if alternatives is None:
        return None, logprobs, None
    return tuple(texts), logprobs, tuple(_likeliest(one, alternatives) for one in others)


def _likeliest(given: Mapping[str, float], count: int) -> dict[str, float]:
    """The sampled token comes along, among the likeliest or not."""
    likely = sorted(given.items(), key=lambda entry: -entry[1])[:count]
    return {token: value for token, value in likely if value > _NEVER}


def finish(choice: Choice) -> tuple[Finish, str | None]:
    """How it ended, and the stop string; an engine that ends in another way has failed (A19)."""
    ended = _FINISHES.get(choice.finish_reason or "")
    if ended is None:
        how = choice.finish_reason or "no reason"
        raise ModelError(502, "backend", f"the engine ended a generation with {how!r}")
    if ended == "stop" and isinstance(choice.stop_reason, str):
        return "stop_sequence", choice.stop_reason
    return ended, None


def versions(choice: Choice) -> tuple[tuple[int, int], ...]:
    """Runs of the weights' versions; none where they are no numbers."""
    spans = choice.weight_versions or []
    if not spans or spans[0].start != 0 or not all(span.version.isdecimal() for span in spans):
        return ()
    return tuple((span.start, int(span.version)) for span in spans)


def prompt_logprobs(said: Said, prompt: array) -> array | None:
    """Those of the prompt's own tokens."""
    given = said.prompt_logprobs
    if given is None and said.choices:
        given = said.choices[0].prompt_logprobs
    if given is None or len(given) != len(prompt):
        return None
    found = [(one or {}).get(str(token)) for one, token in zip(given, prompt, strict=True)]
    return array("f", [float("nan") if one is None else one.logprob for one in found])
