"""What is asked of one's own engine by request: adapters, log-probs of the prompt, seeds, bounds; and replicas that
come, go and sleep under load."""

from __future__ import annotations

import asyncio
import math

import pytest
import pytest_asyncio
from msgspec.structs import replace

from nemo_gym.engines.deployment import Deployment
from nemo_gym.engines.engine import EngineRequest
from nemo_gym.exchange.errors import ModelError
from nemo_gym.exchange.request import Sampling
from nemo_gym.rendering.tokenizer import Tokenizer
from responses_api_models.local_vllm_model.arguments import engine_arguments
from tests.live import lora
from tests.live.device import DEVICES
from tests.live.vllm import MODEL

pytest.importorskip("ray")
pytest.importorskip("vllm")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.asyncio(loop_scope="module")]

IDS = Tokenizer(MODEL).encode("The harbour of Lima, a list of cities and what they sell:")
NEVER = {0: -100.0, 2: -100.0}
"""No end token is drawn."""
TEXT = Sampling(temperature=1.0, max_tokens=60, logit_bias=NEVER)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=DEVICES)
async def deployment(request, tmp_path_factory):
    adapters = {lora.NAME: str(lora.write(tmp_path_factory.mktemp("adapter") / "tilted"))}
    device = request.param
    told = {"max_model_len": 1024, "dtype": "float32", **device.engine_args}
    arguments = engine_arguments(MODEL, device.gpus, told, adapters)
    made = Deployment(arguments, gpus=device.gpus, adapters=adapters, spare=1, start_s=3000)
    await made.start()
    yield made
    await made.close()


async def asked(deployment, sampling=TEXT, **more):
    return await deployment.engine.generate(EngineRequest(IDS, sampling, **more))


def largest_difference(policy, reply):
    """Of what is told of prompt and completion, from what the policy makes of it."""
    trace = reply.outputs[0].tokens
    ids = torch.tensor([list(IDS + trace.ids)])
    with torch.no_grad():
        mine = torch.log_softmax(policy(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
    assert math.isnan(reply.prompt_logprobs[0]) and len(reply.prompt_logprobs) == len(IDS)
    return float((mine - torch.tensor(reply.prompt_logprobs[1:] + trace.logprobs)).abs().max())


async def test_prompt_and_adapter_have_the_log_probs_that_transformers_computes(deployment):
    free = replace(TEXT, logit_bias=None)  # a bias is in the log-probs
    base = await asked(deployment, free, prompt_logprobs=True)
    tilted = await asked(deployment, free, prompt_logprobs=True, adapter=lora.NAME)
    policy = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    assert largest_difference(policy, base) < 0.005
    assert largest_difference(policy, tilted) > 0.1
    assert largest_difference(lora.merged(policy), tilted) < 0.005
    assert (await asked(deployment)).prompt_logprobs is None
    with pytest.raises(ModelError, match="no adapter 'french'"):
        await asked(deployment, adapter="french")


async def test_a_seed_decides_and_a_bound_narrows(deployment):
    def ids(reply):
        return [output.tokens.ids for output in reply.outputs]

    seeded = [ids(await asked(deployment, replace(TEXT, seed=5, n=2))) for _ in range(2)]
    assert seeded[0] == seeded[1] and seeded[0][0] != seeded[0][1]
    (greedy,) = ids(await asked(deployment, replace(TEXT, temperature=0.0)))
    for narrow in ({"min_p": 1.0}, {"top_k": 1}, {"top_p": 1e-6}):
        assert ids(await asked(deployment, replace(TEXT, **narrow))) == [greedy]


async def test_a_replica_comes_and_goes_and_no_call_is_lost(deployment):
    first = deployment.engine.replicas[0].name
    second = await deployment.add()
    calls = [
        asyncio.create_task(asked(deployment, replace(TEXT, max_tokens=300), affinity=f"r-{n}")) for n in range(16)
    ]
    await asyncio.sleep(0.3)
    busy = {one.name: one.in_flight for one in deployment.engine.replicas}
    assert min(busy.values()) > 0
    assert await deployment.remove(first)
    assert [one.name for one in deployment.engine.replicas] == [second]
    replies = await asyncio.gather(*calls)
    assert {len(one.outputs[0].tokens.ids) for one in replies} == {300}
    assert len((await asked(deployment)).outputs[0].tokens.ids) == 60


async def test_calls_wait_while_it_sleeps(deployment):
    weights = deployment.engine.weights
    running = asyncio.create_task(asked(deployment, replace(TEXT, max_tokens=200)))
    await asyncio.sleep(0.1)
    await weights.sleep(0)
    assert (weights.state, running.done()) == ("asleep", True)
    waiting = asyncio.create_task(asked(deployment))
    done, _ = await asyncio.wait([waiting], timeout=1.0)
    assert not done
    await weights.wake()
    assert len((await waiting).outputs[0].tokens.ids) == 60
    assert len((await running).outputs[0].tokens.ids) == 200
