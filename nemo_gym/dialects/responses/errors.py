"""Errors of Responses: one `error` object that names the field; in a stream an `error` event and a failed response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...exchange.errors import ModelError
from .. import failures


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    return failures.read_error("responses", status, headers, body)


def write_error(error: ModelError) -> dict[str, Any]:
    """A permanent 4xx goes out as a 400, so the status it had is said here (A5)."""
    written = failures.error_object(error)
    if 400 < error.status < 500:
        written["status"] = error.status
    return {"error": written}


def failure(error: ModelError) -> dict[str, Any]:
    """The `error` of a failed response; its codes are a closed list."""
    code = "rate_limit_exceeded" if error.kind == "rate_limit" else "server_error"
    return {"code": code, "message": error.message}
