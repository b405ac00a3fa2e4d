"""Where a job ends before its data does, what is made anew, who may wait: over real HTTP."""

import asyncio
import json

import pytest

from nemo_gym.rollouts import JobFailed, Rollouts
from nemo_gym.rollouts.job import preflight
from tests.rollouts.test_job import Bench
from tests.rollouts.test_job import bench as bench

LONG_S = 60


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("nemo_gym.rollouts.collector._RETRY_S", (0.001, 0.002))


async def test_a_limit_of_rollouts_counts_what_an_earlier_start_made(bench: Bench):
    result = await bench.run([{}] * 20, limits={"rollouts": 6})
    assert (result.exit_code, result.stopped) == (0, "limits.rollouts: 6")
    assert len(bench.made()) == 6
    assert json.loads((bench.output / "manifest.json").read_text())["stopped"] == "limits.rollouts: 6"
    again = await bench.run(resume=True, limits={"rollouts": 9})
    assert (again.exit_code, len(bench.made())) == (0, 9)
    whole = await bench.run(resume=True)
    assert (whole.stopped, len(bench.made())) == (None, 20)


async def test_a_limit_of_tokens_is_passed_by_what_was_under_way_and_no_more(bench: Bench):
    result = await bench.run([{}] * 50, concurrency=3, limits={"tokens": 1100})  # 110 each
    assert result.stopped.startswith("limits.tokens: 1,")
    assert 10 <= len(bench.made()) <= 12


async def test_a_limit_of_cost_by_the_price_table(bench: Bench):
    prices = {"scripted-*": {"input": 1e4, "output": 1e5}}  # 100 in and 10 out: 2.0 a rollout
    rows = [{"model": "scripted-1"}] * 50
    result = await bench.run(rows, concurrency=1, prices=prices, limits={"cost": 10.0})
    assert (result.stopped, len(bench.made())) == ("limits.cost: 10 of 10", 5)
    assert json.loads((bench.output / "metrics.json").read_text())["cost"] == pytest.approx(10.0)


async def test_a_model_without_a_price_ends_a_job_that_has_a_limit_of_cost(bench: Bench):
    prices = {"other": {"input": 1, "output": 1}}
    result = await bench.run([{"model": "m"}] * 50, concurrency=1, prices=prices, limits={"cost": 10.0})
    assert result.stopped == "limits.cost: prices has no model 'm', so what it costs is not known"
    assert len(bench.made()) == 1


async def test_a_limit_of_time(bench: Bench):
    bench.fake.delay = 0.05
    result = await bench.run([{}] * 5000, concurrency=1, limits={"seconds": 2})
    assert result.stopped == "limits.seconds: 2"
    assert 0 < len(bench.made()) < 5000


async def test_it_ends_when_enough_is_known(bench: Bench):
    rows = [{"rewards": [float(n % 2)]} for n in range(200)]
    result = await bench.run(rows, concurrency=1, stop_when={"narrower_than": 0.3, "tasks": 10})
    assert result.stopped.startswith("stop_when: reward is 0.4")
    interval = result.summary.reward
    assert interval.high - interval.low < 0.3
    assert 10 <= len(bench.made()) < 100
    assert "narrower than 0.3" in result.stopped


async def test_another_metric_may_decide_and_is_known_after_a_resume(bench: Bench):
    rows = [{"rewards": [float(n % 2)], "score": 0.25} for n in range(60)]
    wanted = {"metric": "score", "narrower_than": 0.1, "tasks": 30}
    first = await bench.run(rows, concurrency=1, stop_when=wanted, limits={"rollouts": 25})
    assert first.stopped == "limits.rollouts: 25"
    result = await bench.run(resume=True, concurrency=1, stop_when=wanted)
    assert result.stopped.startswith("stop_when: score is 0.250")
    assert len(bench.made()) == 30


async def test_what_failed_is_made_anew_by_kind_with_a_limit_under_an_id_of_its_own(bench: Bench):
    rows = [{"wish": "model", "fails": 2}, {"wish": "500", "fails": 1}, {"wish": "model", "fails": 9}, {}]
    result = await bench.run(rows, retries={"model": 2})
    assert bench.made() == [(0, 0), (3, 0)]
    assert result.summary.failures == {"agent": 1, "model": 1}
    failures = bench.read("failures.jsonl")
    attempts = sorted((row["_ng_task_index"], row["attempt"], row["retried"]) for row in failures)
    assert attempts == [
        (0, 0, True),
        (0, 1, True),
        (1, 0, False),
        (2, 0, True),
        (2, 1, True),
        (2, 2, False),
    ]
    assert json.loads((bench.output / "metrics.json").read_text())["retried"] == {"model": 4}
    ids = [row["_ng_rollout_id"] for row in failures + bench.read("rollouts.jsonl")]
    assert len(set(ids)) == len(ids) == 8
    assert set(ids) == set(bench.fake.seals)
    (first,) = [row for row in bench.read("rollouts.jsonl") if row["_ng_task_index"] == 0]
    assert first["_ng_rollout"]["attempt"] == 2


async def test_a_change_is_told_and_accepted_only_when_said(bench: Bench):
    await bench.run([{}] * 3)
    (fault,) = preflight(bench.job(resume=True, repeats=2))
    assert "repeats was 1, is 2" in fault.message and "job.accept_changes=true" in fault.message
    refused = await bench.run(resume=True, repeats=2)
    assert (refused.exit_code, len(bench.made())) == (1, 3)
    assert preflight(bench.job(resume=True, repeats=2, accept_changes=True)) == []
    result = await bench.run(resume=True, repeats=2, accept_changes=True)
    assert (result.exit_code, len(bench.made())) == (0, 6)
    written = json.loads((bench.output / "manifest.json").read_text())
    assert written["changes"] == ["repeats was 1, is 2"]
    assert written["identity"]["repeats"] == 2


async def test_a_changed_setting_of_a_server_is_named(bench: Bench):
    was, now = {"policy_model.model": "a", "env.size": 3}, {"policy_model.model": "b", "env.size": 3}
    await bench.run([{}] * 3, served=was)
    (fault,) = preflight(bench.job(resume=True), now)
    assert "policy_model.model was 'a', is 'b'" in fault.message
    refused = await bench.run(resume=True, served=now, digest="other")
    assert (
        refused.problem
        == f"{bench.output}: not the run that was started there: policy_model.model was 'a', is 'b' ("
        + ("job.accept_changes=true goes on all the same)")
    )
    assert (await bench.run(resume=True, served=was)).exit_code == 0


async def test_several_datasets_and_agents(bench: Bench):
    bench.servers["second"] = bench.url
    other = bench.folder / "other.jsonl"
    other.write_text('{"responses_create_params": {"input": "hi"}}\n' * 2)
    bench.job([{}] * 3)
    datasets = [
        {"input": str(bench.folder / "rows.jsonl"), "agent": ["agent", "second"]},
        {"input": str(other), "repeats": 3},
    ]
    result = await bench.run(input=None, datasets=datasets)
    assert (result.exit_code, result.summary.rollouts) == (0, 6 + 2 * 3)
    rows = bench.read("rollouts.jsonl")
    assert sorted({(row["_ng_dataset"], row["agent_ref"]["name"]) for row in rows}) == [
        ("other", "agent"),
        ("rows", "agent"),
        ("rows", "second"),
    ]
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows}) == 12


# ---- as they come


def online(bench: Bench, rows, **more):
    job = bench.job(rows, **more)
    kinds = {"agent": "responses_api_agents", "policy_model": "responses_api_models"}
    return Rollouts(job, servers=bench.servers, kinds=kinds)


async def test_rollouts_come_as_they_finish_with_their_tokens(bench: Bench):
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    rows = [{"output": [{"type": "message"} | tokens], "rewards": [0.25]}, {}]
    async with online(bench, rows, repeats=2) as rollouts:
        found = [rollout async for rollout in rollouts]
    assert sorted((one.task, one.repeat) for one in found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (first, *_) = [one for one in found if one.task == 0]
    assert (first.reward, first.agent, first.masked) == (0.25, "agent", False)
    assert first.turns == [([1, 2], [3], [-0.5])]
    assert rollouts.result.exit_code == 0
    assert len(bench.made()) == 4


async def test_a_reader_that_is_slow_holds_the_job_back(bench: Bench):
    async with online(bench, [{}] * 100, concurrency=3) as rollouts:
        first = await anext(rollouts)
        await asyncio.sleep(1.0)  # time enough for all of them, if nothing held them back
        begun = len(bench.fake.runs)
        assert first.reward == 1.0
        rest = [rollout async for rollout in rollouts]
    assert begun <= 1 + 3 + 1 + 1
    assert len(rest) == 99


async def test_leaving_early_ends_the_job_and_a_resumed_one_goes_on(bench: Bench):
    async with online(bench, [{}] * 30, concurrency=2) as rollouts:
        for _ in range(5):
            await anext(rollouts)
    made = len(bench.made())
    assert 5 <= made < 30
    async with online(bench, None, concurrency=2, resume=True) as rollouts:
        rest = [rollout async for rollout in rollouts]
    assert (len(rest), len(bench.made())) == (30 - made, 30)


async def test_a_reader_that_gives_up_waiting_loses_nothing(bench: Bench):
    bench.fake.delay = 0.3
    async with online(bench, [{}] * 4, concurrency=1) as rollouts:
        found = []
        async with asyncio.timeout(LONG_S):
            while len(found) < 4:
                try:
                    async with asyncio.timeout(0.07):
                        found.append(await anext(rollouts))
                except TimeoutError:
                    continue
    assert sorted(one.task for one in found) == [0, 1, 2, 3]


async def test_a_job_that_fails_says_so_to_its_reader(bench: Bench):
    async with online(bench, [{"wish": "500"}] * 2) as rollouts:
        with pytest.raises(JobFailed, match="no rollout was finished"):
            await anext(rollouts)


async def test_without_a_run_there_is_nothing_to_read(bench: Bench, monkeypatch, tmp_path):
    monkeypatch.setenv("NEMO_GYM_RUNTIME_DIR", str(tmp_path / "runtime"))
    with pytest.raises(JobFailed, match="nothing is running"):
        await Rollouts(bench.job([{}])).__aenter__()
