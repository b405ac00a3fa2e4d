import asyncio
from functools import partial
from unittest.mock import MagicMock

import aiohttp
import pytest
from fastapi import Request

from nemo_gym.base_responses_api_agent import (
    BaseResponsesAPIAgentConfig,
    BaseRunRequest,
    RolloutFailed,
    SimpleResponsesAPIAgent,
)
from nemo_gym.server_utils import ServerClient
from tests.loopback import serving

PARAMS = {"responses_create_params": {"input": "hi"}}


class Agent(SimpleResponsesAPIAgent):
    async def responses(self, request: Request) -> dict:
        return {"path": self.url_path_for_request("/v1/responses", request)}

    async def run(self, body: BaseRunRequest) -> dict:
        what = body.responses_create_params.input
        if what == "wait":
            Agent.events.append("began")
            try:
                await asyncio.sleep(300)
            except asyncio.CancelledError:
                Agent.events.append("cancelled")
                raise
        if what in ("agent", "model", "verifier", "timeout", "infrastructure"):
            raise RolloutFailed(what, "words")
        if what == "raise":
            raise ValueError("broken")
        return {"path": self.url_path_for_run("/v1/responses", body), "base": self.base_url_for_run("http://m/", body)}


@pytest.fixture
def agent():
    Agent.events = []
    config = BaseResponsesAPIAgentConfig(name="agent")
    return Agent(config=config, server_client=ServerClient({"model": "http://127.0.0.1:1"}))


async def test_model_calls_carry_the_rollout(agent):
    async with serving(agent.asgi()) as url, aiohttp.ClientSession() as session:
        async with session.post(f"{url}/run", json=PARAMS | {"_ng_rollout_id": "r.1"}) as answer:
            assert await answer.json() == {
                "path": "/ng-rollout/r.1/v1/responses",
                "base": "http://m/ng-rollout/r.1",
            }
        async with session.post(f"{url}/run", json=PARAMS) as answer:
            assert (await answer.json())["path"] == "/v1/responses"
        async with session.post(f"{url}/ng-rollout/r.2/v1/responses", json={}) as answer:
            assert await answer.json() == {"path": "/ng-rollout/r.2/v1/responses"}
    assert agent.resolve_model_base_url("model", "r.1") == "http://127.0.0.1:1/ng-rollout/r.1/v1"
    assert agent.rollout_id_from_run({"_ng_rollout_id": "../x"}) is None
    with pytest.raises(ValueError, match="no server of this run is named 'modle': did you mean 'model'"):
        agent.resolve_model_base_url("modle")


def test_an_agent_with_a_client_that_is_none():
    """As agents' own unit tests have it."""
    client = MagicMock(spec=ServerClient)
    client.global_config_dict = {"model": {"responses_api_models": {"m": {"host": "10.0.0.5", "port": 9}}}}
    client._build_server_base_url = partial(ServerClient._build_server_base_url, client)
    agent = Agent(config=BaseResponsesAPIAgentConfig(name="agent"), server_client=client)
    assert agent.resolve_model_base_url("model", "r1") == "http://10.0.0.5:9/ng-rollout/r1/v1"
    assert agent.url_path_for_request("/v1/responses", MagicMock()) == "/v1/responses"
    row = {"_ng_task_index": 2, "_ng_rollout_index": 1}
    assert agent.url_path_for_run("/v1/responses", row) == "/v1/responses"
    client.global_config_dict["observability_enabled"] = True
    assert agent.url_path_for_run("/v1/responses", row) == "/ng-rollout/2-1/v1/responses"
    assert agent.url_path_for_run("/v1/responses", row | {"_ng_rollout_id": "r9"}) == "/ng-rollout/r9/v1/responses"


@pytest.mark.parametrize(
    ("kind", "status"),
    [("agent", 500), ("model", 502), ("verifier", 502), ("timeout", 504), ("infrastructure", 503)],
)
async def test_a_failure_says_whose_it_is(agent, kind, status):
    async with serving(agent.asgi()) as url, aiohttp.ClientSession() as session:
        body = {"responses_create_params": {"input": kind}}
        async with session.post(f"{url}/run", json=body) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["kind"] == kind


async def test_a_bug_is_an_answer_and_the_next_rollout_goes_on(agent):
    async with serving(agent.asgi()) as url, aiohttp.ClientSession() as session:
        async with session.post(f"{url}/run", json={"responses_create_params": {"input": "raise"}}) as answer:
            assert answer.status == 500
        async with session.post(f"{url}/run", json=PARAMS) as answer:
            assert answer.status == 200


async def test_a_caller_that_hangs_up_ends_the_rollout(agent):
    async def told(events):
        async with asyncio.timeout(60):
            while agent.events != events:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with serving(agent.asgi()) as url, aiohttp.ClientSession() as session:
        body = {"responses_create_params": {"input": "wait"}}
        asking = asyncio.create_task(session.post(f"{url}/run", json=body))
        await told(["began"])
        asking.cancel()
        await told(["began", "cancelled"])
