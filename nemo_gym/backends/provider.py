"""How one provider's API differs from the dialect as published: a value, and one place where it is applied.

Nothing is dropped in silence: a field of the request that a provider refuses is named once per process. A bearer token
that is kept in a file is read again whenever the file has changed, so that a run outlives its token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..config import paths

log = logging.getLogger("nemo_gym.backends")
_said: set[str] = set()

PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
_MESSAGES_VERSION = "2023-06-01"
_REASONING = frozenset({"reasoning_content", "reasoning_details"})


class Provider(Struct, frozen=True):
    """The default is a plain endpoint, such as vLLM's."""

    name: str = ""
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    paths: Mapping[str, str] = {}
    """Dialect -> the route below the base URL, where it is not the usual one."""
    key_header: str | None = None
    """Where the key goes bare; None: where the dialect puts it."""
    token: Callable[[], str] | None = None
    """Gives the bearer token of the moment, in the place of a key."""
    renamed: Mapping[str, str] = {}
    """A request's field -> the provider's name of it."""
    refused: frozenset[str] = frozenset()
    """Fields of a request that it answers with an error."""
    reasoning_back: bool = True
    """Whether a chat message may bring back reasoning that the model gave."""
    own_routes: bool = True
    """Whether it may be asked what only vLLM and its like know."""

    def path(self, dialect: str) -> str:
        return self.paths.get(dialect) or PATHS[dialect]

    def fixed_headers(self, dialect: str, key: str | None) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if dialect == "messages":
            headers["anthropic-version"] = _MESSAGES_VERSION
        if key and self.key_header is not None:
            headers[self.key_header] = key
        elif key and dialect == "messages":
            headers["x-api-key"] = key
        elif key:
            headers["authorization"] = f"Bearer {key}"
        return headers | dict(self.headers)

    def body(self, body: dict[str, Any]) -> dict[str, Any]:
        """The request as this provider takes it."""
        for name in self.refused & body.keys():
            if body.pop(name) is not None:
                _say_once(f"the field {name!r} is not passed on: {self.name or 'this provider'} refuses it")
        for name, other in self.renamed.items():
            if name in body:
                body.setdefault(other, body.pop(name))
        messages = body.get("messages") or ()
        if not self.reasoning_back and not all(_REASONING.isdisjoint(message) for message in messages):
            body["messages"] = [
                {name: value for name, value in message.items() if name not in _REASONING} for message in messages
            ]
        return body


class TokenFile:
    """A bearer token that something else keeps fresh in a file. Raises OSError or ValueError with words for the log."""

    def __init__(self, path: str | Path) -> None:
        self._named = path
        self._seen: tuple[int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        path = paths.locate(self._named)
        status = path.stat()
        seen = (status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            token = path.read_text(encoding="utf-8").strip()
            if not token or not token.isascii() or any(letter.isspace() for letter in token):
                raise ValueError(f"{path}: expected one token")
            self._token, self._seen = token, seen
        return self._token


def _say_once(message: str) -> None:
    if message not in _said and len(_said) < 1000:
        _said.add(message)
        log.warning(message)
