from unittest.mock import MagicMock

from pytest import approx, mark

from nemo_gym.config_types import AggregateMetricsRequest
from nemo_gym.global_config import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import ServerClient
from resources_servers.polite_sums.app import PoliteSumsConfig, PoliteSumsServer, PoliteSumsVerifyRequest


class TestApp:
    def _server(self) -> PoliteSumsServer:
        config = PoliteSumsConfig(host="0.0.0.0", port=8080, entrypoint="", name="")
        return PoliteSumsServer(config=config, server_client=MagicMock(spec=ServerClient))

    def _request(self, text: str) -> PoliteSumsVerifyRequest:
        message = {
            "id": "msg_1",
            "content": [{"annotations": [], "text": text, "type": "output_text"}],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        }
        response = NeMoGymResponse(
            id="resp_1",
            created_at=0.0,
            model="dummy",
            object="response",
            output=[message],
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
        )
        return PoliteSumsVerifyRequest(
            responses_create_params={"input": [{"role": "user", "content": "3 + 4?"}]},
            response=response,
            expected_sum=7,
        )

    @mark.parametrize(
        ("text", "reward", "components"),
        [
            ("Glad to help: it is 7", 1.0, {"correctness": 1.0, "politeness": 1.0}),
            ("7", 0.75, {"correctness": 1.0, "politeness": 0.0}),
            ("Please, no.", 0.25, {"correctness": 0.0, "politeness": 1.0}),
            ("", 0.0, {"correctness": 0.0, "politeness": 0.0}),
        ],
    )
    async def test_verify(self, text: str, reward: float, components: dict) -> None:
        result = await self._server().verify(self._request(text))
        assert result.reward == approx(reward)
        assert result.reward_components == components
        assert result.model_dump()["reward_components"] == components

    async def test_aggregate_metrics(self) -> None:
        rows = [
            {
                TASK_INDEX_KEY_NAME: task,
                ROLLOUT_INDEX_KEY_NAME: rollout,
                "reward": right,
                "correctness": right,
                "politeness": 0.0,
                "extracted_answer": answer,
            }
            for task, rollout, right, answer in [
                (0, 0, 1.0, "7"),
                (0, 1, 1.0, "7"),
                (1, 0, 0.0, "8"),
                (1, 1, 0.0, None),
            ]
        ]
        metrics = await self._server().aggregate_metrics(AggregateMetricsRequest(verify_responses=rows))
        assert metrics.key_metrics["mean/reward"] == 0.5
        assert metrics.key_metrics["pass@1[avg-of-2]/accuracy"] == 50.0
        assert metrics.key_metrics["majority@2/accuracy"] == 50.0
        assert metrics.agent_metrics["pass@2/accuracy"] == 50.0
        assert metrics.agent_metrics["num_repeats"] == 2
        assert [group["mean/reward"] for group in metrics.group_level_metrics] == [1.0, 0.0]
