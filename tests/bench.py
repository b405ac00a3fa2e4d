"""A model server between a scripted backend and the clients: real HTTP on both sides, real capture."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import openai

from nemo_gym.capture import CaptureStore
from nemo_gym.model_server.app import ModelApp
from nemo_gym.web.peers import ServerClient
from responses_api_models.vllm_model.app import VLLMModel
from tests.scripted import ScriptedBackend, scripted
from tests.serving import recording, serving

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


Client = TypeVar("Client")


class Bench:
    """A model server between a scripted backend and the clients."""

    def __init__(self, url: str, backend: ScriptedBackend, captures: Path) -> None:
        self.url = url
        self.backend = backend
        self.captures = captures
        self.apps: list[ModelApp] = []  # where a test looks behind the wire
        self._clients: list[Any] = []

    def client(self, rollout_id: str | None = "r1") -> openai.AsyncOpenAI:
        prefix = f"/ng-rollout/{rollout_id}" if rollout_id else ""
        return self._kept(
            openai.AsyncOpenAI(base_url=f"{self.url}{prefix}/v1", api_key="none", max_retries=0, timeout=600)
        )

    def anthropic(self, rollout_id: str | None = "r1") -> Any:
        import anthropic  # not where only the other dialects are spoken: it takes its time

        prefix = f"/ng-rollout/{rollout_id}" if rollout_id else ""
        return self._kept(
            anthropic.AsyncAnthropic(base_url=f"{self.url}{prefix}", api_key="none", max_retries=0, timeout=600)
        )

    def _kept(self, client: Client) -> Client:
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """Every client that was handed out."""
        for client in self._clients:
            await client.close()

    def records(self) -> list[Any]:
        return list(CaptureStore(self.captures).calls())


@contextlib.asynccontextmanager
async def bench(
    tmp_path: Path,
    answers: Any,
    *,
    capture: dict[str, Any] | None = None,
    kind: Any = VLLMModel,
    root: bool = False,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """`kind` is the server's class; `root`: its endpoint's base URL has no `/v1`."""
    async with scripted(answers) as backend:
        url = backend.url.removesuffix("/v1") if root else backend.url
        told = {"base_url": url, "model": "scripted-model", "retries": 0}
        if kind is VLLMModel:
            told["return_token_ids"] = False
        config = kind.config_class()(name="policy_model", **told | settings)
        server = kind(config=config, server_client=ServerClient({}))
        app = recording(server, tmp_path, **{"durability": "fsync"} | (capture or {}))
        async with serving(app) as url:
            at = Bench(url, backend, tmp_path)
            at.apps.append(app)
            try:
                yield at
            finally:
                await at.close()
