from unittest.mock import AsyncMock, MagicMock

from fastapi.testclient import TestClient
from pytest import fixture, mark, raises

from nemo_gym.config_types import ModelServerRef
from nemo_gym.judge import JudgeError
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from resources_servers.judged_answers.app import (
    JudgedAnswersConfig,
    JudgedAnswersServer,
    JudgedAnswersVerifyRequest,
)


def _response(text: str) -> NeMoGymResponse:
    message = {
        "id": "msg_1",
        "content": [{"annotations": [], "text": text, "type": "output_text"}],
        "role": "assistant",
        "status": "completed",
        "type": "message",
    }
    return NeMoGymResponse(
        id="resp_1",
        created_at=0.0,
        model="dummy",
        object="response",
        output=[message],
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )


class TestApp:
    @fixture
    def config(self) -> JudgedAnswersConfig:
        return JudgedAnswersConfig(
            host="0.0.0.0",
            port=8080,
            entrypoint="",
            name="judged_answers",
            judge_model_server=ModelServerRef(type="responses_api_models", name="judge"),
            judge_responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input=[], temperature=0.0),
        )

    def _judge_says(self, text: str, ok: bool = True) -> MagicMock:
        post = AsyncMock()
        post.ok = ok
        post.read = AsyncMock(return_value=_response(text).model_dump_json().encode())
        post.json = AsyncMock(return_value=_response(text).model_dump())
        client = MagicMock(spec=ServerClient)
        client.post = AsyncMock(return_value=post)
        return client

    def _request(self) -> JudgedAnswersVerifyRequest:
        return JudgedAnswersVerifyRequest(
            responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input="Which sea is salty?"),
            response=_response("The Dead Sea"),
            question="Which sea is salty?",
            expected_answer="Dead Sea",
        )

    @mark.parametrize(("verdict", "reward"), [("[[same]]", 1.0), ("[[different]]", 0.0), ("hm", 0.0)])
    async def test_verify(self, config: JudgedAnswersConfig, verdict: str, reward: float) -> None:
        client = self._judge_says(verdict)
        result = await JudgedAnswersServer(config=config, server_client=client).verify(self._request())
        assert (result.reward, result.verdict) == (reward, verdict)
        asked = client.post.call_args.kwargs
        assert (asked["server_name"], asked["url_path"]) == ("judge", "/v1/responses")
        assert asked["json"].input[1].content.endswith("Given: The Dead Sea")
        assert asked["json"].temperature == 0.0
        assert config.judge_responses_create_params.input == []

    async def test_a_judge_that_fails_is_no_verdict(self, config: JudgedAnswersConfig) -> None:
        client = MagicMock(spec=ServerClient)
        client.post = AsyncMock(side_effect=TimeoutError("too slow"))
        server = JudgedAnswersServer(config=config, server_client=client)
        with raises(JudgeError, match="TimeoutError: too slow"):
            await server.verify(self._request())
        answer = TestClient(server.setup_webserver()).post("/verify", json=self._request().model_dump(mode="json"))
        assert answer.status_code == 200
        row = answer.json()
        assert (row["reward"], row["mask_sample"], row["failure_kind"]) == (0.0, True, "judge_failed")
        assert row["_ng_failure_class"] == "judge_failed"
        assert row["response"]["id"] == "resp_1"
