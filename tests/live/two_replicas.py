"""Two replicas behind one model server inside the tests' loop: one start for all that is asked of them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil

from nemo_gym.engines.replica import Replica
from nemo_gym.web.peers import ServerClient
from responses_api_models.local_vllm_model.app import LocalVLLMModel, LocalVLLMModelConfig
from tests.live.device import Device
from tests.serving import recording, serving

MODEL = os.environ.get("NEMO_GYM_TEST_MODEL", str(Path(__file__).parents[2] / "models" / "tiny_policy"))
KILLS = int(os.environ.get("NEMO_GYM_TEST_KILLS", "10"))
WHOLE_S = 1500.0
"""A restart takes some twenty seconds where nothing else runs, and minutes where much does."""


class TwoReplicas:
    def __init__(self, url: str, captures: Path, model: LocalVLLMModel, others: set[psutil.Process]) -> None:
        self.url = url
        self.captures = captures
        self.model = model
        self._others = others
        """Processes that other tests have started."""

    @property
    def replicas(self) -> list[Replica]:
        assert self.model._deployment is not None
        return self.model._deployment.engine.replicas

    def processes(self) -> list[psutil.Process]:
        """Of these servers alone."""
        return [one for one in psutil.Process().children(recursive=True) if one not in self._others]

    async def until_whole(self) -> float:
        """Seconds until the server is ready."""
        begun = time.monotonic()
        async with httpx.AsyncClient(base_url=self.url, timeout=120) as client:
            while (answer := await client.get("/ready")).status_code != 200:
                assert time.monotonic() - begun < WHOLE_S, answer.text
                await asyncio.sleep(0.5)
        return time.monotonic() - begun


@asynccontextmanager
async def running(device: Device, captures: Path) -> AsyncIterator[TwoReplicas]:
    others = set(psutil.Process().children(recursive=True))
    config = LocalVLLMModelConfig(
        name="policy_model",
        model=MODEL,
        model_name="tiny-policy",
        num_replicas=2,
        num_gpus=device.gpus,
        engine_args={"max_model_len": 2048, "dtype": "float32", **device.engine_args},
        max_restarts=KILLS,
        restart_window_s=3600,
        start_timeout_s=3000,
    )
    model = LocalVLLMModel(config=config, server_client=ServerClient({}))
    async with serving(recording(model, captures, durability="flush")) as url:
        at = TwoReplicas(url, captures, model, others)
        await at.until_whole()
        yield at
