"""Sessions that a caller opens at an agent under an id of its own: once each, closed alike, never after their end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from pydantic import PrivateAttr, ValidationError

from nemo_gym.base_responses_api_agent import (
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSessionSetupError,
    AgentSessionState,
    BaseResponsesAPIAgentConfig,
    SimpleResponsesAPIAgent,
)
from nemo_gym.server_utils import ServerClient

EPISODE = {"rollout_id": "r1"}
SEED = {"agent_session_id": "s1", "episode_id": EPISODE, "task_id": {"taskset": "t", "task_id": "1"}}
CLOSE = {"agent_session_id": "s1", "episode_id": EPISODE}
TOOLS = {"kind": "direct_http", "name": "tools", "required": True, "base_url": "http://127.0.0.1:1"}


@dataclass
class State(AgentSessionState):
    number: int


class Agent(SimpleResponsesAPIAgent):
    _seeded: int = PrivateAttr(default=0)
    _closed: int = PrivateAttr(default=0)
    _broken: list[str] = PrivateAttr(default_factory=list)

    async def responses(self, request: Request, body: Any = None) -> Any:  # type: ignore[override]
        name = self._agent_session_id_from_request(request)
        state = self._require_agent_session(name) if name is not None else None
        return {"number": state.number if isinstance(state, State) else None}

    async def _seed_agent_session_state(self, body: AgentSeedSessionRequest) -> AgentSessionState:
        self._seeded += 1
        state = State(request=body, number=self._seeded)
        if "seed" in self._broken:
            raise AgentSessionSetupError(state, error=ValueError("half made"))
        return state

    async def _close_agent_session_state(self, state: AgentSessionState) -> AgentCloseSessionResponse:
        self._closed += 1
        if "close" in self._broken:
            raise OSError("still busy")
        return AgentCloseSessionResponse(agent_session_id=state.request.agent_session_id, resources_cookies={"a": "b"})


def made(kind: type[SimpleResponsesAPIAgent] = Agent, **config: Any) -> Any:
    told = BaseResponsesAPIAgentConfig(name="agent", entrypoint="app.py", **config)
    return kind(config=told, server_client=MagicMock(spec=ServerClient))


def client(agent: Any) -> TestClient:
    return TestClient(agent.asgi())


def seed(caller: TestClient, **over: Any) -> Any:
    return caller.post("/v1/agent_sessions", json={**SEED, **over})


def close(caller: TestClient, **over: Any) -> Any:
    return caller.post("/v1/agent_sessions/close", json={**CLOSE, **over})


def test_one_seed_makes_one_session_however_often_it_comes() -> None:
    agent = made()
    caller, again = client(agent), client(agent)
    for one in (caller, caller, again):
        answer = seed(one)
        assert (answer.status_code, answer.json()) == (200, {"agent_session_id": "s1"})
    assert agent._seeded == 1
    assert caller.post("/v1/responses").json() == {"number": 1}
    assert client(agent).post("/v1/responses").json() == {"number": None}  # without a session's cookie
    assert seed(again, task_id={"taskset": "t", "task_id": "2"}).status_code == 409
    assert seed(caller, agent_session_id="s2").status_code == 409  # its cookie is of another


def test_a_close_is_answered_alike_and_nothing_comes_after_it() -> None:
    agent = made()
    caller = client(agent)
    seed(caller)
    assert close(caller, episode_id={"rollout_id": "r2"}).status_code == 409
    for _ in range(2):
        answer = close(caller)
        assert answer.status_code == 200
        assert answer.json() == {"agent_session_id": "s1", "agent_observations": None, "resources_cookies": {"a": "b"}}
    assert agent._closed == 1
    assert seed(client(agent)).status_code == 409
    assert caller.post("/v1/responses").status_code == 409


def test_a_close_before_its_seed_forbids_it() -> None:
    agent = made()
    assert close(client(agent)).json()["agent_session_id"] == "s1"
    assert seed(client(agent)).status_code == 409
    assert (agent._seeded, agent._closed) == (0, 0)


def test_what_cannot_be_closed_is_closed_again() -> None:
    agent = made()
    caller = client(agent)
    seed(caller)
    agent._broken.append("close")
    assert close(caller).status_code == 500
    assert caller.post("/v1/responses").status_code == 409  # it is on its way out
    agent._broken.clear()
    assert close(caller).status_code == 200
    assert agent._closed == 2


def test_what_is_half_made_is_kept_to_be_closed() -> None:
    agent = made()
    agent._broken.append("seed")
    assert seed(client(agent)).status_code == 500
    agent._broken.clear()
    assert seed(client(agent)).status_code == 409
    assert close(client(agent)).status_code == 200
    assert agent._closed == 1


def test_closes_are_forgotten_in_time() -> None:
    agent = made(session_close_retry_window_seconds=1e-6)
    caller = client(agent)
    seed(caller)
    assert close(caller).status_code == 200
    assert close(caller).status_code == 409  # its cookie says that there was one
    assert seed(client(agent)).status_code == 200
    assert list(agent._session_records) == ["s1"]


def test_an_agent_without_sessions_says_so() -> None:
    caller = client(made(SimpleResponsesAPIAgent))
    for answer in (seed(caller), close(caller)):
        assert answer.status_code == 500
        assert "has no sessions of episodes" in answer.text


def test_tools_by_name_those_of_the_seed_first() -> None:
    agent = made(tool_accesses=[TOOLS, {**TOOLS, "name": "more"}])
    asked = AgentSeedSessionRequest.model_validate({**SEED, "tool_accesses": [{**TOOLS, "required": False}]})
    assert [(one.name, one.required) for one in agent.effective_tool_accesses(asked)] == [
        ("tools", False),
        ("more", True),
    ]
    for kind, told in ((AgentSeedSessionRequest, SEED), (BaseResponsesAPIAgentConfig, {"name": "a"})):
        with pytest.raises(ValidationError, match="'tools' is there twice"):
            kind.model_validate({**told, "tool_accesses": [TOOLS, TOOLS]})
