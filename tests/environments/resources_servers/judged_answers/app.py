"""A model as judge: a free answer is held against the expected one by another model."""

from pathlib import Path

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.judge import call_judge
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.prompt import fill_prompt, load_prompt_config


class JudgedAnswersConfig(BaseResourcesServerConfig):
    judge_model_server: ModelServerRef
    judge_responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    judge_prompt: str = str(Path(__file__).parent / "prompts" / "judge.yaml")
    verdict_equal: str = "[[same]]"


class JudgedAnswersVerifyRequest(BaseVerifyRequest):
    question: str
    expected_answer: str


class JudgedAnswersVerifyResponse(BaseVerifyResponse):
    question: str
    expected_answer: str
    verdict: str


class JudgedAnswersServer(SimpleResourcesServer):
    config: JudgedAnswersConfig

    async def verify(self, body: JudgedAnswersVerifyRequest) -> JudgedAnswersVerifyResponse:
        answer = body.response.output_text
        row = {"question": body.question, "expected_answer": body.expected_answer, "answer": answer}
        messages = fill_prompt(load_prompt_config(self.config.judge_prompt), row)
        params = self.config.judge_responses_create_params.model_copy(deep=True)
        params.input = [NeMoGymEasyInputMessage(**message) for message in messages]
        judgement = await call_judge(
            self.server_client,
            server_name=self.config.judge_model_server.name,
            url_path="/v1/responses",
            json=params,
            response_model=NeMoGymResponse,
        )
        verdict = judgement.output_text
        return JudgedAnswersVerifyResponse(
            **body.model_dump(), verdict=verdict, reward=float(self.config.verdict_equal in verdict)
        )


if __name__ == "__main__":
    JudgedAnswersServer.run_webserver()
