"""Under which rollout this process is being called, where the caller said so by a path `/ng-rollout/<id>/…` or header.

The prefix is taken off, so an environment's routes need not know of it. What a route calls by `ServerClient` bears the
id on, so a judge's calls are recorded with the rollout that they judge; those of an environment are not the policy's,
so they say that they are not to be trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from .correlation import ROLLOUT_HEADER, TRAINABLE_HEADER, split_rollout, valid_rollout_id

_rollout_id: ContextVar[str | None] = ContextVar("nemo_gym_rollout_id", default=None)
_trainable: ContextVar[bool] = ContextVar("nemo_gym_trainable", default=True)


def current_rollout_id() -> str | None:
    return _rollout_id.get()


@contextmanager
def rollout_context(rollout_id: str | None, *, trainable: bool = True) -> Iterator[None]:
    """What is called within belongs to this rollout.

    Args:
        trainable: whether it may be the policy's.
    """
    tokens = _rollout_id.set(rollout_id), _trainable.set(trainable)
    try:
        yield
    finally:
        _rollout_id.reset(tokens[0])
        _trainable.reset(tokens[1])


def rollout_headers() -> dict[str, str]:
    """What a call from here bears on."""
    rollout_id = _rollout_id.get()
    if rollout_id is None or not valid_rollout_id(rollout_id):
        return {}
    return {ROLLOUT_HEADER: rollout_id} | ({} if _trainable.get() else {TRAINABLE_HEADER: "false"})


def maybe_rollout_id_from_run_body(body: Any) -> str | None:
    """The rollout id of a `/run` body (a mapping or an object): as it is said, or made of the task and the repeat.

    Raises:
        ValueError: for an id that no path can carry.
    """

    def field(key: str) -> Any:
        if isinstance(body, Mapping):
            return body.get(key)
        if key == "_ng_rollout_id" and getattr(body, "capture_rollout_id", None) is not None:
            return body.capture_rollout_id
        return getattr(body, key, None)

    said = field("_ng_rollout_id")
    if said is not None and not (isinstance(said, str) and valid_rollout_id(said)):
        raise ValueError(f"_ng_rollout_id: expected letters, digits, '.', '_' and '-', got {said!r}")
    if said is None:
        task, repeat = field("_ng_task_index"), field("_ng_rollout_index")
        if task is None or repeat is None:
            return None
        said = f"{task}-{repeat}"
    attempt = field("_ng_attempt_index")
    return f"{said}-a{int(attempt)}" if attempt is not None and int(attempt) > 0 else said


class RolloutContextMiddleware:
    """Of a server whose calls are not the policy's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rollout_id = None
        if scope["type"] == "http" and scope["path"].startswith("/ng-rollout/"):
            try:
                rollout_id, path = split_rollout(scope["path"], {})
            except ValueError:
                path = scope["path"]
            scope = {**scope, "path": path, "raw_path": path.encode()}
        elif scope["type"] == "http":
            rollout_id = _by_header(scope)
        with rollout_context(rollout_id, trainable=False):
            await self._app(scope, receive, send)


def _by_header(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == ROLLOUT_HEADER.encode():
            found: str = value.decode("latin-1")
            return found if valid_rollout_id(found) else None
    return None
