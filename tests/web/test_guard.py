"""Beyond one machine: peers give the run's key, everyone else is told that there is one."""

import httpx
import pytest
from fastapi import FastAPI

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.model_server.server import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.web import client
from nemo_gym.web.guard import Guard
from nemo_gym.web.peers import ServerClient
from nemo_gym.web.service import ServerContext, client_of
from tests.serving import serving


@pytest.fixture
def app():
    made = FastAPI()
    for path in ("/health", "/who"):
        made.get(path)(lambda: {"here": True})
    return Guard(made, ("admin", "calls"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer admin"}, 200),
        ({"authorization": "Bearer ng-rollout:r1:calls"}, 200),
        ({"x-api-key": "calls"}, 200),
        ({"authorization": "Bearer admi"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Bearer \xff"}, 401),
    ],
)
async def test_who_is_let_in(app, headers, status):
    raw = [(name, value.encode("latin-1")) for name, value in headers.items()]
    async with serving(app) as url, httpx.AsyncClient(timeout=60) as http:
        assert (await http.get(url + "/who", headers=raw)).status_code == status
        assert (await http.post(url + "/who", headers=raw, content=b"x" * 100_000)).status_code in (status, 405)
        assert (await http.get(url + "/health", headers=raw)).status_code == 200


async def test_peers_give_the_key_of_their_run(app):
    async with serving(app) as url:
        told = ServerContext("a", "responses_api_agents", "b", {}, {"env": url}, admin_key="admin", call_key="calls")
        assert (await client_of(told).get("env", "/who")).status == 200
        assert (await ServerClient({"env": url}).get("env", "/who")).status == 401
        own = {"Authorization": "Bearer wrong"}
        assert (await client_of(told).get("env", "/who", headers=own)).status == 401  # what a caller says goes before
        await client.close()


class Model(SimpleResponsesAPIModel):
    config: BaseResponsesAPIModelConfig


class Environment(SimpleResourcesServer):
    config: BaseResourcesServerConfig


def context(ray_address="10.0.0.1:6379", **settings):
    keys = {"admin_key": "admin", "call_key": "calls"}
    return ServerContext("m", "responses_api_models", "x", settings, ray_address=ray_address, **keys)


def test_a_model_server_takes_the_runs_keys_among_its_own():
    beyond = {"host": "10.0.0.1"}
    assert Model.from_context(context(**beyond)).config.api_keys == ["calls", "admin"]
    assert Model.from_context(context(api_keys=["mine"], **beyond)).config.api_keys == ["mine", "calls", "admin"]
    assert Model.from_context(context(allow_unauthenticated=True, **beyond)).config.api_keys == []
    assert Environment.from_context(context(**beyond)).config.host == "10.0.0.1"


def test_on_one_machine_only_a_server_with_keys_takes_the_runs():
    assert Model.from_context(context(ray_address="", api_keys=["mine"])).config.api_keys == ["mine", "calls", "admin"]
    assert Model.from_context(context(ray_address="")).config.api_keys == []
