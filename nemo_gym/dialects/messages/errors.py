"""Errors of Messages: one `error` object in an envelope that names the request; in a stream an `error` event.

A client reads some words: a prompt that is too long and a `max_tokens` that does not fit are said as the provider says
them, so that an agent compacts or asks for less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...exchange.errors import ModelError
from .. import codec, failures

_TYPES: dict[str, str] = {
    "invalid": "invalid_request_error",
    "auth": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "rate_limit": "rate_limit_error",
    "overloaded": "overloaded_error",
    "timeout": "timeout_error",
}
_KNOWN = frozenset({*_TYPES.values(), "permission_error", "billing_error", "api_error", "conflict_error"})
STATUS: dict[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_LIMIT = re.compile(r"(?:maximum|max)[^.;]{0,40}?(?:length|len)\D{0,12}(\d+)", re.IGNORECASE)
_NO_ROOM = re.compile(r"\((\d+) > (\d+) - (\d+)\)")
"""vLLM's sum when the prompt fits and `max_tokens` does not."""


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    error = failures.read_error("messages", status, headers, body)
    if error.origin is not None and error.code is None:
        details = _found(error.origin.body).get("details")
        code = details.get("error_code") if isinstance(details, Mapping) else None
        error.code = code if isinstance(code, str) else None
    return error


def instead(body: Any) -> ModelError | None:
    """What a backend says in the place of a reply or in the midst of one; None when it is no error."""
    if not isinstance(body, Mapping) or not (body.get("type") == "error" or body.get("error")):
        return None
    kind = _found(body).get("type")
    return read_error(STATUS.get(kind, 502) if isinstance(kind, str) else 502, {}, codec.encode(body))


def write_error(error: ModelError) -> dict[str, Any]:
    """A permanent 4xx goes out as a 400, so the status and the code that it had are said in the details (A5)."""
    written: dict[str, Any] = {"type": error_type(error), "message": _message(error)}
    details = {"error_code": error.code, "param": error.param}
    if 400 < error.status < 500:
        details["status"] = error.status  # type: ignore[assignment]
    said = {name: value for name, value in details.items() if value is not None}
    if said:
        written["details"] = said
    body: dict[str, Any] = {"type": "error", "error": written}
    if error.call_id:
        body["request_id"] = "req_" + error.call_id.replace("-", "")
    return body


def error_type(error: ModelError) -> str:
    """The backend's own word where this API has it, else the one for the kind.

    OpenAI says `invalid_request_error` of a wrong key and of an unknown model too, which have words of their own here.
    """
    said = _found(error.origin.body).get("type") if error.origin is not None else None
    general = said == "invalid_request_error" and error.origin is not None and error.origin.dialect != "messages"
    if isinstance(said, str) and said in _KNOWN and not general:
        return said
    if error.status == 403:
        return "permission_error"
    return _TYPES.get(error.kind, "api_error") if error.status != 501 else "api_error"


def _found(body: Mapping[str, Any]) -> Mapping[str, Any]:
    found = body.get("error", body)
    return found if isinstance(found, Mapping) else {}


def _message(error: ModelError) -> str:
    message = error.message
    if error.code == "context_length_exceeded":
        return _too_long(message)
    sums = _NO_ROOM.search(message)
    if sums is not None and "max_tokens" in message:
        asked, limit, prompt = sums.groups()
        return (
            f"input length and `max_tokens` exceed context limit: {prompt} + {asked} > {limit}, "
            "decrease input length or `max_tokens` and try again"
        )
    return message


def _too_long(message: str) -> str:  # A12
    if "prompt is too long" in message.lower():
        return message
    found = _LIMIT.search(message)
    if found is not None:
        limit = int(found[1])
        others = [int(number) for number in re.findall(r"\d+", message[: found.start()] + message[found.end() :])]
        prompt = max(others, default=0)
        if prompt >= limit:
            return f"prompt is too long: {prompt} tokens > {limit} maximum"
    return f"prompt is too long: {message}"
