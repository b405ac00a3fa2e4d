"""Several rewards: a sum that is right, and a reply that is polite."""

import re
from typing import Any, Dict, List

from nemo_gym.base_resources_server import (
    BaseMultiRewardVerifyResponse,
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    SimpleResourcesServer,
)
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics


class PoliteSumsConfig(BaseResourcesServerConfig):
    politeness_weight: float = 0.25


class PoliteSumsVerifyRequest(BaseVerifyRequest):
    expected_sum: int


class PoliteSumsVerifyResponse(BaseMultiRewardVerifyResponse):
    expected_sum: int
    extracted_answer: str | None
    correctness: float
    politeness: float


def _scores(result: Dict[str, Any]) -> Dict[str, float]:
    return {"accuracy": result["correctness"], "politeness": result["politeness"]}


class PoliteSumsServer(SimpleResourcesServer):
    config: PoliteSumsConfig

    async def verify(self, body: PoliteSumsVerifyRequest) -> PoliteSumsVerifyResponse:
        text = body.response.output_text
        numbers = re.findall(r"-?\d+", text)
        answer = numbers[-1] if numbers else None
        correctness = float(answer == str(body.expected_sum))
        politeness = float("please" in text.lower() or "glad to help" in text.lower())
        weight = self.config.politeness_weight
        return PoliteSumsVerifyResponse(
            **body.model_dump(),
            extracted_answer=answer,
            correctness=correctness,
            politeness=politeness,
            reward=(1 - weight) * correctness + weight * politeness,
            reward_components={"correctness": correctness, "politeness": politeness},
        )

    def compute_metrics(self, tasks: List[List[Dict[str, Any]]]) -> Dict[str, Any]:
        return compute_pass_majority_metrics(tasks, score_fn=_scores, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: Dict[str, Any]) -> Dict[str, Any]:
        key = {name: agent_metrics[name] for name in ("mean/reward",) if name in agent_metrics}
        key.update(highest_k_metrics(agent_metrics, "pass@1[avg-of-{k}]"))
        key.update(highest_k_metrics(agent_metrics, "majority@{k}", score_names=["accuracy"]))
        return key


if __name__ == "__main__":
    PoliteSumsServer.run_webserver()
