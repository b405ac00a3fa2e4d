"""What the OpenAI dialects share of errors: a body of `error`, and what a status means."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from ..exchange.errors import ErrorKind, ModelError
from ..exchange.parts import Origin
from . import codec

_MESSAGE_LIMIT = 2000
_KINDS: dict[int, ErrorKind] = {
    401: "auth",
    403: "auth",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_TYPES: dict[str, str] = {
    "invalid": "invalid_request_error",
    "auth": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "invalid_request_error",
    "rate_limit": "rate_limit_error",
    "overloaded": "overloaded_error",
    "timeout": "timeout_error",
    "unreachable": "backend_unreachable",
    "backend": "server_error",
    "disconnected": "client_disconnected",
    "capture": "capture_error",
    "internal": "internal_error",
}


def kind_of(status: int) -> ErrorKind:
    return _KINDS.get(status) or ("invalid" if 400 <= status < 500 else "backend")


def read_error(dialect: str, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """A backend's answer as a ModelError: message, type and code as the backend gave them, where it gave any."""
    said = _object(body)
    found = said.get("error", said)
    found = {"message": found} if isinstance(found, str) else found if isinstance(found, dict) else {}
    message = found.get("message") or found.get("detail")
    if not isinstance(message, str):
        message = codec.encode(message).decode() if message else f"The backend answered with status {status}."
    code, param = found.get("code"), found.get("param")
    return ModelError(
        status,
        kind_of(status),
        message[:_MESSAGE_LIMIT],
        code=code if isinstance(code, str) else str(code) if type(code) is int else None,
        param=param if isinstance(param, str) else None,
        retry_after=retry_after(headers),
        origin=Origin(dialect, said) if said else None,
    )


def instead(dialect: str, body: Any) -> ModelError | None:
    """What a backend says in the place of a reply, under a status that says all is well; None when it is no error."""
    if not isinstance(body, Mapping) or not (body.get("error") or body.get("object") == "error"):
        return None
    said = body.get("error") or body
    code = said.get("code") if isinstance(said, Mapping) else None
    status = code if type(code) is int and 400 <= code < 600 else 502
    return read_error(dialect, status, {}, codec.encode(body))


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = codec.decode(body)
    except (json.JSONDecodeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that the backend asked to wait, from `retry-after-ms` or `Retry-After` (seconds or a date)."""
    lowered = {name.lower(): value for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(lowered[name]) * unit
        except (KeyError, ValueError):
            continue
        return max(0.0, seconds) if math.isfinite(seconds) else None
    try:
        at = parsedate_to_datetime(lowered["retry-after"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return max(0.0, at - (time.time() if now is None else now))


def error_type(error: ModelError) -> str:
    """The backend's own word, if it was one of the OpenAI dialects, else ours."""
    if error.origin is not None:
        found = error.origin.body.get("error", error.origin.body)
        kind = found.get("type") if isinstance(found, Mapping) else None
        if isinstance(kind, str) and kind:
            return kind
    return _TYPES.get(error.kind, "server_error")


def error_object(error: ModelError) -> dict[str, Any]:
    return {"message": error.message, "type": error_type(error), "param": error.param, "code": error.code}
