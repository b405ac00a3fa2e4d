"""Code that is run: a Python program reads a test's input and must print its output, within limits.

The program runs in a process of its own (`sandbox.py`): time, memory, files and output are limited, and where the
kernel allows it has no network and sees no other process. What it prints is judged here, so it cannot pass itself.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from resources_servers.code_tests.sandbox import Limits, run

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.S)


class CodeTestsConfig(BaseResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS

    time_limit_s: float = Field(default=5.0, gt=0)
    """Of each test."""
    memory_mb: int = Field(default=512, ge=64)
    concurrency: int = Field(default=4, ge=1)
    """Programs that run at the same time."""


class CodeTest(BaseModel):
    input: str
    output: str


class CodeVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    tests: list[CodeTest] = Field(min_length=1)


class CodeVerifyResponse(CodeVerifyRequest, BaseVerifyResponse):
    extracted_code: str | None
    passed: int
    verdict: str
    """`passed`, or what became of the first test that was not: wrong, error, time, output, no code."""


class CodeTestsServer(SimpleResourcesServer):
    config: CodeTestsConfig
    _slots: asyncio.Semaphore | None = PrivateAttr(default=None)

    async def verify(self, body: CodeVerifyRequest) -> CodeVerifyResponse:  # type: ignore[override]
        code = read_code(body.response.output_text)
        passed, verdict = (0, "no code") if code is None else await self._judged(code, body.tests)
        return CodeVerifyResponse(
            **body.model_dump(exclude_unset=True),
            reward=float(verdict == "passed"),
            extracted_code=code,
            passed=passed,
            verdict=verdict,
        )

    async def _judged(self, code: str, tests: list[CodeTest]) -> tuple[int, str]:
        """How many tests in a row it passes, and what became of the next."""
        limits = Limits(self.config.time_limit_s, self.config.memory_mb)
        self._slots = self._slots or asyncio.Semaphore(self.config.concurrency)
        for passed, test in enumerate(tests):
            async with self._slots:
                result = await run(code, test.input, limits)
            verdict = result.failure or ("passed" if same(result.output, test.output) else "wrong")
            if verdict != "passed":
                return passed, verdict
        return len(tests), "passed"

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        key = super().get_key_metrics(agent_metrics)
        return key | highest_k_metrics(agent_metrics, "pass@{k}", score_names=["accuracy"])


def read_code(text: str) -> str | None:
    """The last fenced block of Python."""
    found = _BLOCK.findall(text)
    return str(found[-1]) if found and found[-1].strip() else None


def same(printed: str, expected: str) -> bool:
    """Line for line; white space at the ends of lines, and empty lines at the end, do not count."""
    return [line.rstrip() for line in printed.rstrip().split("\n")] == [
        line.rstrip() for line in expected.rstrip().split("\n")
    ]


if __name__ == "__main__":
    CodeTestsServer.run_webserver()
