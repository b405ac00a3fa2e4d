"""Model servers over token endpoints inside a test's loop: real HTTP on either side, and what they recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.record import CallRecord
from nemo_gym.web.peers import ServerClient
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig
from tests.live.vllm import MODEL
from tests.serving import recording, serving

_READY_S = 120


class TokenServer:
    """One that is up, and its captures."""

    def __init__(self, url: str, captures: Path) -> None:
        self.url = url
        self._captures = captures
        self._openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
        self._anthropic = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=300)

    def openai(self, rollout_id: str) -> openai.AsyncOpenAI:
        return self._openai.with_options(base_url=f"{self.url}/ng-rollout/{rollout_id}/v1")

    def anthropic(self, rollout_id: str) -> anthropic.AsyncAnthropic:
        return self._anthropic.with_options(base_url=f"{self.url}/ng-rollout/{rollout_id}")

    async def close(self) -> None:
        await self._openai.close()
        await self._anthropic.close()

    def rollouts(self) -> dict[str, list[CallRecord]]:
        """All that it has recorded, read once: the calls of each rollout in their order."""
        found: dict[str, list[CallRecord]] = {}
        for call in sorted(CaptureStore(self._captures).calls(), key=lambda call: call.times.received):
            found.setdefault(call.rollout_id or "", []).append(call)
        return found

    def records(self, rollout_id: str) -> list[CallRecord]:
        return sorted(CaptureStore(self._captures).calls(rollout_id), key=lambda call: call.times.received)


@asynccontextmanager
async def token_server(
    vllm: str, captures: Path, *, ready_s: float = _READY_S, **settings: Any
) -> AsyncIterator[TokenServer]:
    """Over a vLLM's URL; `settings` are those of vllm_model. An AssertionError says why it is not ready in time."""
    told = {"name": "policy", "base_url": f"{vllm}/v1", "model": "tiny-policy", "api": "completions"}
    config = VLLMModelConfig.model_validate({**told, "tokenizer": str(MODEL), **settings})
    app = recording(VLLMModel(config=config, server_client=ServerClient({})), captures)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        until = time.monotonic() + ready_s
        while (ready := await client.get("/ready")).status_code != 200:
            assert time.monotonic() < until, ready.text
            await asyncio.sleep(0.2)
        server = TokenServer(url, captures)
        try:
            yield server
        finally:
            await server.close()
