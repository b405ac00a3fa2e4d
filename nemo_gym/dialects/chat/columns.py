"""Token columns of a reply that come elsewhere than vLLM puts them, and the weights' version where a server tells it.

| where | what |
|---|---|
| a choice's `meta_info` (SGLang's like) | `output_token_logprobs`: [log-prob, id, text] a token; `weight_version` |
| a choice's `prompt_token_ids` | the prompt's ids |
| a message's `prompt_token_ids`, `generation_token_ids`, `generation_log_probs` | all of it (NeMo Gym's servers) |
| a choice's `weight_versions` | spans of the reply with `start` and `version` |
| the reply's `metadata.weight_version` or `weight_version` | the version of all of it |

What a reply already has stands. Columns that are not what they should be are left out: a wrong one is worse than none.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...exchange.reply import Choice, ModelReply, TokenTrace
from .messages import NAME

ASKED: tuple[Mapping[str, Any], ...] = (
    {"return_token_ids": True, "logprobs": True},  # vLLM
    {"return_prompt_token_ids": True, "return_meta_info": True, "logprobs": True},  # SGLang and its like
)
"""What a request says so that they come; of a server that knows the first, the second is not asked."""

_LIMIT = 2**31
_NEVER = -9999.0


def completed(reply: ModelReply) -> ModelReply:
    """The reply with the columns that were found."""
    body = _mapping(reply.origin.body if reply.origin is not None and reply.origin.dialect == NAME else None)
    prompt = reply.prompt_ids
    choices = []
    for choice in reply.choices:
        said = _mapping(choice.origin.body if choice.origin is not None and choice.origin.dialect == NAME else None)
        meta, message = _mapping(said.get("meta_info")), _mapping(said.get("message"))
        tokens = choice.tokens
        if tokens is None or tokens.ids is None:
            tokens = _sampled(meta, message, tokens)
        if prompt is None:
            prompt = _ids(said.get("prompt_token_ids")) or _ids(message.get("prompt_token_ids"))
        if tokens is not None and not tokens.versions and (runs := _versions(said, meta, body)):
            tokens = replace(tokens, versions=runs)
        choices.append(choice if tokens is choice.tokens else replace(choice, tokens=tokens))
    if prompt is reply.prompt_ids and _same(choices, reply):
        return reply
    return replace(reply, prompt_ids=prompt, choices=tuple(choices))


def _same(choices: list[Choice], reply: ModelReply) -> bool:
    return all(mine is theirs for mine, theirs in zip(choices, reply.choices, strict=True))


def _sampled(meta: Mapping[str, Any], message: Mapping[str, Any], known: TokenTrace | None) -> TokenTrace | None:
    ids = logprobs = None
    entries = meta.get("output_token_logprobs")
    if isinstance(entries, list) and all(isinstance(entry, list | tuple) and len(entry) >= 2 for entry in entries):
        ids, logprobs = _ids([entry[1] for entry in entries]), _floats([entry[0] for entry in entries])
    if ids is None:
        ids, logprobs = _ids(message.get("generation_token_ids")), _floats(message.get("generation_log_probs"))
    if ids is None:
        return known
    if logprobs is not None and len(logprobs) != len(ids):
        logprobs = None
    if known is None or known.logprobs is None or len(known.logprobs) != len(ids):
        return TokenTrace(ids=ids, logprobs=logprobs)
    return replace(known, ids=ids)


def _versions(
    choice: Mapping[str, Any], meta: Mapping[str, Any], body: Mapping[str, Any]
) -> tuple[tuple[int, int], ...]:
    spans = choice.get("weight_versions")
    if isinstance(spans, list) and spans:
        return _runs(spans)
    for place in (meta, _mapping(body.get("metadata")), body):
        version = _whole(place.get("weight_version"))
        if version is not None:
            return ((0, version),)
    return ()


def _runs(spans: list[Any]) -> tuple[tuple[int, int], ...]:
    """The spans as runs; none where they do not cover the reply from its beginning on."""
    runs: list[tuple[int, int]] = []
    for span in map(_mapping, spans):
        start, version = _whole(span.get("start")), _whole(span.get("version"))
        if start is None or version is None or (start <= runs[-1][0] if runs else start != 0):
            return ()
        runs.append((start, version))
    return tuple(runs)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if type(value) is dict or isinstance(value, Mapping) else {}  # what is abstract is slow to ask


def _whole(value: Any) -> int | None:
    """A number, or one that is written as text."""
    if isinstance(value, str) and len(value) <= 10 and value.isascii() and value.isdigit():
        value = int(value)
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LIMIT
    return value if good else None


def _ids(values: Any) -> array | None:
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < _LIMIT for value in values):
        return None
    return array("i", values) if values else None


def _floats(values: Any) -> array | None:
    if not isinstance(values, list) or not all(value is None or type(value) in (int, float) for value in values):
        return None
    return array("f", [_NEVER if value is None else max(float(value), _NEVER) for value in values])
