"""A real pair: one vLLM computes prompts, another goes on from there, over a connector that works without a GPU."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import safetensors.torch

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.record import CallRecord
from tests.live.two_replicas import MODEL
from tests.project import World

pytestmark = [pytest.mark.live, pytest.mark.ci]

CONFIG = """\
policy_model:
  responses_api_models:
    local_vllm_model:
      entrypoint: app.py
      model: {model}
      model_name: tiny-policy
      num_gpus: 0
      start_timeout_s: 3000
      prefill: {{order: {order}}}
      engine_args:
        max_model_len: 1024
        enable_prefix_caching: false
        kv_transfer_config:
          kv_connector: ExampleConnector
          kv_connector_extra_config: {{shared_storage_path: {shared}}}
"""
CITIES = ["Paris", "Tokyo", "Berlin", "Oslo", "Seoul", "Lima", "Dublin", "Madrid"]
HANDED = ("kv_transfer", "do_remote", "handoff", "transfer_id", "remote_")


def question(number: int) -> str:
    return f"What is the weather in {CITIES[number % 8]}, and in {CITIES[number // 8 % 8]}? " * 8


class Pair:
    def __init__(self, url: str, folder: Path, shared: Path, order: str) -> None:
        self.url = url
        self.order = order
        self.shared = shared
        self._folder = folder
        self.chat = openai.OpenAI(base_url=f"{url}/ng-rollout/chat/v1", api_key="none", max_retries=0)
        self.responses = openai.OpenAI(base_url=f"{url}/ng-rollout/responses/v1", api_key="none", max_retries=0)
        self.messages = anthropic.Anthropic(base_url=f"{url}/ng-rollout/messages", api_key="none", max_retries=0)

    def records(self, rollout_id: str) -> list[CallRecord]:
        return list(CaptureStore(self._folder).calls(rollout_id))


@pytest.fixture(scope="module", params=["prefill_first", pytest.param("decode_first", marks=pytest.mark.nightly)])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("pair")
    world = World(folder)
    (folder / "run.yaml").write_text(CONFIG.format(model=MODEL, shared=folder / "shared", order=request.param))
    process = world.start("run", "+config_paths=[run.yaml]", f"++capture.dir={folder}/captures")
    try:
        world.until_up(process)
        (server,) = json.loads(world.run("--json", command="status", config=False)[1])["runs"][0]["servers"]
        yield Pair(server["url"], folder / "captures", folder / "shared", request.param)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def asked(pair: Pair, dialect: str, text: str, most: int, stream: bool) -> Any:
    """The whole answer as the stock client has it."""
    turns: list[Any] = [{"role": "user", "content": text}]
    told: dict[str, Any] = {"model": "tiny-policy", "extra_body": {"temperature": 0}}
    if dialect == "chat":
        client = pair.chat.chat.completions
        if not stream:
            return client.create(messages=turns, max_tokens=most, **told)
        with client.stream(messages=turns, max_tokens=most, **told, stream_options={"include_usage": True}) as events:
            for _ in events:
                pass
            return events.current_completion_snapshot  # what is asked for finally has to end by itself
    if dialect == "responses":
        if not stream:
            return pair.responses.responses.create(input=turns, max_output_tokens=most, **told)
        with pair.responses.responses.stream(input=turns, max_output_tokens=most, **told) as events:
            for event in events:
                if event.type in ("response.completed", "response.incomplete"):
                    return event.response
        raise AssertionError("the stream has no end")
    if not stream:
        return pair.messages.messages.create(messages=turns, max_tokens=most, **told)
    with pair.messages.messages.stream(messages=turns, max_tokens=most, **told) as events:
        return events.get_final_message()


def test_every_dialect_is_answered_by_both(pair: Pair) -> None:  # D1, D2
    for number, dialect in enumerate(("chat", "responses", "messages")):
        said = [asked(pair, dialect, question(number), 24, stream).model_dump_json() for stream in (False, True)]
        one, two = pair.records(dialect)
        assert one.reply.choices[0].tokens.ids == two.reply.choices[0].tokens.ids
        assert len(one.reply.choices[0].tokens.ids) > 1
        for record, words in zip((one, two), said, strict=True):
            assert {attempt.replica for attempt in record.attempts} == {"prefill-0", "vllm-1"}
            assert not [name for name in HANDED if name in words]


def test_a_reply_that_ends_in_prefill_is_whole(pair: Pair) -> None:  # D2
    before = len(pair.records("chat"))
    for stream in (False, True):
        answer = asked(pair, "chat", question(5), 1, stream)
        assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 1)
    for record in pair.records("chat")[before:]:
        assert [attempt.replica for attempt in record.attempts] == ["prefill-0"]
        assert len(record.reply.choices[0].tokens.ids) == 1


def test_log_probs_are_those_that_transformers_computes(pair: Pair) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    client = pair.chat.with_options(base_url=f"{pair.url}/ng-rollout/sampled/v1").chat.completions
    for number in range(8):
        client.create(
            model="tiny-policy",
            messages=[{"role": "user", "content": question(20 + number)}],
            max_tokens=48,
            seed=number,
        )
    policy = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    differences = []
    for record in pair.records("sampled"):
        trace = record.reply.choices[0].tokens
        ids = torch.tensor([list(record.reply.prompt_ids + trace.ids)])
        with torch.no_grad():
            logits = policy(ids).logits[0, len(record.reply.prompt_ids) - 1 : -1]
        ours = torch.log_softmax(logits, -1).gather(1, ids[0, len(record.reply.prompt_ids) :, None])[:, 0]
        differences.append((ours - torch.tensor(trace.logprobs)).abs())
    assert len(differences) == 8
    assert float(torch.cat(differences).max()) < 0.005


def test_decode_goes_on_from_what_was_handed_over(pair: Pair) -> None:  # D1
    """What lies between the two is changed: a decode that computed its own prompt would not notice."""
    told: dict[str, Any] = {
        "model": "tiny-policy",
        "messages": [{"role": "user", "content": question(40)}],
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": True,
    }

    def logprobs() -> list[float]:
        given = pair.chat.chat.completions.create(**told).choices[0].logprobs
        return [one.logprob for one in given.content]

    before = set(pair.shared.glob("**/*.safetensors"))
    first = logprobs()
    for path in set(pair.shared.glob("**/*.safetensors")) - before:
        tensors = safetensors.torch.load_file(path)
        safetensors.torch.save_file({name: tensor * 0 for name, tensor in tensors.items()}, path)
    assert logprobs() != pytest.approx(first, abs=0.05)


def test_choices_and_calls_side_by_side(pair: Pair) -> None:
    if pair.order == "decode_first":
        pytest.skip("this connector does not wait for what another call is still writing")
    client = openai.AsyncOpenAI(base_url=f"{pair.url}/ng-rollout/many/v1", api_key="none", max_retries=0)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="tiny-policy", messages=[{"role": "user", "content": question(number)}], max_tokens=16, n=2
                )
                for number in range(16)
            )
        )

    for completion in asyncio.run(all_of_them()):
        assert [choice.index for choice in completion.choices] == [0, 1]
    records = pair.records("many")
    assert len(records) == 16
    assert {len(record.attempts) for record in records} == {4}
    assert CaptureStore(pair._folder).verify().problems == []
