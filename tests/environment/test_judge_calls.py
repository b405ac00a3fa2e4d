"""What a verifier asks of a model is recorded with the rollout that it judges, and is no training data. # C4"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, BaseRunRequest, SimpleResponsesAPIAgent
from nemo_gym.judge import call_judge
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import ServerClient, get_response_json
from nemo_gym.web import client
from tests.bench import HELLO, bench
from tests.scripted import Answer, chat_reply
from tests.serving import serving


class Judged(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        verdict = await call_judge(
            self.server_client,
            server_name="policy_model",
            url_path="/v1/responses",
            json={"input": "Is it right?"},
            response_model=NeMoGymResponse,
        )
        return BaseVerifyResponse(**body.model_dump(), reward=float("Hello" in verdict.output_text))


class Plain(SimpleResponsesAPIAgent):
    """Asks the model under no id of its own, as an agent does that knows nothing of rollouts."""

    config: BaseResponsesAPIAgentConfig

    async def run(self, body: BaseRunRequest) -> BaseVerifyResponse:
        params = body.responses_create_params.model_dump(exclude_unset=True)
        answer = await self.server_client.post("policy_model", "/v1/responses", json=params)
        row = body.model_dump() | {"response": await get_response_json(answer)}
        return await get_response_json(await self.server_client.post("env", "/verify", json=row))


@asynccontextmanager
async def loop_of(tmp_path: Path) -> AsyncIterator[tuple[Any, ServerClient]]:
    """A model server, an environment that asks it for verdicts, and an agent."""
    async with bench(tmp_path, [Answer(chat_reply())]) as at:
        known = ServerClient({"policy_model": at.url})
        env = Judged(config=BaseResourcesServerConfig(name="env"), server_client=known)
        async with serving(env.asgi()) as url:
            known.base_urls["env"] = url
            agent = Plain(config=BaseResponsesAPIAgentConfig(name="agent"), server_client=known)
            async with serving(agent.asgi()) as url:
                known.base_urls["agent"] = url
                try:
                    yield at, known
                finally:
                    await client.close()


def row(**more: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": HELLO}} | more


async def test_a_verdict_is_recorded_with_its_rollout_and_not_trained(tmp_path: Path) -> None:
    async with loop_of(tmp_path) as (at, known):
        answer = await known.post("agent", "/run", json=row(_ng_rollout_id="r-7"))
        assert (await get_response_json(answer))["reward"] == 1.0
        records = at.records()
    assert [record.rollout_id for record in records] == ["r-7", "r-7"]
    asked, verdict = sorted(records, key=lambda record: record.times.received)
    assert (asked.trainable, verdict.trainable) == (True, False)


@pytest.mark.parametrize("path", ["/verify", "/ng-rollout/r-8/verify"])
async def test_whoever_asks_for_the_reward_says_which_rollout_it_is(tmp_path: Path, path: str) -> None:
    headers = {} if path.startswith("/ng-rollout") else {"x-ng-rollout-id": "r-8"}
    async with loop_of(tmp_path) as (at, known):
        response = await get_response_json(await known.post("policy_model", "/v1/responses", json={"input": "Hi"}))
        answer = await known.post("env", path, json=row(response=response), headers=headers)
        assert (await get_response_json(answer))["reward"] == 1.0
        told = {record.rollout_id: record.trainable for record in at.records()}
    assert told == {None: True, "r-8": False}


async def test_outside_of_a_rollout_nothing_is_said(tmp_path: Path) -> None:
    async with loop_of(tmp_path) as (at, known):
        await known.post("agent", "/run", json=row())
        assert {record.rollout_id for record in at.records()} == {None}
