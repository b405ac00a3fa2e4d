"""Environments use all that FastAPI has: routes that are not async, bodies without a schema, streams, lifespans."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import BackgroundTasks, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.testclient import TestClient

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.judge import JudgeError
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient

RESPONSE = {"id": "r", "created_at": 0, "model": "m", "object": "response", "output": [], "parallel_tool_calls": True}
ROW = {"responses_create_params": {"input": "hi"}, "response": {**RESPONSE, "tool_choice": "auto", "tools": []}}


class Free(BaseModel):
    model_config = ConfigDict(extra="allow")


class Odd(SimpleResourcesServer):
    config: BaseResourcesServerConfig
    counts: dict[str, int] = Field(default_factory=dict)
    events: list[str] = Field(default_factory=list)
    loop_thread: int = 0

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            self.events.append("up")
            self.loop_thread = threading.get_ident()
            async with inner(app) as state:
                yield state
            self.events.append("down")

        app.router.lifespan_context = lifespan
        for route in (self.count, self.stream, self.later, self.teapot, self.broken, self.anything):
            app.post("/tools/{name}" if route == self.anything else f"/{route.__name__}")(route)
        return app

    def count(self, request: Request, body: Free) -> dict[str, Any]:
        session = request.session[SESSION_ID_KEY]
        self.counts[session] = self.counts.get(session, 0) + 1
        return {"count": self.counts[session], "got": body.model_dump(), "thread": threading.get_ident()}

    async def stream(self, body: dict[str, Any]) -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            for number in range(body["lines"]):
                yield f"{number}\n"

        return StreamingResponse(lines(), media_type="text/plain")

    async def later(self, tasks: BackgroundTasks) -> dict[str, bool]:
        tasks.add_task(self.events.append, "later")
        return {"ok": True}

    async def teapot(self) -> JSONResponse:
        return JSONResponse({"detail": "teapot"}, status_code=418)

    async def broken(self) -> None:
        raise LookupError("a bug")

    async def anything(self, name: str, request: Request) -> dict[str, Any]:
        return {"name": name, "arguments": await request.json()}

    def verify(self, request: Request, body: BaseVerifyRequest) -> BaseVerifyResponse:  # type: ignore[override]
        count = self.counts.get(request.session[SESSION_ID_KEY], 0)
        if not count:
            raise JudgeError("the judge is away")
        self.events.append(f"verified in {threading.get_ident()}")
        return BaseVerifyResponse(**body.model_dump(), reward=float(count))


def made() -> Odd:
    return Odd(config=BaseResourcesServerConfig(name="odd-env"), server_client=ServerClient())


@pytest.fixture(params=[SimpleResourcesServer.asgi, SimpleResourcesServer.setup_webserver], ids=["served", "tested"])
def app(request: pytest.FixtureRequest) -> tuple[Odd, Any]:
    """As it is served, and as environments' own tests have it."""
    server = made()
    how: Callable[[Any], Any] = request.param
    return server, getattr(server, how.__name__)()


def test_tools_of_every_shape(app: tuple[Odd, Any]) -> None:
    server, asgi = app
    with TestClient(asgi) as client:
        assert server.events == ["up"]
        first = client.post("/count", json={"x": [1, None]}).json()
        assert (first["count"], first["got"]) == (1, {"x": [1, None]})
        assert first["thread"] != server.loop_thread
        assert client.post("/count", json={}).json()["count"] == 2
        assert client.post("/stream", json={"lines": 3}).text == "0\n1\n2\n"
        assert client.post("/later").json() == {"ok": True}
        assert (client.post("/teapot").status_code, client.post("/teapot").json()) == (418, {"detail": "teapot"})
        assert client.post("/tools/a-b", json=[1]).json() == {"name": "a-b", "arguments": [1]}
        assert client.post("/count", content=b"no json").status_code == 422
        assert server.events[1:] == ["later"]
    assert server.events[-1] == "down"


def test_a_verifier_that_is_not_async(app: tuple[Odd, Any]) -> None:
    server, asgi = app
    with TestClient(asgi) as client:
        unmeasured = client.post("/verify", json=ROW).json()
        assert (unmeasured["mask_sample"], unmeasured["failure_kind"]) == (True, "judge_failed")
        client.post("/count", json={})
        assert client.post("/verify", json=ROW).json()["reward"] == 1.0
        assert client.post("/verify", json={}).status_code == 422
    (told,) = [event for event in server.events if event.startswith("verified in")]
    assert told != f"verified in {server.loop_thread}"


def test_sessions_do_not_see_each_other() -> None:
    asgi = made().asgi()
    with TestClient(asgi) as one, TestClient(asgi) as other:
        assert [one.post("/count", json={}).json()["count"] for _ in range(2)] == [1, 2]
        assert other.post("/count", json={}).json()["count"] == 1


def test_a_bug_is_an_answer_where_it_is_served_and_an_exception_where_it_is_tested() -> None:
    with TestClient(made().asgi()) as client:
        answer = client.post("/broken")
        assert (answer.status_code, answer.json()) == (500, "LookupError('a bug')")
    with TestClient(made().setup_webserver()) as client, pytest.raises(LookupError, match="a bug"):
        client.post("/broken")
