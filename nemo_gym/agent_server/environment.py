"""The environment of a rollout as an agent calls it: seeded before, asked for the reward after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.types import AggregateMetrics, AggregateMetricsRequest
from ..web.peers import ServerClient
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
            answer = await self._client.ask(self.name, "/seed_session", row, cookies=self.cookies)
        said = answer_of(answer, "infrastructure", self.name)
        self.cookies.update(answer.cookies())
        return said

    async def verified(self, row: Mapping[str, Any]) -> dict[str, Any]:
        with unreachable_is("verifier", self.name):
            answer = await self._client.ask(self.name, "/verify", row, cookies=self.cookies)
        result = answer_of(answer, "verifier", self.name)
        if not isinstance(result, dict):
            raise RolloutFailed("verifier", f"{self.name} answered /verify with something that is no object")
        return result


async def seed_prepares_nothing(client: ServerClient, name: str) -> bool | None:
    """Whether a rollout without tools is the same without its seed; None where that is not known now."""
    try:
        answer = await client.ask(name, "/seed_mode", method="GET")
        return answer.ok and answer.json() == "nothing"
    except OSError:  # a timeout too
        return None
    except ValueError:
        return False


async def aggregated(client: ServerClient, name: str, body: AggregateMetricsRequest) -> AggregateMetrics:
    """The environment's own figures."""
    with unreachable_is("infrastructure", name):
        answer = await client.ask(name, "/aggregate_metrics", body)
    return AggregateMetrics.model_validate(answer_of(answer, "infrastructure", name))
