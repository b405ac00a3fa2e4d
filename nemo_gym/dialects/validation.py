"""A body against its schema: pydantic's words, in FastAPI's form, with little of the body in them.

The errors of an `InvalidRequest` are pydantic's, `loc` without the leading `body`; a dialect makes of them what its
clients expect (Chat Completions FastAPI's 422, Responses a 400 that names the field).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import StrictBool, TypeAdapter, ValidationError

from ..exchange.errors import InvalidRequest
from ..exchange.parts import unread
from . import codec

_T = TypeVar("_T")

ECHO_LIMIT = 4096
"""Bytes of a 422 above which the echoed `input` values are cut."""
_INPUT_LIMIT = 200

STREAM: TypeAdapter[bool | None] = TypeAdapter(StrictBool | None)


def read_json(data: bytes, *, status: int = 400, decode: Callable[[bytes], Any] = codec.decode_body) -> Any:
    """The body as JSON; None for an empty one, which a dialect then finds missing. Raises InvalidRequest."""
    if not data:
        return None
    try:
        return decode(data)
    except json.JSONDecodeError as error:
        found = {
            "type": "json_invalid",
            "loc": (error.pos,),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error.msg},
        }
        raise InvalidRequest(
            f"The body is not JSON: {error.msg} at {error.pos}.", errors=[found], status=status
        ) from None
    except codec.NotFinite as error:
        entry = {"type": "finite_number", "loc": error.path, "msg": "Input should be a finite number"}
        errors = [entry | {"input": str(error.value)}]
        message, param = first_words(errors)
        raise InvalidRequest(message, errors=errors, param=param, status=status) from None
    except (ValueError, RecursionError):
        raise InvalidRequest("There was an error parsing the body") from None


def wants_stream(body: Any) -> bool:
    """Only JSON `true` selects a stream (A2)."""
    return isinstance(body, dict) and body.get("stream") is True


def find_errors(adapter: TypeAdapter[Any], value: Any, prefix: Sequence[str | int] = ()) -> list[dict[str, Any]]:
    """Pydantic's errors, or none."""
    try:
        adapter.validate_python(value, from_attributes=True)
    except ValidationError as error:
        return errors_of(error, prefix)
    return []


def validated(
    adapter: TypeAdapter[_T], body: Any, read: Mapping[str, Callable[[Any], Any]], **how: Any
) -> tuple[_T | None, list[dict[str, Any]]]:
    """The body as the schema's object, or pydantic's errors.

    Args:
        read: fields that are lists, and what reads each of their elements: one that was read before is not checked
            again, and is not in the object.
    """
    if type(body) is dict:
        fresh = body | {name: unread(body[name], reader) for name, reader in read.items() if name in body}
        with contextlib.suppress(ValidationError):
            return adapter.validate_python(fresh, **how), []
    try:
        return adapter.validate_python(body, **how), []
    except ValidationError as error:
        return None, errors_of(error)


def errors_of(error: ValidationError, prefix: Sequence[str | int] = ()) -> list[dict[str, Any]]:
    # `from_attributes` and these flags are what FastAPI validates a `Body()` with.
    return [{**entry, "loc": (*prefix, *entry["loc"])} for entry in error.errors(include_url=False)]


def missing_body() -> dict[str, Any]:
    return {"type": "missing", "loc": (), "msg": "Field required", "input": None}


def fastapi_detail(errors: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """FastAPI's 422 body. Above 4 KiB the `input` values, and only they, are cut (A4)."""
    detail = [_jsonable({**entry, "loc": ["body", *entry["loc"]]}) for entry in errors]
    body = {"detail": detail}
    if len(codec.encode(body)) > ECHO_LIMIT:
        for entry in detail:
            entry["input"] = _short(entry.get("input"))
    return body


def first_words(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """A message that names the field, and the field: for the dialects whose errors are one sentence."""
    if not errors:
        return "The request is not valid.", None
    first = errors[0]
    param = _path(first["loc"]) or None
    more = len(errors) - 1
    message = f"{param or 'body'}: {first['msg']}"
    return (f"{message} (and {more} more)" if more else message), param


def _path(loc: Iterable[str | int]) -> str:
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _short(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else codec.encode(value).decode()
    return value if len(text) <= _INPUT_LIMIT else text[:_INPUT_LIMIT] + "..."


def _jsonable(entry: dict[str, Any]) -> dict[str, Any]:
    context = entry.get("ctx")
    if context:
        # FastAPI encodes an exception object as an empty object.
        entry["ctx"] = {key: {} if isinstance(value, Exception) else value for key, value in context.items()}
    return entry
