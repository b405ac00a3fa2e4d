from typing import Any

import pytest
from fastapi import Request
from pydantic import ConfigDict, Field
from starlette.testclient import TestClient

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient

RESPONSE = {
    "id": "resp_1",
    "created_at": 0,
    "model": "m",
    "object": "response",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [],
}
ROW = {"responses_create_params": {"input": "hi"}, "_ng_rollout_id": "r.1"}


class Seed(BaseSeedSessionRequest):
    start: int = 0


class Verify(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")
    fail: bool = False


class Counter(SimpleResourcesServer):
    """An environment that keeps its state by session id, in NeMo Gym's manner."""

    config: BaseResourcesServerConfig
    counts: dict[str, int] = Field(default_factory=dict)

    def setup_webserver(self) -> Any:
        app = super().setup_webserver()
        app.post("/increment")(self.increment)
        return app

    async def seed_session(self, request: Request, body: Seed) -> BaseSeedSessionResponse:  # type: ignore[override]
        self.counts[request.session[SESSION_ID_KEY]] = body.start
        return BaseSeedSessionResponse()

    async def increment(self, request: Request) -> dict[str, int]:
        session = request.session[SESSION_ID_KEY]
        self.counts[session] += 1
        return {"count": self.counts[session]}

    async def verify(self, request: Request, body: Verify) -> BaseVerifyResponse:  # type: ignore[override]
        if body.fail:
            raise RuntimeError("the verifier is broken")
        return BaseVerifyResponse(**body.model_dump(), reward=self.counts[request.session[SESSION_ID_KEY]])

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return {"best": max(row["reward"] for task in tasks for row in task)}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return {"best": agent_metrics["best"]}


@pytest.fixture
def app():
    return Counter(config=BaseResourcesServerConfig(name="counter"), server_client=ServerClient({})).asgi()


def test_a_session_lives_from_seed_to_verify_and_is_its_own(app):
    with TestClient(app) as one, TestClient(app) as other:
        assert one.post("/seed_session", json=ROW | {"start": 10}).status_code == 200
        assert other.post("/seed_session", json=ROW).status_code == 200
        assert one.post("/increment").json() == {"count": 11}
        assert other.post("/increment").json() == {"count": 1}
        assert one.post("/verify", json=ROW | {"response": RESPONSE}).json()["reward"] == 11


def test_a_broken_verifier_is_a_failure_and_no_reward(app):
    with TestClient(app) as client:
        client.post("/seed_session", json=ROW)
        answer = client.post("/verify", json=ROW | {"response": RESPONSE, "fail": True})
        assert answer.status_code == 500
        assert "the verifier is broken" in answer.text
        assert client.post("/verify", json=ROW | {"response": RESPONSE}).status_code == 200


def test_a_bad_body_names_the_field(app):
    with TestClient(app) as client:
        answer = client.post("/verify", json=ROW)
        assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["body", "response"])


def test_an_environment_adds_figures_of_its_own(app):
    rows = [{"_ng_task_index": task, "reward": reward} for task, reward in ((0, 1.0), (1, 4.0), (10, 2.0))]
    rows.append({"_ng_task_index": 2, "reward": 9.0, "mask_sample": True})
    with TestClient(app) as client:
        metrics = client.post("/aggregate_metrics", json={"verify_responses": rows}).json()
        coverage = {"measured_rollouts": 3, "masked_rollouts": 1, "measured_tasks": 3, "fully_masked_tasks": 1}
        assert metrics["key_metrics"] == {"best": 4.0} | {f"coverage/{name}": n for name, n in coverage.items()}
        assert metrics["agent_metrics"]["median/reward"] == 2.0
        assert [group["_ng_task_index"] for group in metrics["group_level_metrics"]] == [0, 1, 10]
        empty = client.post("/aggregate_metrics", json={"verify_responses": []}).json()
        assert (empty["agent_metrics"], empty["key_metrics"]) == ({}, {})
