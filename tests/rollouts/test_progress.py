"""What is shown of a job while it runs: the same facts on a terminal, in plain lines, and for `ng_status`."""

import asyncio
import io

import msgspec
import pytest
from rich.console import Console

from nemo_gym.rollouts import progress as progress_module
from nemo_gym.rollouts.progress import Progress, State, line
from nemo_gym.rollouts.tally import Tally
from nemo_gym.rollouts.traffic import Seen, Traffic, read
from nemo_gym.web import client as pooled
from nemo_gym.web.peers import ServerClient
from tests.bench import HELLO
from tests.bench import bench as model_server
from tests.rollouts.test_tally import entry
from tests.scripted import Answer, chat_reply


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(progress_module, "time", made)
    return made


@pytest.fixture
def tally():
    return Tally({})


def shown(tally, console, asked=40, **more):
    return Progress(console, "results/out", asked, tally, Traffic(ServerClient({}), []), running=lambda: 3, **more)


def plain():
    return Console(file=io.StringIO(), width=200)


def test_a_job_at_one_moment(clock, tally):
    at = shown(tally, plain())
    for task in range(10):
        tally.add(entry(task, reward=task % 2))
    tally.failed["timeout"] += 2
    tally.retried["model"] += 1
    clock.now += 6
    at.tick()
    state = at.state()
    assert (state.done, state.asked, state.running, state.failed) == (10, 40, 3, {"timeout": 2})
    assert state.a_second == pytest.approx(2.0)
    assert state.left_s == pytest.approx(14.0)
    assert (state.reward, state.tokens, state.cost) == (0.5, 1100, None)
    assert state.reward_low < 0.5 < state.reward_high
    words = line(state)
    assert words.startswith("12/40 rollouts, 2.0/s, ETA 0:14, mean reward 0.500 [0.")
    assert "running 3" in words and "failed timeout 2" in words and "retried model 1" in words
    assert msgspec.convert(msgspec.to_builtins(state), State) == state


def test_the_rate_is_that_of_late_and_no_earlier_starts(clock, tally):
    for task in range(1000):
        tally.add(entry(task))
    at = shown(tally, plain(), asked=2000)
    assert at.state().left_s is None
    assert "ETA unknown" in line(at.state())
    for second in range(200):
        clock.now += 1
        if second < 100:
            tally.add(entry(1000 + second))
        at.tick()
    assert at.state().a_second == 0.0


def test_plain_lines_come_now_and_then(clock, tally):
    console = plain()
    at = shown(tally, console, priced=True)
    with at:
        for _ in range(25):
            tally.add(entry(0))
            clock.now += 1
            at.tick()
    said = console.file.getvalue().splitlines()
    assert len(said) == 2
    assert said[0].startswith("10/40 rollouts, 1.0/s, ETA 0:30, mean reward 1.000")
    assert "cost 0" in said[0]


def test_a_terminal_has_a_panel(tally):
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    tally.add(entry(0, reward=0.25))
    tally.failed["agent"] += 1
    at = shown(tally, console)
    with console.capture() as capture:
        console.print(at._panel())
    said = capture.get()
    assert "2/40" in said and "mean reward 0.250" in said and "agent 1" in said


def test_of_metrics_only_two_are_read():
    text = '# HELP ng_calls_in_flight Calls.\nng_calls_in_flight 3.0\nng_tokens_total{kind="completion"} 1.5e+03\n'
    assert read(text) == Seen(3, 1500.0)
    assert read("something_else 1\n") is None


async def test_traffic_is_what_a_real_model_server_says(tmp_path):
    async with model_server(tmp_path, [Answer(chat_reply())]) as at:
        traffic = Traffic(ServerClient({"policy_model": at.url}), ["policy_model"])
        watching = asyncio.create_task(traffic.watch())
        try:
            async with asyncio.timeout(60):
                while traffic.calls_in_flight is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                await at.client().chat.completions.create(model="m", messages=HELLO)
                while not traffic.tokens_a_second:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            watching.cancel()
            await pooled.close()
        assert traffic.calls_in_flight == 0


async def test_a_server_that_is_gone_is_no_traffic(monkeypatch):
    monkeypatch.setattr("nemo_gym.web.peers._FIRST_WAIT_S", 0.001)
    traffic = Traffic(ServerClient({"policy_model": "http://127.0.0.1:9"}), ["policy_model"])
    assert await traffic._seen_at("policy_model") is None
    await pooled.close()
    traffic._take([])
    assert (traffic.calls_in_flight, traffic.tokens_a_second) == (None, None)
