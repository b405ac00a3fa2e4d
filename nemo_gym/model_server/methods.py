"""Model servers in NeMo Gym's manner: `chat_completions(body)` or `responses(body)`, with or without a leading request.

Such a method is one more kind of backend: it gets the body as the object that it expects and gives the object that it
made, and all the rest (streams, errors, capture, the other dialect) is the way of every call. A method that asks
`super()` reaches the server's own backend within the same call.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException
from msgspec.structs import replace
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request

from ..dialects import chat, codec, failures, responses
from ..exchange.call import Call
from ..exchange.errors import InvalidRequest, ModelError
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest

if TYPE_CHECKING:
    from .server import SimpleResponsesAPIModel

DIALECTS: dict[str, Any] = {"chat_completions": chat, "responses": responses}
_PATHS = {"chat_completions": "/v1/chat/completions", "responses": "/v1/responses"}
_current: ContextVar[Call | None] = ContextVar("call", default=None)


def overridden(server: SimpleResponsesAPIModel, dialect: str) -> str | None:
    """The method that answers a client of this dialect; its own where there is one."""
    return _overridden(type(server), dialect)


@cache
def _overridden(kind: type, dialect: str) -> str | None:
    names = [name for name in DIALECTS if getattr(getattr(kind, name), "inherited", False) is False]
    return next((name for name in names if DIALECTS[name].name == dialect), names[0] if names else None)


def inherited(method: Any) -> Any:
    """Marks the base class's own method, which is no override."""
    method.inherited = True
    return method


async def ask(server: SimpleResponsesAPIModel, name: str, request: ModelRequest, call: Call) -> ModelReply:
    """The method's reply. Raises ModelError, also for what the method raises in FastAPI's manner."""
    method, dialect = getattr(server, name), DIALECTS[name]
    # A copy: what the method changes is its own.
    written = codec.decode(codec.encode(dialect.write_request(request)))
    arguments = [_body(method, name, written)]
    if len(_positional(method)) > 1:
        arguments.insert(0, _request(name, written, call))
    token = _current.set(call)
    try:
        answer = await method(*arguments)
    except HTTPException as error:
        raise _failure(error) from None
    except ValidationError as error:
        raise ModelError(502, "backend", f"{name} made an object that is not valid ({error.title})") from error
    finally:
        _current.reset(token)
    if isinstance(answer, BaseModel):
        answer = answer.model_dump(mode="json", by_alias=True)
    if not isinstance(answer, dict):
        raise ModelError(502, "backend", f"{name} answered with a {type(answer).__name__}, not with a reply")
    if name != "chat_completions":
        reply: ModelReply = dialect.read_reply(answer)
        return reply
    return _without_texts(chat.read_reply(_with_ids(answer)))


async def through(server: SimpleResponsesAPIModel, name: str, body: Any) -> dict[str, Any]:
    """What the server's own backend answers to a body of this dialect; for methods that ask `super()`."""
    dialect = DIALECTS[name]
    if isinstance(body, BaseModel):
        body = body.model_dump(mode="json", by_alias=True, exclude_unset=True)
    request = dialect.read_request(body)
    call = _current.get() or Call(request)
    reply = await server.backend.generate(request, call)
    written: dict[str, Any] = dialect.write_reply(reply, request)
    if name == "chat_completions":
        for choice, made in zip(written["choices"], reply.choices, strict=True):
            if made.tokens is not None and made.tokens.ids is not None and reply.prompt_ids is not None:
                choice["message"] |= {
                    "prompt_token_ids": list(reply.prompt_ids),
                    "generation_token_ids": list(made.tokens.ids),
                    "generation_log_probs": list(made.tokens.logprobs or ()),
                }
    return written


def _positional(method: Any) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one for one in inspect.signature(method).parameters.values() if one.kind in kinds]


def _body(method: Any, name: str, written: dict[str, Any]) -> Any:
    """As the object that the method's annotation names, else NeMo Gym's own for the route."""
    kind = inspect.get_annotations(method, eval_str=True).get(_positional(method)[-1].name)
    if kind in (None, inspect.Parameter.empty):
        kind = _params(name)
    try:
        return TypeAdapter(kind).validate_python(written)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise InvalidRequest(f"{where}: {first['msg']}", param=where or None) from None


def _params(name: str) -> type[BaseModel]:
    if name == "responses":
        from ..dialects.responses.objects import NeMoGymResponseCreateParamsNonStreaming

        return NeMoGymResponseCreateParamsNonStreaming
    from ..dialects.chat.objects import NeMoGymChatCompletionCreateParamsNonStreaming

    return NeMoGymChatCompletionCreateParamsNonStreaming


def _request(name: str, written: dict[str, Any], call: Call) -> Request:
    """What a route would have been given; the rollout's id is in its headers."""
    headers = [(b"content-type", b"application/json")]
    if call.rollout_id is not None:
        headers.append((b"x-ng-rollout-id", call.rollout_id.encode()))
    data = codec.encode(written)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": _PATHS[name], "query_string": b"", "headers": headers}
    return Request(scope | {"session": {}, "state": {}}, receive)


def _failure(error: HTTPException) -> ModelError:
    detail = error.detail if isinstance(error.detail, str) else codec.encode(error.detail).decode()
    return ModelError(error.status_code, failures.kind_of(error.status_code), detail[:2000])


_IDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def _with_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """Token columns that NeMo Gym puts on the message, where the dialect's reader looks for them."""
    choices = []
    for choice in answer.get("choices") or ():
        message = dict(choice.get("message") or {})
        prompt, ids, logprobs = (message.pop(field, None) for field in _IDS)
        if prompt is not None and ids is not None:
            answer = {**answer, "prompt_token_ids": prompt}
            choice = {**choice, "token_ids": ids}
            if logprobs and len(logprobs) == len(ids) and not (choice.get("logprobs") or {}).get("content"):
                pairs = zip(ids, logprobs, strict=True)
                entries = [{"token": f"token_id:{one}", "logprob": value, "top_logprobs": []} for one, value in pairs]
                choice["logprobs"] = {"content": entries}
        choices.append({**choice, "message": message})
    return {**answer, "choices": choices}


def _without_texts(reply: ModelReply) -> ModelReply:
    """Log-probs that came under ids alone have no texts to show to a client."""
    return replace(
        reply,
        choices=tuple(
            replace(choice, tokens=replace(choice.tokens, texts=None, top=None))
            if choice.tokens is not None and any(text.startswith("token_id:") for text in choice.tokens.texts or ())
            else choice
            for choice in reply.choices
        ),
    )
