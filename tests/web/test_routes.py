"""What a route with one body answers, and refuses, is to the byte what FastAPI's own does."""

from typing import Annotated, Any

import pytest
from fastapi import Body, Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.web import routes
from nemo_gym.web.routes import BodyRoute


class Asked(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    text: str
    number: int = Field(default=3, alias="_number")
    any: Any = None


class Told(BaseModel):
    text: str
    number: int


class More(Told):
    secret: str = "for no one"


def app_of(route_class):
    app = FastAPI()
    app.router.route_class = route_class

    @app.post("/typed")
    async def typed(body: Asked) -> Told:
        return More(text=body.text, number=body.number)

    @app.post("/untyped")
    async def untyped(request: Request, body: Asked):
        return {"path": request.url.path, "any": body.any, "extra": body.model_extra}

    @app.post("/answer")
    async def answer(body: Asked) -> PlainTextResponse:
        return PlainTextResponse(body.text, status_code=202, headers={"x-own": "1"})

    @app.post("/wrong")
    async def wrong(body: Asked) -> Told:
        return {"text": 1}  # type: ignore[return-value]

    @app.post("/any")
    async def anything(body: Annotated[Any, Body()]) -> Any:
        return body

    @app.post("/optional")
    async def optional(body: Asked | None = None) -> dict[str, bool]:
        return {"given": body is not None}

    # ---- none of these is a route of one body

    @app.post("/two")
    async def two(body: Asked, more: Told) -> Told:
        return more

    @app.post("/query")
    async def query(body: Asked, q: int = 1) -> dict[str, int]:
        return {"q": q}

    async def found(request: Request) -> str:
        return request.headers.get("x-who", "nobody")

    @app.post("/depends")
    async def depends(body: Asked, who: Annotated[str, Depends(found)]) -> dict[str, str]:
        return {"who": who}

    @app.post("/created", status_code=201)
    async def created(body: Asked) -> Asked:
        return body

    @app.post("/sync")
    def sync(body: Asked) -> Told:
        return Told(text=body.text, number=1)

    return app


PATHS = ["typed", "untyped", "answer", "any", "optional", "two", "query", "depends", "created", "sync"]
BODIES = [
    b'{"text": "hi", "_number": 7, "x": [1, 2.5, null]}',
    b'{"text": "hi", "any": {"big": 123456789012345678901234567890, "small": 1e-300}}',
    b'{"text": "\\ud800"}',
    b'{"text": "hi", "any": NaN}',
    b'{"text": "\xc3\xa9", "text": "last"}',
    b'{"text": 5}',
    b"{}",
    b"[]",
    b"null",
    b'"text"',
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 5000,
]
TYPES = ["application/json", "application/json; charset=utf-8", "application/vnd.x+json", "text/plain", None]


async def ask(app, path, body, content_type="application/json"):
    headers = [(b"host", b"localhost"), (b"content-length", str(len(body)).encode())]
    if content_type is not None:
        headers.append((b"content-type", content_type.encode()))
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": f"/{path}",
        "raw_path": f"/{path}".encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    try:
        await app(scope, receive, send)
    except Exception as error:
        return type(error), None, None
    return sent[0]["status"], sorted(sent[0]["headers"]), b"".join(message.get("body", b"") for message in sent[1:])


@pytest.fixture(scope="module")
def apps():
    return app_of(BodyRoute), app_of(APIRoute)


@pytest.mark.parametrize("path", PATHS)
async def test_whatever_is_sent_the_answer_is_the_same(apps, path):
    ours, theirs = apps
    for body in BODIES:
        assert await ask(ours, path, body) == await ask(theirs, path, body), body
    for content_type in TYPES:
        assert await ask(ours, path, BODIES[0], content_type) == await ask(theirs, path, BODIES[0], content_type)


async def test_a_wrong_answer_is_the_same_bug(apps):
    ours, theirs = apps
    assert await ask(ours, "wrong", BODIES[0]) == await ask(theirs, "wrong", BODIES[0])


def test_which_routes_are_read_so(apps):
    ours, _ = apps
    short = {route.path[1:] for route in ours.routes if isinstance(route, BodyRoute) and routes._is_plain(route)}
    assert short == {"typed", "untyped", "answer", "wrong", "any", "optional"}
