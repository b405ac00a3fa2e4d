"""Errors of Chat Completions: FastAPI's 422 for a body that fails its schema, else the provider's `error` object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...exchange.errors import InvalidRequest, ModelError
from .. import failures
from ..validation import fastapi_detail


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    return failures.read_error("chat", status, headers, body)


def write_error(error: ModelError) -> dict[str, Any]:
    if isinstance(error, InvalidRequest) and error.errors:
        return fastapi_detail(error.errors)
    return {"error": failures.error_object(error)}
