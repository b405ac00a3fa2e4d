"""The environment of a rollout as an agent calls it: seeded before, asked for the reward after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp import ClientResponse

from ..config.types import AggregateMetrics, AggregateMetricsRequest
from ..web.peers import ServerClient, get_response_json
from .failures import RolloutFailed, answer_of, unreachable_is


class Environment:
    """One rollout's session at a resources server.

    Args:
        cookies: the session; kept up to date.
    """

    def __init__(self, client: ServerClient, name: str, cookies: Mapping[str, str]) -> None:
        self.name = name
        self.cookies = dict(cookies)
        self._client = client

    async def seed(self, row: Mapping[str, Any]) -> Any:
        with unreachable_is("infrastructure", self.name):
            response = await self._client.post(self.name, "/seed_session", json=row, cookies=self.cookies)
        answer = await answer_of(response, "infrastructure", self.name)
        self.cookies.update(cookies_of(response))
        return answer

    async def verified(self, row: Mapping[str, Any]) -> dict[str, Any]:
        with unreachable_is("verifier", self.name):
            response = await self._client.post(self.name, "/verify", json=row, cookies=self.cookies)
        result = await answer_of(response, "verifier", self.name)
        if not isinstance(result, dict):
            raise RolloutFailed("verifier", f"{self.name} answered /verify with something that is no object")
        return result


async def seed_prepares_nothing(client: ServerClient, name: str) -> bool | None:
    """Whether a rollout without tools is the same without its seed; None where that is not known now."""
    try:
        response = await client.get(name, "/seed_mode")
        told = await get_response_json(response)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
    except ValueError:
        return False
    return response.ok and told == "nothing"


async def aggregated(client: ServerClient, name: str, body: AggregateMetricsRequest) -> AggregateMetrics:
    """The environment's own figures."""
    with unreachable_is("infrastructure", name):
        response = await client.post(name, "/aggregate_metrics", json=body)
    return AggregateMetrics.model_validate(await answer_of(response, "infrastructure", name))


def cookies_of(response: ClientResponse) -> dict[str, str]:
    return {name: morsel.value for name, morsel in response.cookies.items()}
