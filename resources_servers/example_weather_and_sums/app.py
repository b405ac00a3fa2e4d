"""Two tools, a weather report and a calculator, and a verifier that wants them used and their result stated.

A task's own weather is put into its session when it is seeded, so the tool's answer, and with it the reward of a given
reply, is fixed by the dataset row. Nothing is kept in this process: any worker can answer any call.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, ClassVar, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)

CONDITIONS = ("sunny", "cloudy", "rainy", "snowy", "windy", "foggy", "clear", "stormy")
# Not inside a word or another number: the 1 of 12, the 5 of 3.5 and the dash of 10-12 are no numbers of their own.
_NUMBER = re.compile(r"(?<![\w.,])[-\u2212]?\d+(?:,\d{3})*(?:\.\d+)?")
_WORD = re.compile(r"[a-z]+")


class WeatherAndSumsConfig(BaseResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS


class Weather(BaseModel):
    tool: Literal["get_weather"]
    city: str
    temperature: int
    condition: str


class Sum(BaseModel):
    tool: Literal["calculator"]
    a: int
    b: int
    result: int


Expected = Annotated[Weather | Sum, Field(discriminator="tool")]


class SeedRequest(BaseSeedSessionRequest):
    expected: Expected | None = None


class VerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow", populate_by_name=True)
    expected: Expected


class VerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow", populate_by_name=True)
    expected: Expected
    called: bool
    """The right tool was called with the right arguments."""
    stated: bool
    """The last message, written after that call, states the facts and no others."""


class GetWeatherRequest(BaseModel):
    city: str


class GetWeatherResponse(BaseModel):
    city: str
    temperature: int
    condition: str


class CalculatorRequest(BaseModel):
    a: int
    b: int


class CalculatorResponse(BaseModel):
    result: int


class Spaced(JSONResponse):
    """JSON with a space after each colon and comma, the way the embedded model has learned to read it.

    Without them `:12` is another token than `12`, and a model of its size copies the wrong number.
    """

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode()


class WeatherAndSumsServer(SimpleResourcesServer):
    config: WeatherAndSumsConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/get_weather", response_class=Spaced)(self.get_weather)
        app.post("/calculator", response_class=Spaced)(self.calculator)
        return app

    async def seed_session(self, request: Request, body: SeedRequest) -> BaseSeedSessionResponse:  # type: ignore[override]
        if isinstance(body.expected, Weather):
            request.session["weather"] = body.expected.model_dump(exclude={"tool"})
        return BaseSeedSessionResponse()

    async def get_weather(self, request: Request, body: GetWeatherRequest) -> GetWeatherResponse:
        task = request.session.get("weather")
        if isinstance(task, dict) and _same(task["city"], body.city):
            return GetWeatherResponse(**task)
        return weather_elsewhere(body.city)

    async def calculator(self, body: CalculatorRequest) -> CalculatorResponse:
        return CalculatorResponse(result=body.a + body.b)

    async def verify(self, body: VerifyRequest) -> VerifyResponse:  # type: ignore[override]
        items = body.response.model_dump(mode="json")["output"]
        call = next((place for place, item in enumerate(items) if is_right_call(item, body.expected)), None)
        text = last_message(items[call + 1 :] if call is not None else items)
        stated = states(text, body.expected)
        return VerifyResponse(
            **body.model_dump(exclude_unset=True),
            reward=float(call is not None and stated),
            called=call is not None,
            stated=stated,
        )


def weather_elsewhere(city: str) -> GetWeatherResponse:
    """The weather of a city that the task did not ask about: made up, and always the same."""
    city = city.encode(errors="replace").decode()  # a lone surrogate in the model's JSON has no form in the answer's
    digest = hashlib.blake2b(city.strip().casefold().encode(), digest_size=2).digest()
    return GetWeatherResponse(
        city=city, temperature=digest[0] % 66 - 20, condition=CONDITIONS[digest[1] % len(CONDITIONS)]
    )


def is_right_call(item: dict[str, Any], expected: Weather | Sum) -> bool:
    if item.get("type") != "function_call" or item.get("name") != expected.tool:
        return False
    arguments = item.get("arguments")
    try:
        if isinstance(expected, Weather):
            return _same(GetWeatherRequest.model_validate_json(arguments or "").city, expected.city)
        given = CalculatorRequest.model_validate_json(arguments or "")
    except ValidationError:
        return False
    return sorted((given.a, given.b)) == sorted((expected.a, expected.b))


def last_message(items: list[dict[str, Any]]) -> str:
    """The text of the last assistant message, empty where there is none."""
    for item in reversed(items):
        if item.get("type") == "message" and item.get("role") == "assistant":
            content = item.get("content")
            parts = [content] if isinstance(content, str) else [part.get("text") for part in content or ()]
            return "".join(part for part in parts if isinstance(part, str))
    return ""


def states(text: str, expected: Weather | Sum) -> bool:
    """Whether the text states the expected facts; a text that also states others has guessed, and does not."""
    numbers = {_value(found) for found in _NUMBER.findall(text)}
    if isinstance(expected, Sum):
        return expected.result in numbers and numbers <= {expected.a, expected.b, expected.result}
    conditions = set(_WORD.findall(text.casefold())) & set(CONDITIONS)
    return numbers == {expected.temperature} and conditions == {expected.condition}


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("\u2212", "-"))


def _same(first: str, second: str) -> bool:
    return first.strip().casefold() == second.strip().casefold()


if __name__ == "__main__":
    WeatherAndSumsServer.run_webserver()
