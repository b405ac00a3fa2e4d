"""Sampling as the client asked for it -> vLLM's own parameters.

What was not asked for is the model's own default (its generation config), then vLLM's. Log-probs of
the sampled tokens are always asked for, flat, and the text keeps its special tokens: parsers need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..exchange.request import Sampling

_DIRECT = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty")


def engine_fields(sampling: Sampling, room: int, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's SamplingParams as a dict.

    Args:
        room: tokens that the context still has for the completion.
        defaults: the model's own sampling defaults, under vLLM's names.
    """
    fields: dict[str, Any] = dict(defaults)
    for name in _DIRECT:
        value = getattr(sampling, name)
        if value is not None:
            fields[name] = value
    asked = sampling.max_tokens if sampling.max_tokens is not None else fields.get("max_tokens")
    fields["max_tokens"] = room if asked is None else min(asked, room)
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if sampling.logit_bias:
        fields["logit_bias"] = dict(sampling.logit_bias)
    fields["n"] = sampling.n
    fields["logprobs"] = sampling.logprobs or 0
    fields["flat_logprobs"] = True
    fields["skip_special_tokens"] = False
    fields["spaces_between_special_tokens"] = False
    return fields
