"""The plain agent: a loop of model and tools over the environment's routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import Request, Response
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError

from nemo_gym.agent_server.environment import Environment, aggregated, seed_prepares_nothing
from nemo_gym.agent_server.failures import unreachable_is
from nemo_gym.base_responses_api_agent import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseResponsesAPIAgentConfig,
    BaseRunRequest,
    RolloutFailed,
    SimpleResponsesAPIAgent,
)
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.environment.mcp_names import NEMO_GYM_MCP_METADATA_KEY, NEMO_GYM_MCP_SESSION_TOKEN_HEADER
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import rollout_path
from nemo_gym.web.abilities import gives_token_ids
from nemo_gym.web.body import dumps
from responses_api_agents.simple_agent.loop import Limits, Loop, attach_tokens
from responses_api_agents.simple_agent.tools import McpTools, RouteTools, Tools

log = logging.getLogger("nemo_gym.simple_agent")


class SimpleAgentConfig(Limits, BaseResponsesAPIAgentConfig):
    model_config = ConfigDict(extra="forbid")

    resources_server: ResourcesServerRef | None = None
    model_server: ModelServerRef
    timeout_s: float | None = Field(default=None, gt=0)
    """Of the conversation, model and tools; without it the job's deadline is the only one."""
    tools: Literal["routes", "mcp"] = "routes"
    """How the environment's tools are called. Over MCP they are offered to the model beside the row's own."""


class SimpleAgentRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow", populate_by_name=True)


class SimpleAgent(SimpleResponsesAPIAgent):
    config: SimpleAgentConfig
    _seedless: bool | None = PrivateAttr(default=None)
    """Whether the environment has said that its seed prepares nothing."""
    _without_tokens: bool | None = PrivateAttr(default=None)
    """Whether the model server has said that it gives no token ids, so that no rollout need ask for them."""

    async def responses(  # type: ignore[override]
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming
    ) -> Response:
        token = request.headers.get(NEMO_GYM_MCP_SESSION_TOKEN_HEADER)
        seed = {NEMO_GYM_MCP_METADATA_KEY: {"headers": {NEMO_GYM_MCP_SESSION_TOKEN_HEADER: token} if token else {}}}
        async with self._tools(dict(request.cookies), seed) as tools:
            loop = self._loop(self.url_path_for_request("/v1/responses", request), tools)
            result = await self._played(loop, _sent(body))
        response = Response(dumps(result), media_type="application/json")
        for name, value in (tools.cookies if isinstance(tools, RouteTools) else {}).items():
            response.set_cookie(name, value)
        return response

    async def run(self, request: Request, body: SimpleAgentRunRequest) -> Response:  # type: ignore[override]
        environment = Environment(self.server_client, self._environment(), request.cookies)
        rollout_id = self.rollout_id_from_run(body)
        row = _sent(body)
        seed = await environment.seed(row) if await self._needs_seed(row) else None
        async with self._tools(environment.cookies, seed) as tools:
            loop = self._loop(rollout_path(rollout_id, "/v1/responses"), tools)
            row["response"] = await self._played(loop, row["responses_create_params"])
        if isinstance(tools, RouteTools):
            environment.cookies = tools.cookies
        result = await self._verified(environment, row)
        if rollout_id is not None:
            # After the verifier, which has no use for them: a long rollout has millions of numbers.
            await self._add_tokens(rollout_id, loop, result)
        return Response(dumps(result), media_type="application/json")

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """The environment's own figures."""
        if self.config.resources_server is None or self.config.skip_verification:
            return await super().aggregate_metrics(body)
        return await aggregated(self.server_client, self.config.resources_server.name, body)

    async def _needs_seed(self, row: Mapping[str, Any]) -> bool:
        """Tools share what they do through the session that a seed begins, whether or not it prepares anything else."""
        if self.config.tools != "routes" or row["responses_create_params"].get("tools"):
            return True
        if self._seedless is None:
            self._seedless = await seed_prepares_nothing(self.server_client, self._environment())
        return not self._seedless

    def _environment(self) -> str:
        if self.config.resources_server is None:
            raise RolloutFailed("agent", f"{self.config.name} has no resources_server, so it cannot /run")
        return self.config.resources_server.name

    @asynccontextmanager
    async def _tools(self, cookies: Mapping[str, str], seed: Any) -> AsyncIterator[Tools | None]:
        """The environment's tools in one rollout's session; None without an environment."""
        if self.config.resources_server is None:
            yield None
        elif self.config.tools == "routes":
            yield RouteTools(self.server_client, self.config.resources_server.name, cookies)
        else:
            name = self.config.resources_server.name
            told = seed.get(NEMO_GYM_MCP_METADATA_KEY) if isinstance(seed, dict) else None
            if not isinstance(told, dict):
                words = f"tools: mcp needs `expose_tools_over_mcp: true` at {name}: its seed named no MCP server"
                raise RolloutFailed("infrastructure", words)
            client = self.server_client
            async with McpTools.opened(name, client.base_url(name), told, client.headers) as tools:
                yield tools

    def _loop(self, model_path: str, tools: Tools | None) -> Loop:
        return Loop(
            self.server_client,
            model=self.config.model_server.name,
            model_path=model_path,
            tools=tools,
            limits=self.config,
        )

    async def _played(self, loop: Loop, params: Mapping[str, Any]) -> dict[str, Any]:
        """The conversation to its end. Raises RolloutFailed, also at the deadline."""
        try:
            async with asyncio.timeout(self.config.timeout_s):
                return _checked(await loop.run(params))
        except TimeoutError:
            words = f"the conversation was not finished within {self.config.timeout_s:g} s (timeout_s)"
            raise RolloutFailed("timeout", words) from None

    async def _verified(self, environment: Environment, row: dict[str, Any]) -> dict[str, Any]:
        if self.config.skip_verification:
            return row | {"reward": self.config.skip_verification_reward, "verification_skipped": True}
        return await environment.verified(row)

    async def _add_tokens(self, rollout_id: str, loop: Loop, result: dict[str, Any]) -> None:
        """Token ids and log-probs from the model server's own records; without them the rollout is still whole."""
        output = (result.get("response") or {}).get("output")
        if not isinstance(output, list) or len(output) != len(loop.output):
            return  # the verifier rewrote the rollout, so places no longer mean what they did
        name = self.config.model_server.name
        if self._without_tokens is None:
            self._without_tokens = await gives_token_ids(self.server_client, name) is False
        if self._without_tokens:
            return
        try:
            with unreachable_is("model", name):
                response = await self.server_client.get(name, rollout_path(rollout_id, "/calls"))
                body = await response.read()
            if response.ok:
                attach_tokens(output, loop.turns, body)
            else:
                log.debug("no records of rollout %s: %s answered %s", rollout_id, name, response.status)
        except (RolloutFailed, ValueError) as error:
            log.warning("no token columns for rollout %s: %s", rollout_id, error)


def _sent(body: Any) -> dict[str, Any]:
    """The request as it came: what was not said stays unsaid."""
    dumped: dict[str, Any] = body.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return dumped


def _checked(response: dict[str, Any]) -> dict[str, Any]:
    try:
        NeMoGymResponse.model_validate(response)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RolloutFailed(
            "model", f"the model server's reply is no Responses object: {place}: {first['msg']}"
        ) from error
    return response


if __name__ == "__main__":
    SimpleAgent.run_webserver()
