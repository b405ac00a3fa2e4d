"""Calls read a rollout at a time, from real shards: by difference, across writers, while servers still write."""

import asyncio
import random
import time
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nemo_gym.capture import CaptureStore, ShardWriter
from nemo_gym.export.calls import is_reshaped, one_rollout, rollouts, survey
from nemo_gym.export.captured import Captured, CapturedCall
from nemo_gym.export.exporter import export
from nemo_gym.export.forest import Forest, prefix
from nemo_gym.export.ledger import Ledger
from tests.export.made import Job, record


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.sqlite")
    yield made
    made.close()


def chain(rollout_id, turns):
    """Its calls, each going on from the one before."""
    made, whole = [], []
    for turn in range(turns):
        whole = [*whole, 10 * turn, 10 * turn + 1]
        parent = {"parent_call_id": made[-1].call_id, "relation": "turn"} if made else {}
        made.append(record(rollout_id, whole, [10 * turn + 2], **parent))
        whole = [*whole, 10 * turn + 2]
    return made


def test_calls_come_as_what_is_new_in_them(tmp_path, ledger):
    job = Job(tmp_path)
    job.rollout("r", *chain("r", 3))
    job.write()
    store = CaptureStore(str(tmp_path / "captures"))
    assert survey(store, ledger) == 3
    (captured,) = rollouts(store, ledger)
    assert [len(call.new_prompt) // 4 for call in captured.calls] == [2, 2, 2]
    assert [call.shared for call in captured.calls] == [0, 3, 6]
    (end,) = (one for one in Forest(captured.calls).generations if not one.children)
    assert array("i", prefix(end, end.end)).tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert captured.calls[1].record().reply.prompt_ids.tolist() == [0, 1, 2, 10, 11]


def test_a_rollout_is_let_go_when_its_last_row_is_read(tmp_path, ledger):
    """Held at a time are those that were under way together, though two servers wrote them."""
    job = Job(tmp_path)
    for number in range(30):
        job.record(*chain(f"r-{number}", 2))
        job.record(record(f"r-{number}", [1], [2], trainable=False), writer="judge_model")
        job.seal(f"r-{number}")
        job.seal(f"r-{number}", writer="judge_model")
    job.write()
    store = CaptureStore(str(tmp_path / "captures"))
    survey(store, ledger)
    names = [captured.rollout_id for captured in rollouts(store, ledger)]
    assert sorted(names) == sorted(f"r-{number}" for number in range(30))
    assert names.index("r-0") < 3 and names.index("r-29") > 26


def test_the_survey_finds_the_oldest_token_of_a_call_when_asked_to(tmp_path):
    job = Job(tmp_path)
    one = record("r", [1], [2, 3])
    (choice,) = one.reply.choices
    choice = replace(choice, tokens=replace(choice.tokens, versions=((0, 2), (1, 6))))
    job.rollout("r", replace(one, reply=replace(one.reply, choices=(choice,))))
    job.write()
    summary, _ = job.again(max_staleness=3)
    assert summary.left_out == {"off_policy": 1}
    assert job.again(max_staleness=4)[0].rollouts == 1


def test_a_server_that_is_still_writing_is_read_as_far_as_it_is(tmp_path):
    job = Job(tmp_path)
    job.rollout("r", *chain("r", 2))
    job.write()

    async def go_on():
        writer = ShardWriter(str(tmp_path / "captures"), "other", "run", "none")
        for one in chain("open", 3):
            await writer.commit(one)
        await asyncio.sleep(0.2)
        summary = await asyncio.to_thread(export, tmp_path, ["token_rows"])
        writer.close()
        return summary

    summary = asyncio.run(go_on())
    assert summary.rollouts == 1 and set(summary.left_out) <= {"no_result"}


def test_calls_since_the_first_pass_are_no_second_rollout(tmp_path, ledger):
    job = Job(tmp_path)
    job.rollout("r", *chain("r", 2))
    job.write()
    store = CaptureStore(str(tmp_path / "captures"))
    survey(store, ledger)
    job.steps = []
    job.record(record("r", [50], [51]), record("new", [1], [2]), writer="late_server")
    job.write()
    whole, loose, new = rollouts(store, ledger)
    assert isinstance(whole, Captured) and (whole.rollout_id, len(whole.calls)) == ("r", 2)
    assert isinstance(loose, CapturedCall) and loose.late
    assert isinstance(new, Captured) and ledger.get(new.rollout_id).reason == "no_result"


@pytest.mark.parametrize(
    ("sampling", "reshaped"),
    [
        ("{}", False),
        ('{"temperature":1.0,"top_p":1.0,"top_k":-1,"min_p":0.0}', False),
        ('{"top_k":0,"max_tokens":5,"seed":3}', False),
        ('{"temperature":0.7}', True),
        ('{"temperature":0}', True),
        ('{"top_p":0.95}', True),
        ('{"top_k":20}', True),
        ('{"min_p":0.1}', True),
        (None, True),
    ],
)
def test_which_sampling_is_another_than_the_raw_one(sampling, reshaped):
    assert is_reshaped(sampling) is reshaped


def drawn_job(folder, seed):
    """Random rollouts, told as whole records: the capture makes of them what is new. All ids said are different."""
    draw, job, fresh, said = random.Random(seed), Job(folder), iter(range(1, 100_000)), {}
    for rollout in range(draw.randint(1, 4)):
        name = f"r-{rollout}"
        made = []
        for _ in range(draw.randint(1, 8)):
            parent, whole = draw.choice(made) if made and draw.random() < 0.8 else (None, [])
            cut = draw.randrange(len(whole)) if whole and draw.random() < 0.2 else len(whole)
            prompt = whole[:cut] + [next(fresh) for _ in range(draw.randint(1, 4))]
            ids = [next(fresh) for _ in range(draw.randint(1, 5))]
            relation = draw.choice(["turn", "retry", "compaction", "subagent"]) if parent is not None else "first"
            fields = {"trainable": draw.random() < 0.9, "status": draw.choice(["answered"] * 4 + ["disconnected"])}
            one = record(name, prompt, ids, relation=relation, parent_call_id=parent, **fields)
            made.append((one.call_id, prompt + ids))
            said[tuple(ids)] = prompt
            job.record(one)
        job.rollout(name, calls=len(made), incomplete=draw.choice([None, None, None, "deadline"]))
    return job, said


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1))
def test_captured_tokens_are_accounted_for_to_the_token(tmp_path_factory, seed):
    job, said = drawn_job(tmp_path_factory.mktemp("job"), seed)
    summary, rows = job.export()
    assert summary.captured == summary.trained + summary.context + sum(summary.discarded.values())
    trained = [token for row in rows for token, mask in zip(row["input_ids"], row["loss_mask"], strict=True) if mask]
    assert len(trained) == len(set(trained)) == summary.trained
    assert set(trained) <= {token for ids in said for token in ids}
    wholes = [list(prompt) + list(ids) for ids, prompt in said.items()]
    assert all(row["input_ids"] in wholes for row in rows)


def test_the_last_seal_counts_though_the_clock_was_set_back(tmp_path, ledger, monkeypatch):
    """As in the store: a call that the later seal states is none that came late."""
    times = iter([5000.0, 1000.0])
    clock = SimpleNamespace(time=lambda: next(times), monotonic=time.monotonic, perf_counter=time.perf_counter)
    monkeypatch.setattr("nemo_gym.capture.writer.time", clock)
    first, second = chain("r", 2)
    job = Job(tmp_path)
    job.record(first)
    job.seal("r")
    job.rollout("r", second, calls=2)
    job.seal("r")
    job.write()
    store = CaptureStore(str(tmp_path / "captures"))
    survey(store, ledger)
    for captured in (*rollouts(store, ledger), one_rollout(store, "r")):
        assert [call.late for call in captured.calls] == [False, False] and not captured.missing
