"""Model servers in NeMo Gym's manner, served by the way of every call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import HTTPException, Request

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.capture import CaptureStore
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.web.peers import ServerClient
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig
from tests.bench import HELLO
from tests.scripted import Answer, chat_reply, scripted
from tests.serving import recording, serving


class Echo(SimpleResponsesAPIModel):
    config: BaseResponsesAPIModelConfig

    async def chat_completions(
        self,
        body: NeMoGymChatCompletionCreateParamsNonStreaming = Body(),  # noqa: B008
    ) -> NeMoGymChatCompletion:
        if body.temperature == 2:
            raise HTTPException(status_code=429, detail="too hot")
        said = body.messages[-1]["content"]
        message = {
            "role": "assistant",
            "content": f"{type(body).__name__}: {said}",
            "prompt_token_ids": [1, 2],
            "generation_token_ids": [3, 4, 5],
            "generation_log_probs": [-0.5, -0.25, -0.125],
        }
        return NeMoGymChatCompletion.model_validate(chat_reply(choice={"message": message}))


class WithRequest(SimpleResponsesAPIModel):
    config: BaseResponsesAPIModelConfig

    async def responses(self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> Any:  # noqa: B008
        text = f"{request.headers['x-ng-rollout-id']} {request.url.path} {len(body.input)}"
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        return NeMoGymResponse.model_validate(
            {
                "id": "resp_1",
                "created_at": 17,
                "model": "own",
                "object": "response",
                "output": [item],
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": [],
            }
        )


class Louder(VLLMModel):
    async def chat_completions(self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> Any:
        body.messages = [*body.messages, {"role": "user", "content": "Louder!"}]
        completion = await super().chat_completions(body)
        completion.choices[0].message.content = completion.choices[0].message.content.upper()
        return completion


def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/ng-rollout/r1/v1", api_key="none", max_retries=0)


async def test_a_method_for_chat_serves_both_dialects_and_streams(tmp_path: Path) -> None:
    server = Echo(config=BaseResponsesAPIModelConfig(name="m", model="echo"), server_client=ServerClient({}))
    expected = "NeMoGymChatCompletionCreateParamsNonStreaming: Hello"
    async with serving(recording(server, tmp_path)) as url, client(url) as at:
        whole = await at.chat.completions.create(model="m", messages=HELLO)
        assert whole.choices[0].message.content == expected
        assert "generation_token_ids" not in (whole.choices[0].message.model_extra or {})
        stream = await at.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == expected
        assert (await at.responses.create(model="m", input="Hello")).output_text == expected
        with pytest.raises(openai.RateLimitError, match="too hot"):
            await at.chat.completions.create(model="m", messages=HELLO, temperature=2)
    records = list(CaptureStore(tmp_path).calls())
    assert [record.status for record in records] == ["answered"] * 3 + ["failed"]
    for record in records[:3]:
        assert list(record.reply.prompt_ids) == [1, 2]
        assert list(record.reply.choices[0].tokens.ids) == [3, 4, 5]
        assert list(record.reply.choices[0].tokens.logprobs) == [-0.5, -0.25, -0.125]


async def test_a_method_with_a_leading_request(tmp_path: Path) -> None:
    server = WithRequest(config=BaseResponsesAPIModelConfig(name="m", model="own"), server_client=ServerClient({}))
    async with serving(recording(server, tmp_path)) as url, client(url) as at:
        assert (await at.responses.create(model="m", input="Hello")).output_text == "r1 /v1/responses 1"
        completion = await at.chat.completions.create(model="m", messages=HELLO)
        assert completion.choices[0].message.content == "r1 /v1/responses 1"


async def test_a_method_that_asks_the_servers_own_backend(tmp_path: Path) -> None:
    async with scripted([Answer(chat_reply("quiet"))]) as backend:
        config = VLLMModelConfig(name="m", base_url=backend.url, model="scripted", return_token_ids=False)
        async with serving(recording(Louder(config=config, server_client=ServerClient({})), tmp_path)) as url:
            async with client(url) as at:
                completion = await at.chat.completions.create(model="m", messages=HELLO)
            assert completion.choices[0].message.content == "QUIET"
            assert backend.calls[0].json()["messages"][-1] == {"role": "user", "content": "Louder!"}
    (record,) = CaptureStore(tmp_path).calls()
    assert [attempt.error for attempt in record.attempts] == [None]
    assert record.reply.choices[0].parts[0].text == "QUIET"


async def test_a_field_that_the_method_does_not_take_is_named(tmp_path: Path) -> None:
    server = Echo(config=BaseResponsesAPIModelConfig(name="m", model="echo"), server_client=ServerClient({}))
    async with serving(recording(server, tmp_path)) as url, httpx.AsyncClient(base_url=url, timeout=60) as at:
        answer = await at.post("/v1/chat/completions", json={"messages": HELLO, "unknown_field": 1})
        assert answer.status_code == 200  # dropped: A6
        answer = await at.post("/v1/chat/completions", json={"messages": HELLO, "verbosity": 5})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("verbosity")
