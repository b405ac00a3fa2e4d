"""Math with symbolic equivalence: `1/2`, `0.5` and `\\frac{2}{4}` are one answer, by the math-verify library.

An answer is compared in a process of its own, since an expression may take any time to simplify; one that takes too
long is no answer, and its process is ended.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from resources_servers.math_equivalence.equivalence import compare, warm


class MathEquivalenceConfig(BaseResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS

    processes: int = Field(default=2, ge=1)
    answer_timeout_s: float = Field(default=10.0, gt=0)


class MathVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    expected_answer: str


class MathVerifyResponse(MathVerifyRequest, BaseVerifyResponse):
    extracted_answer: str | None
    timed_out: bool


class MathEquivalenceServer(SimpleResourcesServer):
    config: MathEquivalenceConfig
    _pool: ProcessPoolExecutor | None = PrivateAttr(default=None)

    async def verify(self, body: MathVerifyRequest) -> MathVerifyResponse:  # type: ignore[override]
        equal, answer, timed_out = await self._compare(body.expected_answer, body.response.output_text)
        return MathVerifyResponse(
            **body.model_dump(exclude_unset=True), reward=float(equal), extracted_answer=answer, timed_out=timed_out
        )

    async def _compare(self, expected: str, text: str) -> tuple[bool, str | None, bool]:
        pool = self._pool
        if pool is None:
            context = multiprocessing.get_context("spawn")
            pool = self._pool = ProcessPoolExecutor(self.config.processes, context, initializer=warm)
            await asyncio.get_running_loop().run_in_executor(
                pool, compare, "1", "\\boxed{1}"
            )  # loading is no part of a limit
        try:
            work = asyncio.get_running_loop().run_in_executor(pool, compare, expected, text)
            equal, answer = await asyncio.wait_for(work, self.config.answer_timeout_s)
        except TimeoutError:
            self._end(pool)
            return False, None, True
        except BrokenProcessPool:  # another answer of the same processes took too long
            self._end(pool)
            return await self._compare(expected, text)
        return equal, answer, False

    def _end(self, pool: ProcessPoolExecutor) -> None:
        """The processes are ended, and the next answer gets new ones."""
        if self._pool is pool:
            self._pool = None
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        key = super().get_key_metrics(agent_metrics)
        return key | highest_k_metrics(agent_metrics, "pass@1[avg-of-{k}]", score_names=["accuracy"])


if __name__ == "__main__":
    MathEquivalenceServer.run_webserver()
