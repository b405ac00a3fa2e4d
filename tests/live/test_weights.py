"""New weights in a running vLLM: exact log-probs before and after, versions on each token, refusals, restarts."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import httpx
import psutil
import pytest
import pytest_asyncio
from msgspec.structs import replace

from nemo_gym.exchange.call import Call
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.parts import Message, Text
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.model_server.app import ModelApp
from nemo_gym.web.peers import ServerClient
from responses_api_models.local_vllm_model.app import LocalVLLMModel, LocalVLLMModelConfig
from tests.live.device import DEVICES
from tests.project import command_of
from tests.serving import serving

ray = pytest.importorskip("ray")
pytest.importorskip("vllm")
torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.asyncio(loop_scope="module")]

MODEL = Path(os.environ.get("NEMO_GYM_TEST_MODEL", str(Path(__file__).parents[2] / "models" / "tiny_policy")))
CLOSE = 0.001
ENDLESS = {0: -100.0, 2: -100.0}
"""So that no end token is drawn."""
WORDS = ["harbour", "seven", "why", "Paris is", "a list:", "tell me", "no", "the rain"]


def babble(word: str, **sampling) -> ModelRequest:
    """Without its tools the model is not sure of anything."""
    sampling = {"temperature": 1.0, "max_tokens": 64, "logit_bias": None} | sampling
    return ModelRequest((Message("user", (Text(word),)),), sampling=Sampling(**sampling))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folders of weights by number: the model's own with noise, so that it is sure of nothing."""
    own = safetensors.load_file(MODEL / "model.safetensors")
    made = {}
    for number in range(4):
        folder = tmp_path_factory.mktemp(f"weights-{number}")
        torch.manual_seed(number)
        noisy = {name: one + 0.2 * torch.randn(one.shape).to(one.dtype) for name, one in own.items()}
        safetensors.save_file(noisy, folder / "model.safetensors")
        for file in MODEL.iterdir():
            if file.suffix in (".json", ".jinja"):
                shutil.copy(file, folder)
        made[number] = folder
    return made


@pytest.fixture(scope="module")
def policies(checkpoints):
    return {
        version: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for version, folder in checkpoints.items()
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=DEVICES)
async def model(request, checkpoints):
    config = LocalVLLMModelConfig(
        name="policy_model",
        model=str(checkpoints[0]),
        num_gpus=request.param.gpus,
        engine_args={"max_model_len": 2048, "dtype": "float32", **request.param.engine_args},
        weights_in_flight="keep",
        start_timeout_s=3000,
    )
    server = LocalVLLMModel(config=config, server_client=ServerClient({}))
    await server.start()
    yield server
    await server.stop()


def computed(policy, reply, temperature):
    """Log-probs of the reply's tokens, by transformers."""
    trace = reply.choices[0].tokens
    ids = torch.tensor([list(reply.prompt_ids + trace.ids)])
    start = len(reply.prompt_ids)
    with torch.no_grad():
        logits = policy(ids).logits[0, start - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(1, ids[0, start:, None])[:, 0]


async def sampled(model, temperature, least=500):
    """Replies with so many uncertain tokens at least."""
    replies = []
    for _ in range(20):
        requests = [babble(word, temperature=temperature) for word in WORDS for _ in range(2)]
        replies += await asyncio.gather(*(model.generate(request, Call(request)) for request in requests))
        if sum(value < -0.1 for reply in replies for value in reply.choices[0].tokens.logprobs) >= least:
            return replies
    pytest.fail("the model is too sure of itself")


def largest(policy, replies, temperature, shift=0):
    """The largest difference, and how many tokens were uncertain."""
    mine = torch.cat([computed(policy, reply, temperature) for reply in replies])
    theirs = torch.cat([torch.tensor(reply.choices[0].tokens.logprobs).roll(shift) for reply in replies])
    return float((mine - theirs).abs().max()), int((mine < -0.1).sum())


async def test_log_probs_are_exact_before_and_after_a_change(model, checkpoints, policies):
    assert model.policy_version.value == 0
    for version in (0, 1):
        if version:
            loaded = await model.weights.load(str(checkpoints[version]))
            assert (loaded.policy_version, loaded.replicas) == (version, 1)
        for temperature in (1.0, 0.7):
            replies = await sampled(model, temperature)
            assert {reply.choices[0].tokens.versions for reply in replies} == {((0, version),)}
            difference, uncertain = largest(policies[version], replies, temperature)
            print(f"\nversion {version}, T {temperature}: {uncertain} uncertain tokens, largest {difference:.2g}")
            assert uncertain >= 490
            assert difference < CLOSE
            assert largest(policies[version], replies, temperature, shift=1)[0] > 1
            assert largest(policies[1 - version], replies, temperature)[0] > 0.1


async def until_generating(model):
    handle = model._deployment.engine.replicas[0]._handle
    for _ in range(1000):
        if await handle.unfinished.remote():
            return
        await asyncio.sleep(0.02)
    pytest.fail("nothing is generated")


async def change(model, folder, in_flight):
    """A long call, and new weights in the middle of it: (reply, call)."""
    request = babble("harbour", max_tokens=1500, logit_bias=ENDLESS)
    call = Call(request)
    task = asyncio.create_task(model.generate(request, call))
    await until_generating(model)
    await asyncio.sleep(0.2)
    assert not task.done()
    await model.weights.load(str(folder), in_flight=in_flight)
    return await asyncio.wait_for(task, 120), call


async def test_a_call_goes_on_with_new_weights_and_says_from_where(model, checkpoints, policies):
    before = model.weights.version
    reply, call = await change(model, checkpoints[2], "keep")
    ((start, first), (cut, second)) = reply.choices[0].tokens.versions
    assert (start, first, second) == (0, before, before + 1)
    assert 0 < cut < 1500
    # The bias is of the distribution sampled from, so it is left out of what is compared: tokens that are no end.
    bias = torch.zeros(policies[2].config.vocab_size)
    for token, value in ENDLESS.items():
        bias[token] = value
    trace, length = reply.choices[0].tokens, len(reply.prompt_ids)
    ids = torch.tensor([list(reply.prompt_ids + trace.ids)])
    with torch.no_grad():
        sides = [
            torch.log_softmax(policies[version].forward(ids).logits[0, length - 1 : -1] + bias, -1).gather(
                1, ids[0, length:, None]
            )[:, 0]
            for version in (1, 2)
        ]
    theirs = torch.tensor(trace.logprobs)
    assert float((sides[0][:cut] - theirs[:cut]).abs().max()) < CLOSE
    assert float((sides[1][cut:] - theirs[cut:]).abs().max()) < CLOSE
    assert float((sides[0][cut:] - theirs[cut:]).abs().max()) > 0.1
    assert len(call.attempts) == 1


async def test_a_call_may_end_first(model, checkpoints):
    before = model.weights.version
    reply, _ = await change(model, checkpoints[3], "wait")
    assert reply.choices[0].tokens.versions == ((0, before),)
    assert model.weights.version == before + 1


async def test_a_call_may_be_ended_and_asked_anew(model, checkpoints):
    before = model.weights.version
    reply, call = await change(model, checkpoints[1], "abort")
    assert reply.choices[0].tokens.versions == ((0, before + 1),)
    assert len(reply.choices[0].tokens.ids) == 1500
    assert [attempt.error for attempt in call.attempts] == ["overloaded", None]


async def test_what_is_not_this_model_is_refused_by_name(model, checkpoints, tmp_path):
    own = safetensors.load_file(checkpoints[1] / "model.safetensors")
    name = next(iter(own))

    def folder(label, tensors):
        (tmp_path / label).mkdir()
        safetensors.save_file(tensors, tmp_path / label / "model.safetensors")
        return tmp_path / label

    cases = {
        tmp_path / "nowhere": "there is no such folder",
        folder("missing", {key: one for key, one in own.items() if key != name}): name,
        folder("shape", own | {name: own[name][:1].clone()}): name,
        folder("nan", own | {name: own[name] * float("nan")}): "not finite",
    }
    version = model.weights.version
    for path, words in cases.items():
        with pytest.raises(ModelError, match=words) as refused:
            await model.weights.load(str(path))
        assert refused.value.status == 400
    assert model.weights.version == version
    reply = await model.generate(request := babble("why"), Call(request))
    assert reply.choices[0].tokens.versions == ((0, version),)


async def test_an_object_of_ray_s_is_as_good_as_a_path(model, checkpoints, policies):
    data = (checkpoints[2] / "model.safetensors").read_bytes()
    version = model.weights.version + 5
    await model.weights.load(ray.put(data), version)
    replies = await sampled(model, 1.0)
    assert {reply.choices[0].tokens.versions for reply in replies} == {((0, version),)}
    assert largest(policies[2], replies, 1.0)[0] < CLOSE


async def test_over_http(model, checkpoints):
    app = ModelApp(model)
    app.readiness.started = True
    version = model.weights.version + 1
    # The application would start and stop the server, which is up already.
    starting, stopping, model.__class__.start, model.__class__.stop = model.start, model.stop, _nothing, _nothing
    try:
        async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=120) as client:
            body = {"path": str(checkpoints[3]), "policy_version": version}
            for _ in range(2):  # asked again, it is done
                answer = await client.post("/weights", json=body)
                assert (answer.status_code, answer.json()["policy_version"]) == (200, version), answer.text
            assert (await client.get("/policy_version")).json() == {"policy_version": version}
            assert (await client.put("/policy_version", json={"policy_version": 3})).status_code == 409
            older = await client.post("/weights", json=body | {"policy_version": version - 1})
            assert older.status_code == 400
            assert older.json()["error"]["message"].startswith("policy_version: expected one above")
            slept = await client.post("/sleep")
            assert (slept.status_code, slept.json()["state"]) == (200, "asleep")
            async with asyncio.timeout(60):
                while (await client.get("/ready")).status_code != 503:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            asking = asyncio.create_task(
                client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "why"}]})
            )
            await asyncio.sleep(0.5)
            assert not asking.done()
            assert (await client.post("/wake")).json() == {"state": "serving", "policy_version": version}
            assert (await asking).status_code == 200
    finally:
        await model.weights.wake()
        model.__class__.start, model.__class__.stop = starting.__func__, stopping.__func__


async def _nothing(self):
    pass


async def test_a_replica_that_restarts_has_the_current_weights(model, checkpoints, policies):
    version = model.weights.version
    assert version > 0
    (replica,) = model._deployment.engine.replicas
    actor = psutil.Process((await replica.ask("describe"))["pid"])
    core = next(one for one in actor.children(recursive=True) if "EngineCore" in command_of(one))
    running = [babble(word, max_tokens=1500, logit_bias=ENDLESS) for word in WORDS]
    calls = [Call(request) for request in running]
    tasks = [asyncio.create_task(model.generate(asked, call)) for asked, call in zip(running, calls, strict=True)]
    await until_generating(model)
    core.kill()
    request = babble("harbour")
    reply = await asyncio.wait_for(model.generate(request, call := Call(request)), 600)
    assert reply.choices[0].tokens.versions == ((0, version),)
    assert replica.restarts == 1
    assert largest(policies[3], [reply], 1.0)[0] < CLOSE
    assert call.attempts[-1].error is None
    # What was in flight is asked anew, and waits for it.
    replies = await asyncio.wait_for(asyncio.gather(*tasks), 600)
    assert all(len(reply.choices[0].tokens.ids) == 1500 for reply in replies)
    assert {reply.choices[0].tokens.versions for reply in replies} == {((0, version),)}
    assert {len(call.attempts) for call in calls} <= {1, 2, 3}
    assert any(call.attempts[0].error == "unreachable" for call in calls)


async def test_a_request_is_not_changed_by_all_this(model):
    request = replace(babble("seven", n=2), model="x")
    reply = await model.generate(request, Call(request))
    assert [choice.index for choice in reply.choices] == [0, 1]
