"""In the manner of a gym: reset, step, an observation and a reward after each, until it is over."""

from typing import Any, Dict

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class NumberLineConfig(BaseResourcesServerConfig):
    max_steps: int = 10
    step_cost: float = 0.05


class NumberLineSeedRequest(BaseSeedSessionRequest):
    model_config = ConfigDict(extra="allow")

    start: int = 0
    goal: int


class StepRequest(BaseModel):
    action: int


class StepResponse(BaseModel):
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Dict[str, Any] = Field(default_factory=dict)


class State(BaseModel):
    position: int
    goal: int
    steps: int = 0
    total_reward: float = 0.0
    done: bool = False


class NumberLineVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    steps: int
    reached: bool


class NumberLineServer(SimpleResourcesServer):
    config: NumberLineConfig
    states: Dict[str, State] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/reset")(self.reset)
        app.post("/step")(self.step)
        return app

    async def seed_session(self, request: Request, body: NumberLineSeedRequest) -> BaseSeedSessionResponse:
        self._reset(request, body)
        return BaseSeedSessionResponse()

    async def reset(self, request: Request, body: NumberLineSeedRequest) -> StepResponse:
        state = self._reset(request, body)
        return StepResponse(observation=f"at {state.position}", reward=0.0, terminated=False, truncated=False)

    def _reset(self, request: Request, body: NumberLineSeedRequest) -> State:
        state = self.states[request.session[SESSION_ID_KEY]] = State(position=body.start, goal=body.goal)
        return state

    async def step(self, request: Request, body: StepRequest) -> StepResponse:
        state = self.states.get(request.session[SESSION_ID_KEY])
        if state is None or state.done:
            raise HTTPException(status_code=409, detail="reset it first")
        if body.action not in (-1, 1):
            raise HTTPException(status_code=422, detail="the action is -1 or 1")
        state.steps += 1
        state.position += body.action
        terminated = state.position == state.goal
        truncated = not terminated and state.steps >= self.config.max_steps
        reward = (1.0 if terminated else 0.0) - self.config.step_cost
        state.total_reward += reward
        state.done = terminated or truncated
        observation = f"at {state.position}"
        return StepResponse(observation=observation, reward=reward, terminated=terminated, truncated=truncated)

    async def verify(self, request: Request, body: BaseVerifyRequest) -> NumberLineVerifyResponse:
        state = self.states.pop(request.session[SESSION_ID_KEY])
        reached = state.position == state.goal
        return NumberLineVerifyResponse(
            **body.model_dump(), reward=max(0.0, state.total_reward), steps=state.steps, reached=reached
        )


if __name__ == "__main__":
    NumberLineServer.run_webserver()
