"""The one failure of a call: its true status, and nothing internal in its words."""

from __future__ import annotations

from typing import Any, Literal

from .parts import Origin

ErrorKind = Literal[
    "invalid",
    "auth",
    "not_found",
    "too_large",
    "rate_limit",
    "overloaded",
    "backend",
    "timeout",
    "unreachable",
    "disconnected",
    "capture",
    "internal",
]


class ModelError(Exception):
    """A call that failed. `message` is fit for a client: no repr, key, address or traceback.

    Args:
        status: the HTTP status that the failure has or would have had.
        kind: one of the closed list of error kinds.
        retry_after: seconds.
        origin: the backend's own error object.
    """

    def __init__(
        self,
        status: int,
        kind: ErrorKind,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        origin: Origin | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind: ErrorKind = kind
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.origin = origin
        self.call_id = ""
        """The call that failed, once it is known; clients of some dialects are told it."""


class InvalidRequest(ModelError):
    """Bad input.

    Args:
        errors: pydantic's list of errors, `loc` without the leading `body`; chat's 422 is made of it.
        status: 422 for a Chat Completions body that fails its schema, else 400.
    """

    def __init__(
        self,
        message: str,
        *,
        errors: list[dict[str, Any]] | None = None,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(status, "invalid", message, code=code, param=param)
        self.errors = errors or []
