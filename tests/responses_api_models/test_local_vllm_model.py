"""The local model's configuration, and that looking at it costs nothing."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from array import array
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
import yaml
from pydantic import PrivateAttr, ValidationError

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.capture import CaptureStore
from nemo_gym.engines import vllm_actor
from nemo_gym.engines.engine import EngineOutput, EnginePiece, EngineReply
from nemo_gym.engines.placement import placement
from nemo_gym.exchange.call import Attempt
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.parts import plain_text
from nemo_gym.exchange.reply import TokenTrace
from nemo_gym.model_server.app import ModelApp
from nemo_gym.rendering.renderer import renderer
from nemo_gym.web.peers import ServerClient
from responses_api_models.local_vllm_model import app
from responses_api_models.local_vllm_model.app import LocalVLLMModel, LocalVLLMModelConfig, _folder
from responses_api_models.local_vllm_model.arguments import adapter_folders, engine_arguments
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig
from tests.serving import recording, serving

ROOT = Path(__file__).resolve().parents[2]


def config(**settings):
    return LocalVLLMModelConfig(name="policy_model", model="models/tiny_policy", **settings)


def test_the_shipped_config_is_one():
    file = ROOT / "responses_api_models/local_vllm_model/configs/local_vllm_model.yaml"
    settings = yaml.safe_load(file.read_text())["policy_model"]["responses_api_models"]["local_vllm_model"]
    assert LocalVLLMModelConfig(name="policy_model", **settings).served_name == "tiny-policy"


def test_defaults():
    plain = config()
    assert plain.served_name == "tiny_policy"
    assert (plain.tool_parser, plain.reasoning_parser, plain.history) == ("auto", "auto", "exact")
    assert plain.ray.address is None


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"num_replicas": 0}, "num_replicas"),
        ({"ray": {"adress": "x"}}, "ray.adress"),
        ({"histroy": "exact"}, "histroy"),
    ],
)
def test_mistakes_are_named(settings, where):
    with pytest.raises(ValidationError, match=where):
        config(**settings)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model: expected a model's folder with a config\.json"):
        _folder(str(tmp_path))


def test_its_config_class_is_found_without_ray_vllm_or_torch():
    code = (
        "import sys; from responses_api_models.local_vllm_model.app import LocalVLLMModel as M;"
        "assert M.config_class().__name__ == 'LocalVLLMModelConfig';"
        "print(*sorted({'ray', 'vllm', 'torch', 'transformers', 'jinja2.sandbox'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.strip()) == (0, ""), ended.stderr
    assert LocalVLLMModel.config_class() is LocalVLLMModelConfig


# ---- several servers on one deployment


class Engine:
    """Says one thing, in the tokens of the embedded model."""

    takes_ids = True
    context = 512

    def __init__(self):
        self.requests = []
        self.passed = asyncio.Event()
        """That its first piece has come to the client."""

    async def generate(self, request, on_piece=None, on_attempt=None):
        self.requests.append(request)
        if request.sampling.max_tokens == 7:
            await asyncio.sleep(3600)
        if request.sampling.temperature == 2.0:
            raise ModelError(400, "invalid", "temperature: too hot", param="temperature")
        on_attempt(Attempt("vllm-1", 1.0, 2.0))
        if on_piece is not None:
            return await self._streamed(on_piece)
        ids = renderer(ROOT / "models/tiny_policy", {}).encode("It rains.")
        tokens = TokenTrace(ids, array("f", [-0.5] * len(ids)), ((0, 3),))
        return EngineReply((EngineOutput(0, tokens, "It rains.", "stop"),), 4)

    async def _streamed(self, on_piece):
        encode = renderer(ROOT / "models/tiny_policy", {}).encode
        for text in ("It", " rains."):
            ids = encode(text)
            on_piece(EnginePiece(0, text, TokenTrace(ids, array("f", [-0.5] * len(ids)), ((0, 3),))))
            await self.passed.wait()
        ids = encode("It") + encode(" rains.")
        tokens = TokenTrace(ids, array("f", [-0.5] * len(ids)), ((0, 3),))
        return EngineReply((EngineOutput(0, tokens, "It rains.", "stop"),), 4)

    async def check(self):
        return 3

    async def close(self):
        pass


class Owner(SimpleResponsesAPIModel):
    _engine: Engine = PrivateAttr(default_factory=Engine)

    @property
    def adapters(self):
        return ("tilted",)

    @property
    def shared_engine(self):
        return self._engine, str(ROOT / "models/tiny_policy")


@contextlib.asynccontextmanager
async def two_servers(captures, **settings):
    owner = Owner(config=BaseResponsesAPIModelConfig(name="owner"), server_client=ServerClient({}))
    async with serving(ModelApp(owner)) as url:
        told = LocalVLLMModelConfig(name="policy_model", deployment="owner", **settings)
        server = LocalVLLMModel(config=told, server_client=ServerClient({"owner": url}))
        async with serving(recording(server, captures, durability="flush")) as own:
            async with httpx.AsyncClient(base_url=own, timeout=60) as client:
                deadline = time.monotonic() + 120
                while (ready := await client.get("/ready")).status_code != 200:
                    assert time.monotonic() < deadline, ready.text
                    await asyncio.sleep(0.1)
            yield own, owner._engine


def client(url):
    return openai.AsyncOpenAI(base_url=f"{url}/ng-rollout/r1/v1", api_key="none", max_retries=0)


HELLO = [{"role": "user", "content": "Hello"}]


async def test_a_server_answers_with_another_s_engines_and_records_them(tmp_path):
    async with two_servers(tmp_path, model_name="cold", sampling_overrides={"temperature": 0.25}) as (url, engine):
        reply = await client(url).chat.completions.create(model="cold", messages=HELLO)
        assert (reply.choices[0].message.content, reply.model) == ("It rains.", "cold")
        (asked,) = engine.requests
        assert (asked.sampling.temperature, asked.affinity) == (0.25, "r1")
    (record,) = CaptureStore(tmp_path).calls("r1")
    assert record.reply.prompt_ids == asked.prompt_ids
    assert record.reply.choices[0].tokens.logprobs[0] == -0.5
    assert record.reply.choices[0].tokens.versions == ((0, 3),)
    assert [attempt.replica for attempt in record.attempts] == ["vllm-1"]


async def test_adapters_are_listed_and_asked_for_in_every_dialect(tmp_path):
    async with two_servers(tmp_path, model_name="cold") as (url, engine):
        async with client(url) as chat, anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as messages:
            listed = (await chat.with_options(base_url=f"{url}/v1").models.list()).data
            assert [(model.id, getattr(model, "parent", None)) for model in listed] == [
                ("cold", None),
                ("tilted", "cold"),
            ]
            said = [
                await chat.chat.completions.create(model="tilted", messages=HELLO),
                await chat.responses.create(model="tilted", input="Hello"),
                await messages.messages.create(model="tilted", messages=HELLO, max_tokens=9),
            ]
            other = await chat.chat.completions.create(model="another", messages=HELLO)
        assert [reply.model for reply in (*said, other)] == ["tilted", "tilted", "tilted", "cold"]
        assert [request.adapter for request in engine.requests] == ["tilted", "tilted", "tilted", None]


async def test_a_relayed_call_comes_as_the_engine_makes_it(tmp_path):  # A7
    async with two_servers(tmp_path, stream="relay") as (url, engine), asyncio.timeout(60):
        stream = await client(url).chat.completions.create(model="m", messages=HELLO, stream=True)
        said = []
        async for chunk in stream:
            if text := chunk.choices and chunk.choices[0].delta.content:
                said.append(text)
                engine.passed.set()  # the rest is made only once the first is here
        assert said == ["It", " rains."]
    (record,) = CaptureStore(tmp_path).calls("r1")
    assert record.streamed
    assert plain_text(record.reply.choices[0].parts) == "It rains."
    assert len(record.reply.choices[0].tokens.ids) == len(record.reply.choices[0].tokens.logprobs)
    assert [attempt.replica for attempt in record.attempts] == ["vllm-1"]


@pytest.mark.parametrize("stream", [True, False])
async def test_its_refusals_are_the_client_s(tmp_path, stream):
    async with two_servers(tmp_path, stream="relay") as (url, _):
        with pytest.raises(openai.BadRequestError, match="temperature: too hot"):
            await client(url).chat.completions.create(model="m", messages=HELLO, temperature=2.0, stream=stream)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_hang_up_ends_the_work_there(tmp_path, streamed):  # A9
    async with two_servers(tmp_path, repeat_grace_s=0, stream="relay") as (url, engine):
        begun, ended = asyncio.Event(), asyncio.Event()
        generate = engine.generate

        async def watched(*args, **kwargs):
            begun.set()
            try:
                return await generate(*args, **kwargs)
            except asyncio.CancelledError:
                ended.set()
                raise

        engine.generate = watched
        asking = asyncio.create_task(
            client(url).chat.completions.create(model="m", messages=HELLO, max_tokens=7, stream=streamed)
        )
        async with asyncio.timeout(60):
            await begun.wait()
            asking.cancel()
            await ended.wait()


# ---- what vLLM is told


def adapter(folder, **told):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return str(folder)


def test_nothing_that_is_for_a_machine_without_a_gpu_is_said_on_one(monkeypatch):
    with_gpu = engine_arguments(Path("/m"), 1.0, {"gpu_memory_utilization": 0.5}, {})
    assert with_gpu == {"model": "/m", "gpu_memory_utilization": 0.5}
    without = engine_arguments(Path("/m"), 0.0, {"block_size": 64}, {})
    assert without == {"model": "/m", "dtype": "float32", "enforce_eager": True, "block_size": 64}
    for gpus, said in ((1.0, False), (0.25, False), (0.0, True)):
        environment: dict[str, str] = {}
        monkeypatch.setattr(os, "environ", environment)
        vllm_actor._set_environment(gpus, None)
        monkeypatch.undo()
        assert {name in environment for name in ("VLLM_CPU_KVCACHE_SPACE", "TORCHDYNAMO_DISABLE")} == {said}


def test_places_are_told_whole_and_names_of_a_hub_as_they_are(tmp_path, monkeypatch):
    (tmp_path / "drafter").mkdir()
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    said = {"tokenizer": "models/tiny_policy", "speculative_config": {"model": "drafter", "num_speculative_tokens": 2}}
    told = engine_arguments(Path("/m"), 1.0, {**said, "hf_config_path": "nobody/there", "load_format": "models"}, {})
    assert told["tokenizer"] == str(ROOT / "models/tiny_policy")
    assert told["speculative_config"] == {"model": str(tmp_path / "drafter"), "num_speculative_tokens": 2}
    assert (told["hf_config_path"], told["load_format"]) == ("nobody/there", "models")


def test_replicas_that_share_a_machine_share_its_cores_unless_the_operator_binds_them(monkeypatch):
    for gpus, own, threads in ((0.0, {}, "2"), (1.0, {}, None), (0.0, {"VLLM_CPU_OMP_THREADS_BIND": "0-1"}, None)):
        environment: dict[str, str] = dict(own)
        monkeypatch.setattr(os, "environ", environment)
        vllm_actor._set_environment(gpus, 2)
        monkeypatch.undo()
        assert environment.get("OMP_NUM_THREADS") == threads
        bind = environment.get("VLLM_CPU_OMP_THREADS_BIND")
        assert bind == (own.get("VLLM_CPU_OMP_THREADS_BIND") or ("nobind" if threads else None))
        assert environment["HF_HUB_OFFLINE"] == "1"
    assert placement(1, 1, 0.25).bundles == ({"CPU": 1.0, "GPU": 0.25},)
    assert placement(1, 1, 0.25).actor_gpus == 0.25


@pytest.mark.parametrize(
    ("told", "found", "gpus"), [(None, True, 1.0), (None, False, 0.0), (0.5, False, 0.5), (0, True, 0.0)]
)
def test_gpus_are_those_of_the_configuration(monkeypatch, told, found, gpus):
    monkeypatch.setattr(app, "_has_gpu", lambda: found)
    assert app.gpus_of_each_worker(config(num_gpus=told)) == gpus


def test_adapters_are_given_the_room_that_they_need(tmp_path):
    small, big = adapter(tmp_path / "small", r=4), adapter(tmp_path / "big", r=16, rank_pattern={"q_proj": 40})
    assert adapter_folders({"a": small}) == {"a": small}
    told = engine_arguments(Path("/m"), 1.0, {}, {"a": small, "b": big})
    assert told == {"model": "/m", "enable_lora": True, "max_loras": 2, "max_lora_rank": 64}
    assert engine_arguments(Path("/m"), 1.0, {"max_lora_rank": 8}, {"a": small})["max_lora_rank"] == 8
    with pytest.raises(ValueError, match=r"adapters\.x: expected a folder with an adapter_config\.json, found none at"):
        adapter_folders({"x": str(tmp_path)})
    with pytest.raises(ValidationError, match=r"adapters\.tiny_policy: the model itself is called that"):
        config(adapters={"tiny_policy": small})


def test_prefill_has_a_connector_and_a_role_of_its_own():  # D1
    with pytest.raises(
        ValidationError, match=r"engine_args\.kv_transfer_config\.kv_connector: expected vLLM's connector"
    ):
        config(prefill={})
    with pytest.raises(ValidationError, match=r"prefill\.order"):
        config(prefill={"order": "first"}, engine_args={"kv_transfer_config": {"kv_connector": "NixlConnector"}})
    transfer = {"kv_connector": "NixlConnector", "kv_load_failure_policy": "recompute"}
    told = config(
        prefill={"engine_args": {"max_num_seqs": 4}}, engine_args={"kv_transfer_config": transfer, "max_num_seqs": 9}
    )
    server = LocalVLLMModel(config=told, server_client=ServerClient({}))
    decode, prefill = server._sides(Path("/m"), 1.0)
    assert decode["kv_transfer_config"] == {"kv_role": "kv_consumer", **transfer}
    assert prefill.engine_args["kv_transfer_config"] == {"kv_role": "kv_producer", **transfer}
    assert (decode["max_num_seqs"], prefill.engine_args["max_num_seqs"], prefill.replicas) == (9, 4, 1)
    both = config(prefill={}, engine_args={"kv_transfer_config": {**transfer, "kv_role": "kv_both"}})
    decode, prefill = LocalVLLMModel(config=both, server_client=ServerClient({}))._sides(Path("/m"), 1.0)
    assert decode["kv_transfer_config"]["kv_role"] == prefill.engine_args["kv_transfer_config"]["kv_role"] == "kv_both"


@pytest.mark.parametrize("kind", ["local", "endpoint"])
async def test_a_renderer_that_nobody_knows_is_refused_at_the_start(kind):
    if kind == "local":
        server = LocalVLLMModel(config=config(renderer="qwen9"), server_client=ServerClient({}))
    else:
        told = {"base_url": "http://127.0.0.1:1/v1", "model": "m", "api": "completions", "renderer": "qwen9"}
        server = VLLMModel(config=VLLMModelConfig(name="x", **told), server_client=ServerClient({}))
    with pytest.raises(ValueError, match=r"renderer: no family is named 'qwen9'; expected auto, template, or one of"):
        await server.start()


def test_what_is_said_of_engines_belongs_to_the_server_that_has_them():
    with pytest.raises(ValidationError, match="num_replicas: deployment owner says that"):
        LocalVLLMModelConfig(name="b", deployment="owner", num_replicas=2)
    with pytest.raises(ValidationError, match="model: expected the model's folder, or deployment"):
        LocalVLLMModelConfig(name="b")


async def test_a_deployment_that_nobody_has_is_told():
    config = LocalVLLMModelConfig(name="b", deployment="onwer")
    server = LocalVLLMModel(config=config, server_client=ServerClient({"owner": "http://127.0.0.1:1"}))
    with pytest.raises(ValueError, match="no server of this run is named 'onwer': did you mean 'owner'"):
        await server.start()
