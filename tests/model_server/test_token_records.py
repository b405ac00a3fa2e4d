"""An engine that gives token ids, behind every dialect: the record is token-exact, whatever a client can carry. # C3"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from nemo_gym.backends.tokens import TokensBackend
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.capture import CaptureStore
from nemo_gym.engines.engine import EngineOutput, EngineReply
from nemo_gym.exchange.reply import TokenTrace
from nemo_gym.web.peers import ServerClient
from tests.serving import recording, serving

pytest.importorskip("tokenizers")
MODEL = Path(__file__).parents[2] / "models" / "tiny_policy"
CALLED = '<think>Look.</think>I look.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


class Engine:
    """Says the same at each turn of a conversation, and gives the ids of what it said."""

    takes_ids = True
    context = 4096

    def __init__(self, renderer: Any) -> None:
        self.renderer = renderer
        self.prompts: list[array] = []

    async def generate(self, request: Any, on_piece: Any = None, on_attempt: Any = None) -> EngineReply:
        self.prompts.append(request.prompt_ids)
        text = "Rain." if "rain" in self.renderer.decode(request.prompt_ids) else CALLED
        ids = self.renderer.encode(text + "<|im_end|>")
        tokens = TokenTrace(ids, array("f", [-0.25] * len(ids)), ((0, 7),))
        return EngineReply((EngineOutput(0, tokens, text, "stop"),), cached=4)

    async def check(self) -> int:
        return 7

    async def close(self) -> None:
        pass


class Server(SimpleResponsesAPIModel):
    config: BaseResponsesAPIModelConfig

    async def start(self) -> None:
        from nemo_gym.rendering.renderer import TemplateRenderer

        renderer = TemplateRenderer(MODEL)
        self._backend = TokensBackend(Engine(renderer), renderer, "hermes", "qwen3", "tiny")


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    config = BaseResponsesAPIModelConfig(name="policy", model="tiny")
    app = recording(Server(config=config, server_client=ServerClient({})), folder)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        for _ in range(600):
            if (await client.get("/ready")).status_code == 200:
                break
            await asyncio.sleep(0.05)
        yield client


def chat(turns: list[Any]) -> tuple[str, dict[str, Any]]:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    messages = [{"role": "user", "content": "Weather?"}, *turns]
    return "/v1/chat/completions", {"model": "m", "messages": messages, "tools": [tool], "max_tokens": 99}


def chat_turns(reply: dict[str, Any]) -> list[Any]:
    message = reply["choices"][0]["message"]
    return [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}]


def responses(turns: list[Any]) -> tuple[str, dict[str, Any]]:
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
    return "/v1/responses", {"input": [{"role": "user", "content": "Weather?"}, *turns], "tools": [tool]}


def responses_turns(reply: dict[str, Any]) -> list[Any]:
    call = reply["output"][-1]
    return [*reply["output"], {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}]


def messages(turns: list[Any]) -> tuple[str, dict[str, Any]]:
    said = [{"role": "user", "content": "Weather?"}, *turns]
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    return "/v1/messages", {"messages": said, "tools": [tool], "max_tokens": 99}


def messages_turns(reply: dict[str, Any]) -> list[Any]:
    result = {"type": "tool_result", "tool_use_id": reply["content"][-1]["id"], "content": "rain"}
    return [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [result]}]


DIALECTS = [(chat, chat_turns), (responses, responses_turns), (messages, messages_turns)]


@pytest.mark.parametrize(("ask", "turns"), DIALECTS, ids=["chat", "responses", "messages"])
async def test_two_turns_are_one_sequence_of_tokens(tmp_path: Path, ask: Any, turns: Any) -> None:  # C3
    async with served(tmp_path) as client:
        path, first = ask([])
        reply = (await client.post(f"/ng-rollout/r1{path}", json=first)).json()
        _, second = ask(turns(reply))
        answer = await client.post(f"/ng-rollout/r1{path}", json=second | {"stream": True})
        assert "Rain." in answer.text
    one, two = CaptureStore(tmp_path).calls("r1")
    for record in (one, two):
        (choice,) = record.reply.choices
        assert record.logprobs_mode == "processed"
        assert choice.tokens.ids and len(choice.tokens.logprobs) == len(choice.tokens.ids)
        assert set(choice.tokens.logprobs) == {-0.25}
        assert choice.tokens.versions == ((0, 7),)
        assert record.reply.usage.prompt == len(record.reply.prompt_ids)
        assert record.reply.usage.completion == len(choice.tokens.ids)
    assert (two.relation, two.parent_call_id, two.history) == ("turn", one.call_id, "exact")
    before = one.reply.prompt_ids + one.reply.choices[0].tokens.ids
    assert two.reply.prompt_ids[: len(before)] == before


async def test_the_dialects_render_one_prompt(tmp_path: Path) -> None:
    """One conversation is one sequence of tokens, whoever asks."""
    prompts = []
    async with served(tmp_path) as client:
        for number, (ask, turns) in enumerate(DIALECTS):
            path, first = ask([])
            reply = (await client.post(f"/ng-rollout/r{number}{path}", json=first)).json()
            await client.post(f"/ng-rollout/r{number}{path}", json=ask(turns(reply))[1])
    store = CaptureStore(tmp_path)
    for number in range(3):
        prompts.append([record.reply.prompt_ids for record in store.calls(f"r{number}")])
    assert prompts[0] == prompts[1] == prompts[2]


async def test_thinking_turned_off_is_rendered_so(tmp_path: Path) -> None:  # M1 P7
    off = {"thinking": {"type": "disabled"}}
    async with served(tmp_path) as client:
        for path, body in (
            (messages([])[0], messages([])[1] | off),
            (responses([])[0], responses([])[1] | {"reasoning": {"effort": "none"}}),
            (chat([])[0], chat([])[1] | {"reasoning_effort": "none"}),
        ):
            assert (await client.post(f"/ng-rollout/r1{path}", json=body)).status_code == 200
    prompts = [decoded(record) for record in CaptureStore(tmp_path).calls("r1")]
    assert all(prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n") for prompt in prompts)
    assert len(set(prompts)) == 1


def decoded(record: Any) -> str:
    from nemo_gym.rendering.renderer import TemplateRenderer

    return TemplateRenderer(MODEL).decode(record.reply.prompt_ids)


async def test_count_tokens_is_what_a_call_costs(tmp_path: Path) -> None:  # M4
    async with served(tmp_path) as client:
        path, first = messages([])
        counted = await client.post(f"{path}/count_tokens", json=first)
        await client.post(f"/ng-rollout/r1{path}", json=first)
    (record,) = CaptureStore(tmp_path).calls("r1")
    assert counted.json() == {"input_tokens": len(record.reply.prompt_ids)}


async def test_no_id_reaches_a_client_of_messages(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        path, first = messages([])
        reply = (await client.post(f"/ng-rollout/r1{path}", json=first)).json()
    assert "token_ids" not in json.dumps(reply)
    thought, text, call = reply["content"]
    assert (thought["thinking"], text["text"], call["input"]) == ("Look.", "I look.", {"city": "Oslo"})
    assert reply["usage"]["cache_read_input_tokens"] == 4
