"""A model as judge: a call that fails is no verdict.

Whatever goes wrong with the call itself (transport, time, key, status, a body that is no reply) is a `JudgeError`, and
`judge_failsafe`, which stands around every `verify`, answers it with a row that is marked as no measurement. A reply
that arrived and cannot be understood is the verifier's to score.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from ..web.peers import ServerClient, get_response_json, raise_for_status

FAILURE_CLASS_KEY = "_ng_failure_class"
JUDGE_FAILED = "judge_failed"
_WORDS = 2000

_Reply = TypeVar("_Reply", bound=BaseModel)


class JudgeError(Exception):
    """The judge could not be asked."""


async def reraise_judge_errors(coro: Awaitable[Any]) -> Any:
    """What is awaited; any exception of it becomes a JudgeError that names its type."""
    try:
        return await coro
    except JudgeError:
        raise
    except Exception as error:
        raise JudgeError(f"{type(error).__name__}: {error}") from error


async def call_judge(
    server_client: ServerClient, *, server_name: str, url_path: str, json: Any, response_model: type[_Reply]
) -> _Reply:
    """The judge's reply.

    Args:
        url_path: `/v1/responses` or `/v1/chat/completions`.
        response_model: the object that this route answers with.
    """

    async def reply() -> _Reply:
        response = await server_client.post(server_name=server_name, url_path=url_path, json=json)
        await raise_for_status(response)
        return response_model.model_validate(await get_response_json(response))

    return await reraise_judge_errors(reply())


def judge_failsafe(verify_fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """`verify` with its own signature, whose JudgeError is answered with an unmeasured row instead of a 500.

    One that is not async is run in a thread, as every such route is.
    """

    @functools.wraps(verify_fn)
    async def verify(*args: Any, **kwargs: Any) -> Any:
        try:
            if inspect.iscoroutinefunction(verify_fn):
                return await verify_fn(*args, **kwargs)
            answer = await run_in_threadpool(verify_fn, *args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer
        except JudgeError as error:
            return JSONResponse(jsonable_encoder(_unmeasured(_body(args, kwargs, error), str(error)[:_WORDS])))

    return verify


def _body(args: tuple[Any, ...], kwargs: dict[str, Any], error: JudgeError) -> Any:
    for value in (kwargs.get("body"), *kwargs.values(), *args):
        if hasattr(value, "model_dump") and hasattr(value, "response"):
            return value
    raise RuntimeError("the judge failed, and verify was given no body with a response") from error


def _unmeasured(body: Any, reason: str) -> dict[str, Any]:
    row: dict[str, Any] = body.model_dump()
    instance = row.get("instance_config")
    return row | {
        "reward": 0.0,
        "mask_sample": True,
        "failure_kind": JUDGE_FAILED,
        "failure_reason": reason,
        "instance_config": (instance if isinstance(instance, dict) else {}) | {"mask_sample": True},
        FAILURE_CLASS_KEY: JUDGE_FAILED,
        "_ng_failure_judge_error": reason,
    }
