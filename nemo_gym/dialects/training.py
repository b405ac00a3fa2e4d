"""Token columns on an object: all of them or none, under the names that trainers read."""

from __future__ import annotations

from typing import Any, NotRequired, TypeAlias

from pydantic import BaseModel
from typing_extensions import TypedDict

RoutedExperts: TypeAlias = str | list[list[list[int]]]
"""[tokens, layers, top-k] expert indices, or an opaque envelope of the training framework; never looked into."""

REQUIRED_TOKEN_METADATA_FIELDS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs"})
TOKEN_METADATA_FIELDS = REQUIRED_TOKEN_METADATA_FIELDS | {"routed_experts"}


class TokenIDLogProbMixin(BaseModel):
    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    routed_experts: RoutedExperts | None = None


class TokenIDLogProbTypedDictMixin(TypedDict):
    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    routed_experts: NotRequired[RoutedExperts]


def check_token_metadata(value: Any) -> Any:
    """A before-validator: an object with one of the columns has all of them, well typed."""
    if not isinstance(value, dict):
        return value
    present = TOKEN_METADATA_FIELDS.intersection(value)
    if not present:
        return value
    missing = REQUIRED_TOKEN_METADATA_FIELDS.difference(present)
    if missing:
        raise ValueError(f"token columns come together; missing: {', '.join(sorted(missing))}")
    TokenIDLogProbMixin.model_validate({field: value[field] for field in present})
    return value
