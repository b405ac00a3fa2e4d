"""`POST /weights`, `/sleep`, `/wake` and `/ng-engine` over HTTP: who may, what is refused and in which words."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import PrivateAttr

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.config import paths
from nemo_gym.engines.weights import Weights
from nemo_gym.model_server.app import ModelApp
from nemo_gym.web.peers import ServerClient
from tests.serving import serving


class Replica:
    """An engine whose weights change as they should."""

    name, state, paused_until = "vllm-0", "ready", -math.inf

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []

    async def ask(self, method: str, step: str, *args: Any) -> Any:
        self.steps.append((step, *args))
        return {"stage": (), "probe": (-1.0, -0.5)}.get(step)


class Model(SimpleResponsesAPIModel):
    _replica: Replica = PrivateAttr(default_factory=Replica)
    _weights: Weights | None = PrivateAttr(default=None)

    @property
    def weights(self) -> Weights | None:
        if self._weights is None:
            self._weights = Weights([self._replica], "/model")  # type: ignore[list-item]
        return self._weights


@contextlib.asynccontextmanager
async def served(kind: type[SimpleResponsesAPIModel] = Model) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    server = kind(config=BaseResponsesAPIModelConfig(name="policy_model"), server_client=ServerClient({}))
    async with serving(ModelApp(server)) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client, server


async def test_new_weights_raise_the_version() -> None:
    async with served() as (client, server):
        answer = await client.post("/weights", json={"path": "/new", "in_flight": "keep"})
        assert answer.status_code == 200
        body = answer.json()
        assert (body["policy_version"], body["replicas"]) == (1, 1)
        assert 0 <= body["paused_s"] <= body["seconds"]
        assert ("pause", "keep") in server._replica.steps
        assert (await client.get("/policy_version")).json() == {"policy_version": 1}
        answer = await client.post("/weights", json={"path": "newer", "policy_version": 9})
        assert server._weights._source == str(paths.project_root() / "newer")
        assert answer.json()["policy_version"] == 9
        assert ("pause", "wait") in server._replica.steps
        assert (await client.put("/policy_version", json={"policy_version": 10})).status_code == 409


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "Object missing required field `path`"),
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ('{"path": ""}', "path: Expected `str` of length >= 1"),
        ('{"path": 7}', "path: Expected `str`, got `int`"),
        ('{"path": "/new", "policy_version": -1}', "policy_version: Expected `int` >= 0"),
        ('{"path": "/new", "policy_version": 2147483648}', "policy_version: Expected `int` <"),
        ('{"path": "/new", "policy_version": "7"}', "policy_version: Expected `int | null`, got `str`"),
        ('{"path": "/new", "policy_version": 0}', "policy_version: expected one above 0"),
        ('{"path": "/new", "in_flight": "drop"}', "in_flight: Invalid enum value 'drop'"),
        ('{"path": "/new", "version": 7}', "Object contains unknown field `version`"),
        ("\udcff", "JSON is malformed"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_stops(body: str, words: str) -> None:
    async with served() as (client, server):
        answer = await client.post("/weights", content=body.encode("utf-8", "surrogateescape"))
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(words), answer.text
        assert server._replica.steps == []


async def test_sleep_and_wake() -> None:
    async with served() as (client, server):
        assert (await client.post("/sleep", json={"level": 3})).status_code == 400
        assert (await client.post("/sleep", json={"in_flight": "keep"})).status_code == 400
        assert (await client.post("/sleep")).json() == {"state": "asleep", "policy_version": 0}
        assert (await client.post("/wake")).json() == {"state": "serving", "policy_version": 0}
        assert server._replica.steps[0] == ("sleep", 1, "wait")


@pytest.mark.parametrize("path", ["/weights", "/sleep", "/wake"])
async def test_a_server_without_engines_says_so(path: str) -> None:
    async with served(SimpleResponsesAPIModel) as (client, _):
        answer = await client.post(path, json={"path": "/new"})
        assert answer.status_code == 501
        assert "PUT /policy_version" in answer.json()["error"]["message"]
        assert (await client.get(path)).status_code == 405


async def test_engines_that_are_nobody_s_are_not_shared() -> None:
    async with served() as (client, _):
        assert (await client.get("/ng-engine")).status_code == 404
        assert (await client.post("/ng-engine", content=b"x")).status_code == 404


@pytest.mark.parametrize(("method", "path"), [("POST", "/weights"), ("POST", "/sleep"), ("GET", "/ng-engine")])
async def test_the_admin_key_or_loopback(method: str, path: str) -> None:
    server = Model(config=BaseResponsesAPIModelConfig(name="policy_model"), server_client=ServerClient({}))
    app, sent = ModelApp(server), []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "client": ("10.1.2.3", 5)}
    await app(scope, receive, send)
    assert sent[0]["status"] == 401
    assert server._replica.steps == []
