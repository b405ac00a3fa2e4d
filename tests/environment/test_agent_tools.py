"""What agents within sandboxes share: addresses, tools over MCP, and the verifier's word on an agent that failed."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.config_types import ResourcesServerRef
from nemo_gym.environment.sandbox import agent_tools as room
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.sandbox.agent_tools import (
    restricted_network_policy,
    sandbox_server_url,
    seed_mcp_servers,
    verify_agent_response,
)
from nemo_gym.server_utils import ServerClient

ENV = ResourcesServerRef(type="resources_servers", name="env")
RUN = BaseRunRequest.model_validate({"responses_create_params": {"input": "?"}})
MESSAGE = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": []}
RESPONSE = NeMoGymResponse.model_validate(
    {
        "id": "r",
        "created_at": 0,
        "model": "m",
        "object": "response",
        "output": [MESSAGE],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
)


def answering(body: dict[str, Any]) -> MagicMock:
    client = MagicMock(spec=ServerClient)
    answer = MagicMock(ok=True)
    answer.read = AsyncMock(return_value=json.dumps(body).encode())
    client.post = AsyncMock(return_value=answer)
    return client


@pytest.mark.parametrize(
    ("told", "from_within"),
    [
        ("http://127.0.0.1:8001", "http://127.0.0.1:8001"),
        ("http://0.0.0.0:8001", "http://127.0.0.1:8001"),
        ("http://[::]:8001", "http://[::1]:8001"),
        ("http://10.0.0.5:8001", "http://10.0.0.5:8001"),
    ],
)
def test_an_address_as_a_sandbox_has_it(monkeypatch: pytest.MonkeyPatch, told: str, from_within: str) -> None:
    monkeypatch.setattr(room, "get_server_url", lambda name: told)
    assert sandbox_server_url("env") == from_within
    if "10." in told:
        assert sandbox_server_url("env", require_reachable=True) == told
    else:
        with pytest.raises(ValueError, match="a sandbox cannot reach"):
            sandbox_server_url("env", require_reachable=True)


def test_nothing_but_what_is_named_may_be_reached() -> None:
    urls = ["http://10.0.0.5:1/v1", "http://tools.example/mcp", "http://10.0.0.5:2"]
    policy = restricted_network_policy("opensandbox", urls)
    assert policy["defaultAction"] == "deny"
    assert policy["egress"] == [{"action": "allow", "target": host} for host in ("10.0.0.5", "tools.example")]
    with pytest.raises(ValueError, match="'local' cannot restrict"):
        restricted_network_policy("local", urls)
    with pytest.raises(ValueError, match="a sandbox cannot reach"):
        restricted_network_policy("opensandbox", ["http://localhost:1"])


async def test_tools_are_seeded_and_only_their_token_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "get_server_url", lambda name: "http://127.0.0.1:9")
    client = answering({"mcp": {"server_name": "env", "url_path": "/mcp", "headers": {"token": "t"}}})
    found = await seed_mcp_servers(client, [ENV], RUN, {"c": "d"}, timeout_s=1.5)
    assert found == {
        "env": {"url": "http://127.0.0.1:9/mcp", "headers": {"token": "t"}, "enabled": True, "timeout": 1500}
    }
    assert client.post.await_args.kwargs["cookies"] == {"c": "d"}
    with pytest.raises(ValueError, match="env must expose authenticated MCP tools"):
        await seed_mcp_servers(answering({}), [ENV], RUN, {}, timeout_s=1)


async def test_an_agent_that_failed_is_scored_on_nothing_and_shown_whole() -> None:
    client = answering({"reward": 0.0, "score": 0, "response": {}})
    result = await verify_agent_response(client, ENV, RUN, RESPONSE, {}, force_zero_reward=True)
    assert client.post.await_args.kwargs["json"]["response"]["output"] == []
    assert (result["reward"], result["score"], result["failure_kind"]) == (0.0, 0, "agent_run_error")
    assert result["response"]["output"][0]["id"] == "m"
    for wrong in ({"reward": 1.0}, {"reward": 0.0, "mask_sample": True}):
        with pytest.raises(ValueError, match="not a measured 0"):
            await verify_agent_response(answering(wrong), ENV, RUN, RESPONSE, {}, force_zero_reward=True)


async def test_one_that_did_not_is_scored_on_what_it_said() -> None:
    client = answering({"reward": 1.0})
    assert await verify_agent_response(client, ENV, RUN, RESPONSE, {}, force_zero_reward=False) == {"reward": 1.0}
    assert client.post.await_args.kwargs["json"]["response"]["output"][0]["id"] == "m"
