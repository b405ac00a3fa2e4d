"""A server of episodes, written as NeMo Gym's are: its limits, its failures, and that all is closed that was opened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel, ValidationError

from nemo_gym.base_environment_server import (
    BaseEnvironmentServer,
    BaseEnvironmentServerConfig,
    CleanupContext,
    HandledEpisodeError,
)
from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.episode_types import BaseEpisodeRequest, BaseEpisodeResponse, EpisodeFailure, EpisodeId
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.server_utils import BaseServerConfig, ServerClient


class Asked(BaseModel):
    says: str


class Request(BaseEpisodeRequest[Asked]):
    pass


class Response(BaseEpisodeResponse[str]):
    pass


class Client(ServerClient):
    """As tests of such servers have one: fields of its own."""

    calls: list[str]


class Server(BaseEnvironmentServer[Request, Response]):
    request_model = Request
    response_model = Response
    closes: list[str]
    goes_on: Any = None

    async def run(self, request: Request, cleanup: CleanupContext) -> Response:
        said = request.task.task_input.says

        async def close(name: str) -> None:
            await asyncio.sleep(0)
            self.closes.append(f"{name} {current_rollout_id()}")
            if name == "bad":
                raise OSError("it is stuck")

        first = cleanup.register_cleanup("first", lambda: close("first"))
        for name in ("bad", "last"):
            cleanup.register_cleanup(name, lambda name=name: close(name))  # type: ignore[misc]
        if said == "early":
            await first.close()
            await first.close()
        if said == "late":
            await self.goes_on.wait()
        if said == "handled":
            raise HandledEpisodeError(EpisodeFailure(failure_reason="no tool", terminal=False, stage="seed"))
        if said == "unhandled":
            raise KeyError("gone")
        return Response(episode_id=request.episode_id, task_id=request.task.task_id, result=said)

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return AggregateMetrics(agent_metrics={"rows": len(body.verify_responses)})


def server(**limits: Any) -> Server:
    config = BaseEnvironmentServerConfig(name="episodes", cleanup_timeout_seconds=5, **limits)
    client = Client(head_server_config=BaseServerConfig(host="head", port=1), global_config_dict={}, calls=[])
    return Server(config=config, server_client=client, closes=[], goes_on=asyncio.Event())


def episode(says: str) -> dict[str, Any]:
    task = {"task_id": {"taskset": "set", "task_id": "1"}, "task_input": {"says": says}}
    return {"episode_id": {"rollout_id": "r1", "attempt": 2}, "task": task}


LAST_FIRST = ["last r1-a2", "bad r1-a2", "first r1-a2"]


@pytest.mark.parametrize(
    ("says", "closed", "answer"),
    [
        ("hello", LAST_FIRST, {"result": "hello", "failure": None}),
        ("early", ["first r1-a2", "last r1-a2", "bad r1-a2"], {"result": "early", "failure": None}),
        (
            "handled",
            LAST_FIRST,
            {"result": None, "failure": {"failure_reason": "no tool", "terminal": False, "stage": "seed"}},
        ),
        (
            "unhandled",
            LAST_FIRST,
            {
                "result": None,
                "failure": {
                    "failure_reason": "Unhandled environment server error: KeyError: 'gone'",
                    "terminal": True,
                },
            },
        ),
    ],
)
def test_an_episode_is_answered_and_what_it_opened_is_closed(says: str, closed: list[str], answer: Any) -> None:
    made = server()
    with TestClient(made.setup_webserver()) as client:
        got = client.post("/run", json=episode(says))
        figures = client.post("/aggregate_metrics", json={"verify_responses": [{"reward": 1.0}]})
    assert got.status_code == 200, got.text
    assert got.json() == {k: episode(says)[k] for k in ("episode_id",)} | {
        "task_id": {"taskset": "set", "task_id": "1"},
        **answer,
    }
    assert made.closes == closed
    assert figures.json()["agent_metrics"] == {"rows": 1}


async def test_an_episode_that_takes_too_long_and_one_that_waits_too_long_say_so() -> None:
    made = server(max_concurrent_episodes=1, queue_timeout_seconds=0.05, default_episode_timeout_seconds=0.5)
    late, waiting = await asyncio.gather(
        *(made.run_request(Request.model_validate(episode(says))) for says in ("late", "hello"))
    )
    assert late.failure == EpisodeFailure(failure_reason="Episode timed out", terminal=False)
    assert waiting.failure is not None
    assert (waiting.failure.stage, waiting.failure.terminal) == ("admission", False)
    assert made.closes == LAST_FIRST
    again = await made.run_request(Request.model_validate(episode("hello")))
    assert again.result == "hello"


async def test_a_caller_that_goes_leaves_nothing_open_and_frees_the_place() -> None:
    made = server(max_concurrent_episodes=1, queue_timeout_seconds=1)
    gone = asyncio.create_task(made.run_request(Request.model_validate(episode("late"))))
    await asyncio.sleep(0.01)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert made.closes == LAST_FIRST
    assert (await made.run_request(Request.model_validate(episode("hello")))).result == "hello"


async def test_what_takes_too_long_to_close_is_left() -> None:
    cleanup = CleanupContext(EpisodeId(rollout_id="r"), 0.05)
    handle = cleanup.register_cleanup("slow", lambda: asyncio.sleep(60))
    with pytest.raises(TimeoutError):
        await handle.close()
    await asyncio.wait_for(cleanup.aclose(), 5)


def test_episodes_that_may_wait_need_an_end_of_waiting() -> None:
    with pytest.raises(ValidationError, match="queue_timeout_seconds"):
        BaseEnvironmentServerConfig(name="e", cleanup_timeout_seconds=1, max_concurrent_episodes=1)
