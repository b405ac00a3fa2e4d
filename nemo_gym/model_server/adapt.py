"""What is sent differs from what was received only here: the server's overrides, and what this backend cannot take.

The request that came in is never changed; a changed one is a new value, and the record holds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ..exchange.request import ModelRequest, Sampling

SAMPLING_FIELDS = frozenset(Sampling.__struct_fields__)


def check_overrides(overrides: Mapping[str, Any]) -> Sampling:
    """The overrides as Sampling. Raises ValueError that names the field."""
    for name in overrides:
        if name not in SAMPLING_FIELDS:
            known = ", ".join(sorted(SAMPLING_FIELDS))
            raise ValueError(f"sampling_overrides.{name}: unknown; expected one of {known}")
    try:
        return msgspec.convert(dict(overrides), Sampling)
    except msgspec.ValidationError as error:
        raise ValueError(f"sampling_overrides: {error}") from None


def adapt(request: ModelRequest, overrides: Mapping[str, Any], *, developer_as_system: bool = False) -> ModelRequest:
    """The request that the backend gets; the same object when nothing is changed."""
    changes: dict[str, Any] = {}
    if overrides:
        forced = check_overrides(overrides)
        sampling = replace(request.sampling, **{name: getattr(forced, name) for name in overrides})
        if sampling != request.sampling:
            changes["sampling"] = sampling
    if developer_as_system and any(message.role == "developer" for message in request.messages):
        changes["messages"] = tuple(
            replace(message, role="system", origin=None) if message.role == "developer" else message
            for message in request.messages
        )
    # The origin stays: a writer of its dialect takes from it only what no field of ours says.
    return replace(request, **changes) if changes else request
