"""A single tool call: the model must look a capital up, for the country that it was asked about."""

import json

from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)

CAPITALS = {"france": "Paris", "japan": "Tokyo", "kenya": "Nairobi", "peru": "Lima", "norway": "Oslo"}


class CountryFactsConfig(BaseResourcesServerConfig):
    pass


class GetCapitalRequest(BaseModel):
    country: str


class GetCapitalResponse(BaseModel):
    capital: str


class CountryFactsRunRequest(BaseRunRequest):
    country: str


class CountryFactsVerifyRequest(CountryFactsRunRequest, BaseVerifyRequest):
    pass


class CountryFactsVerifyResponse(BaseVerifyResponse):
    country: str
    asked_for: list[str]


class CountryFactsServer(SimpleResourcesServer):
    config: CountryFactsConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/get_capital")(self.get_capital)
        return app

    async def get_capital(self, body: GetCapitalRequest) -> GetCapitalResponse:
        return GetCapitalResponse(capital=CAPITALS.get(body.country.lower(), "unknown"))

    async def verify(self, body: CountryFactsVerifyRequest) -> CountryFactsVerifyResponse:
        asked_for = []
        for item in body.response.output:
            if item.type == "function_call" and item.name == "get_capital":
                asked_for.append(json.loads(item.arguments).get("country", ""))
        reward = 1.0 if asked_for == [body.country] else 0.0
        return CountryFactsVerifyResponse(**body.model_dump(), reward=reward, asked_for=asked_for)


if __name__ == "__main__":
    CountryFactsServer.run_webserver()
