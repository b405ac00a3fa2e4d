"""Two replicas under 64 rollouts, one of them killed ten times: every call ends properly, and is recorded once.

Beside it, what the same servers listen on: loopback alone, Ray and vLLM included.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random

import anthropic
import openai
import psutil
import pytest

from nemo_gym.capture import CaptureStore
from tests.live.two_replicas import KILLS, MODEL, WHOLE_S, TwoReplicas
from tests.project import command_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.live, pytest.mark.asyncio(loop_scope="session")]

ROLLOUTS = 64
CLOSE = 0.001
NO_END = {"0": -100, "2": -100}
CITIES = ["Paris", "Tokyo", "Berlin", "Oslo", "Seoul", "Lima", "Dublin", "Madrid"]


@pytest.mark.ci
async def test_everything_listens_on_loopback_only(two_replicas: TwoReplicas) -> None:
    found: dict[str, set[str]] = {}
    for process in [psutil.Process(), *two_replicas.processes()]:
        try:
            listening = [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
            name = process.name()
        except psutil.Error:  # it ended while it was looked at
            continue
        for one in listening:
            found.setdefault(one.laddr.ip, set()).add(name)
    assert found, "nothing was found to listen: the test looks at the wrong processes"
    assert any("raylet" in names or "gcs_server" in names for names in found.values())
    assert {address: names for address, names in found.items() if not is_loopback(address)} == {}


def is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


@pytest.mark.ci
async def test_which_addresses_are_loopback_s() -> None:
    assert [is_loopback(one) for one in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == [True] * 3
    assert [is_loopback(one) for one in ("0.0.0.0", "::", "::ffff:10.0.0.1", "192.0.2.2")] == [False] * 4


class Asking:
    """One rollout's client."""

    def __init__(self, at: TwoReplicas, number: int) -> None:
        self.rollout = f"r{number}"
        base = f"{at.url}/ng-rollout/{self.rollout}"
        kind = number % 3
        if kind == 2:
            self.client = anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0, timeout=WHOLE_S)
            self.ask = self.messages
        else:
            self.client = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=WHOLE_S)
            self.ask = self.responses if kind else self.chat
        self.text = f"What is the weather in {CITIES[number % len(CITIES)]}? ({number})"
        self.streamed = number % 2 == 1

    async def chat(self) -> str:
        asked = {
            "model": "tiny-policy",
            "messages": [{"role": "user", "content": self.text}],
            "max_tokens": 200,
            "temperature": 1.0,
            "logit_bias": NO_END,  # so that they are long enough to be killed in
        }
        if not self.streamed:
            return (await self.client.chat.completions.create(**asked)).choices[0].message.content or ""
        chunks = [chunk async for chunk in await self.client.chat.completions.create(stream=True, **asked)]
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    async def responses(self) -> str:
        asked = {"model": "tiny-policy", "input": self.text, "max_output_tokens": 200, "temperature": 1.0}
        if not self.streamed:
            return (await self.client.responses.create(**asked)).output_text
        events = [event async for event in await self.client.responses.create(stream=True, **asked)]
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    async def messages(self) -> str:
        asked = {"model": "tiny-policy", "messages": [{"role": "user", "content": self.text}], "max_tokens": 200}
        if not self.streamed:
            reply = await self.client.messages.create(**asked)
            return "".join(block.text for block in reply.content if block.type == "text")
        async with self.client.messages.stream(**asked) as stream:
            return "".join([piece async for piece in stream.text_stream])


async def kill_one(at: TwoReplicas, drawn: random.Random) -> str:
    """Kills one of the processes of one replica, and returns when the server has noticed."""
    replica = drawn.choice([one for one in at.replicas if one.state == "ready"])
    facts = await replica.ask("describe")
    actor = psutil.Process(facts["pid"])
    # Python's tracker of resources is nothing that the replica needs.
    family = [one for one in [actor, *actor.children(recursive=True)] if "resource_tracker" not in command_of(one)]
    victim = drawn.choice(family)
    before, what = replica.restarts, command_of(victim)[:60]
    victim.kill()
    async with asyncio.timeout(WHOLE_S):
        while replica.restarts == before:
            await replica.watch()
            await asyncio.sleep(0.5)
    return f"{replica.name}'s {what}"


def error_is_proper(error: Exception) -> bool:
    if isinstance(error, openai.APIStatusError):
        return bool(error.body and error.body.get("message"))
    if isinstance(error, anthropic.APIStatusError):
        return error.body["type"] == "error" and bool(error.body["error"]["message"])
    return isinstance(error, (openai.APIError, anthropic.APIError)) and bool(error.message)


@pytest.mark.ci
async def test_nothing_is_dropped_when_a_replica_is_killed(two_replicas: TwoReplicas) -> None:
    drawn = random.Random(9)
    answered: list[str] = []
    failed: list[Exception] = []
    for number in range(KILLS):
        clients = [Asking(two_replicas, number * ROLLOUTS + one) for one in range(ROLLOUTS)]
        calls = [asyncio.create_task(client.ask()) for client in clients]
        wanted = drawn.randrange(ROLLOUTS // 2)
        while sum(call.done() for call in calls) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        pending = sum(not call.done() for call in calls)
        victim = await kill_one(two_replicas, drawn)
        done = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), WHOLE_S)
        answered += [one for one in done if isinstance(one, str)]
        failed += [one for one in done if isinstance(one, BaseException)]
        seconds = await two_replicas.until_whole()
        print(f"\nkill {number + 1}: {victim} with {pending} in flight; whole again {seconds:.1f} s after the calls")
    assert all(error_is_proper(error) for error in failed), failed
    records = list(CaptureStore(two_replicas.captures).calls())
    print(f"\n{len(answered)} answered, {len(failed)} failed")
    assert len(answered) + len(failed) == KILLS * ROLLOUTS
    assert len({record.call_id for record in records}) == len(records) == KILLS * ROLLOUTS
    assert sum(record.status == "answered" for record in records) == len(answered)
    again = [record for record in records if len(record.attempts) > 1]
    print(f"{len(again)} were asked more than once")
    assert again, "no call was in flight where it was killed"
    assert all(record.attempts[-1].error is None for record in again if record.status == "answered")
    assert sorted(text_of(record) for record in records if record.status == "answered") == sorted(answered)
    bias = torch.zeros(transformers.AutoConfig.from_pretrained(MODEL).vocab_size)
    for token, value in NO_END.items():
        bias[int(token)] = value
    # Had a reply tokens of two tries, the later ones would be conditioned on others than those before them.
    policy = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    for record in [one for one in again if one.status == "answered"][:64]:
        assert difference(policy, record.reply, bias if record.dialect == "chat" else 0.0) < CLOSE


def text_of(record) -> str:
    return "".join(part.text for part in record.reply.choices[0].parts if hasattr(part, "text"))


def difference(policy, reply, bias) -> float:
    trace = reply.choices[0].tokens
    ids = torch.tensor([list(reply.prompt_ids + trace.ids)])
    start = len(reply.prompt_ids)
    with torch.no_grad():
        logits = policy(ids).logits[0, start - 1 : -1] + bias
    mine = torch.log_softmax(logits, -1).gather(1, ids[0, start:, None])[:, 0]
    return float((mine - torch.tensor(trace.logprobs)).abs().max())


@pytest.mark.ci
async def test_nothing_is_left_of_them(two_replicas: TwoReplicas) -> None:
    before = two_replicas.processes()
    assert before
    await two_replicas.model.stop()
    _, alive = psutil.wait_procs(before, timeout=30)
    assert alive == []
