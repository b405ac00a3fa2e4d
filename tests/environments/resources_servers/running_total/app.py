"""Many steps on the state of a session: a sum that only the environment keeps."""

from typing import Dict

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class RunningTotalConfig(BaseResourcesServerConfig):
    step_limit: int = 3


class RunningTotalSeedRequest(BaseSeedSessionRequest):
    start: int
    target: int


class AddRequest(BaseModel):
    amount: int


class TotalResponse(BaseModel):
    total: int


class RunningTotalVerifyRequest(BaseVerifyRequest):
    start: int
    target: int


class RunningTotalVerifyResponse(BaseVerifyResponse):
    total: int
    steps: int


class RunningTotalServer(SimpleResourcesServer):
    config: RunningTotalConfig
    totals: Dict[str, int] = Field(default_factory=dict)
    steps: Dict[str, int] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add")(self.add)
        app.post("/get_total")(self.get_total)
        return app

    async def seed_session(self, request: Request, body: RunningTotalSeedRequest) -> BaseSeedSessionResponse:
        session_id = request.session[SESSION_ID_KEY]
        self.totals[session_id] = body.start
        self.steps[session_id] = 0
        return BaseSeedSessionResponse()

    async def add(self, request: Request, body: AddRequest) -> TotalResponse:
        session_id = request.session[SESSION_ID_KEY]
        if self.steps[session_id] >= self.config.step_limit:
            raise HTTPException(status_code=409, detail="no steps are left")
        self.steps[session_id] += 1
        self.totals[session_id] += body.amount
        return TotalResponse(total=self.totals[session_id])

    async def get_total(self, request: Request) -> TotalResponse:
        return TotalResponse(total=self.totals[request.session[SESSION_ID_KEY]])

    async def verify(self, request: Request, body: RunningTotalVerifyRequest) -> RunningTotalVerifyResponse:
        session_id = request.session[SESSION_ID_KEY]
        total, steps = self.totals.pop(session_id), self.steps.pop(session_id)
        return RunningTotalVerifyResponse(
            **body.model_dump(), total=total, steps=steps, reward=float(total == body.target and steps > 0)
        )


if __name__ == "__main__":
    RunningTotalServer.run_webserver()
