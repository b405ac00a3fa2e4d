"""Which rollout a call belongs to, as the caller said it.

Three places can say it: a path prefix `/ng-rollout/<id>`, the header `x-ng-rollout-id`, and an API key
`ng-rollout:<id>[:<key>]`. They are read here and nowhere else; an id outside the safe alphabet, or two places that
disagree, is the caller's mistake (C4). Where none says it, the session that a harness names of its own accord holds its
calls together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..config.types import TOKEN_CAPTURE_PATH_SEGMENT

ROLLOUT_HEADER = "x-ng-rollout-id"
TRAINABLE_HEADER = "x-ng-trainable"
"""`false` on a call that is not the policy's own, such as one that a verifier makes: recorded, and never trained."""
ROLLOUT_PREFIX = "/ng-rollout/"
_CAPTURES = f"{TOKEN_CAPTURE_PATH_SEGMENT}/"
_KEY_PREFIX = "ng-rollout:"
_SESSIONS = (b"x-claude-code-session-id", b"session-id", b"session_id", b"x-session-id")
"""Of Claude Code, of Codex (two spellings), of opencode."""
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,128}")

Headers = Mapping[str, str] | Iterable[tuple[bytes, bytes]]


def valid_rollout_id(rollout_id: str) -> bool:
    return _SAFE.fullmatch(rollout_id) is not None and rollout_id not in (".", "..")


def rollout_path(rollout_id: str | None, path: str) -> str:
    """`path` as it is called within a rollout; unchanged without one."""
    if not rollout_id:
        return path
    if not valid_rollout_id(rollout_id):
        raise ValueError(f"rollout id {_shown(rollout_id)} may only have letters, digits, '.', '_' and '-'")
    return f"{ROLLOUT_PREFIX}{rollout_id}{path}"


def rollout_path_prefix(rollout_id: str | None, *, token_capture: bool = False) -> str:
    """The beginning of a path within a rollout; empty without one.

    Args:
        token_capture: said in the path too, as agents of NeMo Gym do; it changes nothing.
    """
    return rollout_path(rollout_id, f"/{TOKEN_CAPTURE_PATH_SEGMENT}" if token_capture else "") if rollout_id else ""


def apply_rollout_prefix(base_url: str, rollout_id: str | None, *, token_capture: bool = False) -> str:
    """A model server's root URL within a rollout; unchanged without one."""
    if not rollout_id:
        return base_url
    return base_url.rstrip("/") + rollout_path_prefix(rollout_id, token_capture=token_capture)


def split_rollout(path: str, headers: Headers) -> tuple[str | None, str]:
    """The rollout id that a request names, and its path without the prefix.

    Args:
        headers: lower-case names to values, or the pairs of an ASGI scope.

    Raises:
        ValueError: in words fit for the client.
    """
    found: list[tuple[str, str]] = []
    if path.startswith(ROLLOUT_PREFIX):
        rollout_id, slash, rest = path[len(ROLLOUT_PREFIX) :].partition("/")
        found.append(("the path", rollout_id))
        path = slash + rest.removeprefix(_CAPTURES) or "/"
    header, key = _read(headers)
    if header is not None:
        found.append((f"the header {ROLLOUT_HEADER}", header))
    if key is not None and key.startswith(_KEY_PREFIX):
        found.append(("the API key", key[len(_KEY_PREFIX) :].partition(":")[0]))
    if not found:
        return None, path
    place, rollout_id = found[0]
    for other_place, other in found[1:]:
        if other != rollout_id:
            raise ValueError(f"{place} names rollout {_shown(rollout_id)}, but {other_place} names {_shown(other)}")
    if not valid_rollout_id(rollout_id):
        raise ValueError(
            f"the rollout id in {place} must be 1 to 128 letters, digits, '.', '_' or '-', not {_shown(rollout_id)}"
        )
    return rollout_id, path


def api_key(headers: Headers) -> str | None:
    """The caller's API key itself, without the rollout id that it may carry."""
    key = _read(headers)[1]
    if key is None or not key.startswith(_KEY_PREFIX):
        return key
    return key[len(_KEY_PREFIX) :].partition(":")[2] or None


def session_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The client's own session, where it names one. An unsafe name is ignored: it is no mistake."""
    for name, value in headers:
        if name in _SESSIONS:
            found = value.decode("latin-1")
            if valid_rollout_id(found):
                return found
    return None


def is_trainable(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the caller leaves it to the server; the only other thing to say is `false`."""
    return b"false" not in [value.lower() for name, value in headers if name == b"x-ng-trainable"]


def _read(headers: Headers) -> tuple[str | None, str | None]:
    """The rollout header and the API key: the only two headers that matter here."""
    rollout = authorization = key = None
    if not isinstance(headers, list) and isinstance(headers, Mapping):
        rollout, authorization = headers.get(ROLLOUT_HEADER), headers.get("authorization")
        key = headers.get("x-api-key") or headers.get("api-key")
    else:
        for name, value in headers:
            if name == b"x-ng-rollout-id":
                rollout = value.decode("latin-1")
            elif name == b"authorization":
                authorization = value.decode("latin-1")
            elif name in (b"x-api-key", b"api-key"):
                key = value.decode("latin-1")
    if authorization is not None and authorization[:7].lower() == "bearer ":
        key = authorization[7:].strip()
    return rollout, key


def _shown(rollout_id: str) -> str:
    return repr(rollout_id if len(rollout_id) <= 64 else rollout_id[:64] + "…")
