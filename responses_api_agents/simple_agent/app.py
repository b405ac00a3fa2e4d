"""The plain agent: a loop of model and tools over the environment's routes."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import Request, Response
from pydantic import ConfigDict, Field, ValidationError

from nemo_gym.agent_server.environment import Environment, aggregated
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
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import rollout_path
from nemo_gym.web.client import dumps
from responses_api_agents.simple_agent.loop import Loop, attach_tokens

log = logging.getLogger("nemo_gym.simple_agent")


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef | None = None
    model_server: ModelServerRef
    max_steps: int | None = Field(default=None, ge=1)
    """Model calls in one rollout; without it the job's deadline is the only limit."""


class SimpleAgentRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow", populate_by_name=True)


class SimpleAgent(SimpleResponsesAPIAgent):
    config: SimpleAgentConfig

    async def responses(  # type: ignore[override]
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming
    ) -> Response:
        loop = self._loop(self.url_path_for_request("/v1/responses", request), dict(request.cookies))
        result = _checked(await loop.run(_sent(body)))
        response = Response(dumps(result), media_type="application/json")
        for name, value in loop.cookies.items():
            response.set_cookie(name, value)
        return response

    async def run(self, request: Request, body: SimpleAgentRunRequest) -> Response:  # type: ignore[override]
        environment = Environment(self.server_client, self._environment(), request.cookies)
        rollout_id = self.rollout_id_from_run(body)
        row = _sent(body)
        await environment.seed(row)
        loop = self._loop(rollout_path(rollout_id, "/v1/responses"), environment.cookies)
        row["response"] = _checked(await loop.run(row["responses_create_params"]))
        environment.cookies = loop.cookies
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

    def _environment(self) -> str:
        if self.config.resources_server is None:
            raise RolloutFailed("agent", f"{self.config.name} has no resources_server, so it cannot /run")
        return self.config.resources_server.name

    def _loop(self, model_path: str, cookies: dict[str, str]) -> Loop:
        resources = self.config.resources_server
        return Loop(
            self.server_client,
            model=self.config.model_server.name,
            model_path=model_path,
            environment=None if resources is None else resources.name,
            cookies=cookies,
            max_steps=self.config.max_steps,
        )

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
