"""Routes that take one JSON body, without what FastAPI does for those that take more.

Nearly every route of an agent and of an environment is such a one, and a rollout calls several. What is read, what is
refused and in which words, and what is answered stay FastAPI's: whatever is out of the ordinary goes its usual way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi.datastructures import DefaultPlaceholder
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import ResponseValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

Handler = Callable[[Request], Awaitable[Response]]
_JSON = b"application/json"


class BodyRoute(APIRoute):
    """An app's `router.route_class`."""

    def get_route_handler(self) -> Handler:  # type: ignore[override]
        usual = super().get_route_handler()
        return _short(self, usual) if _is_plain(self) else usual


def _is_plain(route: APIRoute) -> bool:
    """Whether one model is read from the body, nothing else is asked for, and nothing is said of the answer."""
    wants = route.dependant
    return (
        len(wants.body_params) == 1
        and route.body_field is wants.body_params[0]  # else it is embedded
        and bool(wants.is_coroutine_callable)
        and not (wants.dependencies or wants.path_params or wants.query_params or wants.header_params)
        and not (wants.cookie_params or wants.http_connection_param_name or wants.websocket_param_name)
        and not (wants.response_param_name or wants.background_tasks_param_name or wants.security_scopes_param_name)
        and isinstance(route.response_class, DefaultPlaceholder)
        and route.status_code is None
        and not (route.response_model_include or route.response_model_exclude)
        and route.response_model_by_alias
        and not (route.response_model_exclude_unset or route.response_model_exclude_defaults)
        and not route.response_model_exclude_none
    )


def _short(route: APIRoute, usual: Handler) -> Handler:
    (given,) = route.dependant.body_params
    call, request_name, answered = route.dependant.call, route.dependant.request_param_name, route.response_field
    assert call is not None

    async def handle(request: Request) -> Response:
        try:
            value = msgspec.json.decode(await request.body()) if _says_json(request) else None
        except (msgspec.MsgspecError, RecursionError):
            value = None
        if value is None:
            return await usual(request)
        body, faults = given.validate(value, {}, loc=("body",))
        if faults:
            return await usual(request)
        values: dict[str, Any] = {given.name: body}
        if request_name is not None:
            values[request_name] = request
        result = await call(**values)
        if isinstance(result, Response):
            return result
        if answered is None:
            return JSONResponse(jsonable_encoder(result))
        checked, faults = answered.validate(result, {}, loc=("response",))
        if faults:
            raise ResponseValidationError(errors=faults, body=result)
        return Response(answered.serialize_json(checked), media_type="application/json")

    return handle


def _says_json(request: Request) -> bool:
    return any(name == b"content-type" and value == _JSON for name, value in request.scope["headers"])
