"""Multiple choice: the letter that the reply ends on, held against the right one.

The letter is read from the last `\\boxed{B}`, else from the last `Answer: B`; a reply that names none, or a letter that
is no option, is wrong. Nothing is guessed from the text of an option.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from pydantic import ConfigDict, model_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics

_BOXED = re.compile(r"\\boxed\s*\{\s*(?:\\text\s*\{)?\s*\(?([A-Za-z])\)?\s*\.?\s*\}")
_STATED = re.compile(r"\banswer\s*(?:is)?\s*[:=]?\s*\*{0,2}\(?([A-Z])\)?(?![\w'])", re.I)


class McqaConfig(BaseResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS


class McqaVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    options: list[dict[str, str]]
    """`[{"A": "..."}, {"B": "..."}]`, in the order in which they are shown."""
    expected_answer: str

    @model_validator(mode="after")
    def _answer_is_an_option(self) -> McqaVerifyRequest:
        if self.expected_answer not in self.letters():
            raise ValueError(f"expected_answer: expected one of {', '.join(self.letters())}")
        return self

    def letters(self) -> list[str]:
        return [letter for option in self.options for letter in option]


class McqaVerifyResponse(McqaVerifyRequest, BaseVerifyResponse):
    extracted_answer: str | None


class McqaServer(SimpleResourcesServer):
    config: McqaConfig

    async def verify(self, body: McqaVerifyRequest) -> McqaVerifyResponse:  # type: ignore[override]
        answer = read_answer(body.response.output_text)
        answer = answer if answer in body.letters() else None
        return McqaVerifyResponse(
            **body.model_dump(exclude_unset=True),
            reward=float(answer == body.expected_answer),
            extracted_answer=answer,
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        key = super().get_key_metrics(agent_metrics)
        for pattern in ("pass@1[avg-of-{k}]", "majority@{k}"):
            key |= highest_k_metrics(agent_metrics, pattern, score_names=["accuracy"])
        return key


def read_answer(text: str) -> str | None:
    """The letter that a reply gives, in upper case."""
    for pattern in (_BOXED, _STATED):
        if found := pattern.findall(text):
            return str(found[-1]).upper()
    return None


if __name__ == "__main__":
    McqaServer.run_webserver()
