"""The job over real HTTP against one process that plays agent and model server."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nemo_gym.config.types import JobConfig
from nemo_gym.rollouts import manifest
from nemo_gym.rollouts.job import kept_run_id, preflight, run_job
from nemo_gym.rollouts.summary import lines
from nemo_gym.web import client as pooled
from nemo_gym.web.peers import ServerClient
from tests.loopback import serving
from tests.rollouts.fake_servers import Fake

ROW = {"responses_create_params": {"input": "hi"}}


class Bench:
    def __init__(self, folder: Path, url: str, fake: Fake) -> None:
        self.folder, self.url, self.fake = folder, url, fake
        self.output = folder / "out"
        self.servers = {"agent": url, "policy_model": url}
        self.shown = io.StringIO()

    def job(self, rows: list[Any] | None = None, **more: Any) -> JobConfig:
        path = self.folder / "rows.jsonl"
        if rows is not None:
            path.write_text("".join((row if isinstance(row, str) else json.dumps(ROW | row)) + "\n" for row in rows))
        fields = {"agent": "agent", "input": str(path), "output": str(self.output), "concurrency": 4}
        return JobConfig(**{**fields, **more})  # type: ignore[arg-type]

    async def run(self, rows=None, *, digest="c", run_id="run", served=None, **more):
        return await run_job(
            self.job(rows, **more),
            ServerClient(self.servers),
            run_id=run_id,
            model_servers=["policy_model"],
            config_digest=digest,
            served=served,
            console=Console(file=self.shown, width=120),
        )

    def read(self, name: str) -> list[dict[str, Any]]:
        path = self.output / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def made(self) -> list[tuple[int, int]]:
        return sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in self.read("rollouts.jsonl"))


@pytest.fixture
async def bench(tmp_path):
    fake = Fake()
    async with serving(fake.app()) as url:
        yield Bench(tmp_path, url, fake)
        await pooled.close()


async def test_a_job(bench):
    rows = [{"task_id": f"t{n}", "rewards": [1.0, 0.0, 0.0, n % 2 * 1.0]} for n in range(6)]
    result = await bench.run(rows, repeats=4, responses_create_params={"temperature": 1.0})
    assert (result.exit_code, result.problem) == (0, None)
    assert bench.made() == [(task, repeat) for task in range(6) for repeat in range(4)]
    row = bench.read("rollouts.jsonl")[0]
    assert row["responses_create_params"] == {"input": "hi", "temperature": 1.0}
    assert row["agent_ref"]["name"] == "agent"
    assert row["task_id"] == f"t{row['_ng_task_index']}"
    assert row["_ng_rollout"]["calls"] == 2
    assert set(bench.fake.seals.values()) == {None}
    assert len({row["_ng_rollout_id"] for row in bench.read("rollouts.jsonl")}) == 24
    summary = result.summary
    assert (summary.rollouts, summary.calls, summary.prompt_tokens, summary.output_tokens) == (24, 48, 2400, 240)
    assert summary.reward.mean == pytest.approx(9 / 24)
    assert (summary.passes[1], summary.passes[4]) == (pytest.approx(9 / 24), 1.0)
    metrics = json.loads((bench.output / "metrics.json").read_text())
    assert metrics["pass@2"] == summary.passes[2]
    assert metrics["reward"]["mean"] == summary.reward.mean
    written = json.loads((bench.output / "manifest.json").read_text())
    assert (written["run_id"], written["identity"]["rows"], written["finished"] is None) == ("run", 6, False)
    text = "\n".join(lines(summary, "out"))
    assert "0.375" in text and "pass@4" in text and "2,400 in, 240 out" in text


async def test_each_failure_has_its_kind_and_touches_no_other(bench):
    wishes = ["500", "model", "garbage", "list", "no reward", "nan", "cut", "hang"]
    rows: list[Any] = []
    for wish in wishes:
        rows += [{"wish": wish}, {}]
    rows += ["{", "[]", '{"responses_create_params": {}}', {}]
    result = await bench.run(rows, rollout_timeout_s=1.5)
    assert result.exit_code == 1
    assert "11 of 20 rollouts failed" in result.problem
    assert [task for task, _ in bench.made()] == [1, 3, 5, 7, 9, 11, 13, 15, 19]
    failures = {row["_ng_task_index"]: row for row in bench.read("failures.jsonl")}
    kinds = ["agent", "model", "agent", "agent", "verifier", "verifier", "infrastructure", "timeout"]
    assert [failures[2 * n]["kind"] for n in range(8)] == kinds
    assert [failures[16 + n]["kind"] for n in range(3)] == ["row"] * 3
    assert all("reward" not in row for row in failures.values())
    assert "overloaded" in failures[2]["message"]
    assert "not JSON" in failures[16]["message"]
    sealed = [bench.fake.seals[failures[2 * n]["_ng_rollout_id"]] for n in range(8)]
    reasons = ["agent_error", "backend_error", "agent_error", "agent_error", None, None, "agent_error", "deadline"]
    assert sealed == reasons
    expected = {"row": 3, "agent": 3, "verifier": 2, "model": 1, "timeout": 1, "infrastructure": 1}
    assert result.summary.failures == expected


async def test_a_judge_that_failed_is_a_failure_and_not_a_reward_of_nothing(bench):
    result = await bench.run([{"wish": "judge"}, {}])
    assert result.summary.failures == {"verifier": 1}
    (failure,) = bench.read("failures.jsonl")
    assert failure["message"] == "judge_failed: TimeoutError: too slow"
    assert result.summary.reward.mean == 1.0


async def test_no_more_rollouts_at_a_time_than_asked(bench):
    bench.fake.delay = 0.01
    await bench.run([{}] * 30, concurrency=3)
    assert bench.fake.most_running == 3


async def test_resume_makes_what_is_missing_and_retries_what_failed(bench):
    await bench.run([{"wish": "500"} if n == 2 else {} for n in range(5)], repeats=2, run_id="first")
    first = bench.read("rollouts.jsonl")
    lines_kept = (bench.output / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    # A kill in mid-write: the fifth line is torn.
    (bench.output / "rollouts.jsonl").write_bytes(b"".join(lines_kept[:4]) + lines_kept[4][:25])
    bench.fake.runs.clear()
    job = bench.job(resume=True, repeats=2)
    assert kept_run_id(job) == "first"
    result = await bench.run(resume=True, repeats=2, run_id="second")
    assert result.run_id == "first"
    assert bench.made() == [(task, repeat) for task in (0, 1, 3, 4) for repeat in range(2)]
    assert bench.read("rollouts.jsonl")[:4] == first[:4]
    assert len(bench.fake.runs) == 6
    assert result.summary.failures == {"agent": 2}
    assert "resuming: 4 of 10" in bench.shown.getvalue()
    ids = [row["_ng_rollout_id"] for row in bench.read("rollouts.jsonl") + first[4:]]
    assert len(set(ids)) == len(ids)
    again = await bench.run(resume=True, repeats=2)
    assert again.summary.rollouts == 8
    assert len(bench.read("failures.jsonl")) == 6


async def test_a_finished_job_resumes_to_nothing(bench):
    await bench.run([{}] * 3)
    bench.fake.runs.clear()
    result = await bench.run(resume=True, overwrite=True)
    assert (result.exit_code, result.summary.rollouts, bench.fake.runs) == (0, 3, [])


async def test_an_output_is_not_overwritten_untold(bench):
    await bench.run([{}] * 3)
    before = (bench.output / "rollouts.jsonl").read_bytes()
    refused = await bench.run()
    assert refused.exit_code == 1
    assert "job.resume=true" in refused.problem and "job.overwrite=true" in refused.problem
    assert [fault.key for fault in preflight(bench.job())] == ["job.output"]
    assert (bench.output / "rollouts.jsonl").read_bytes() == before
    for run_id in ("run", "new"):
        (bench.output / "captures" / run_id).mkdir(parents=True)
    (bench.output / "notes.txt").write_text("mine")
    result = await bench.run([{}] * 2, overwrite=True, run_id="new")
    assert (result.exit_code, bench.made()) == (0, [(0, 0), (1, 0)])
    assert [path.name for path in (bench.output / "captures").iterdir()] == ["new"]
    assert (bench.output / "notes.txt").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [({"repeats": 3}, "repeats was 1, is 3"), ({"limit": 2}, "limit"), ({"digest": "other"}, "config_digest")],
)
async def test_another_run_does_not_resume_this_one(bench, change, named):
    await bench.run([{}] * 3)
    result = await bench.run(resume=True, **change)
    assert result.exit_code == 1
    assert named in result.problem


async def test_a_changed_dataset_does_not_resume(bench):
    await bench.run([{}] * 3)
    assert "dataset_sha256" in (await bench.run([{}, {}, {"x": 1}], resume=True)).problem


async def test_no_recorded_model_call_fails_loudly(bench):
    result = await bench.run([{"model_calls": 0}] * 3)
    assert (result.exit_code, result.summary.rollouts) == (1, 3)
    assert "no model call was recorded" in result.problem


async def test_without_capture_there_is_nothing_to_count(bench):
    from fastapi.responses import JSONResponse

    bench.fake.sealing = JSONResponse({"error": {"message": "capture is off"}}, status_code=400)
    result = await bench.run([{"model_calls": 0}] * 3)
    assert (result.exit_code, result.summary.calls) == (0, None)


async def test_a_seal_that_fails_leaves_the_record_unsealed(bench):
    from fastapi.responses import JSONResponse

    bench.fake.sealing = JSONResponse({}, status_code=503)
    result = await bench.run([{}] * 3)
    assert result.exit_code == 1
    assert result.summary.incomplete == {"unsealed": 3}


@pytest.mark.parametrize(("token_ids", "refused"), [(True, False), (None, False), (False, True)])
async def test_token_rows_without_token_ids_are_refused_at_the_start(bench, token_ids, refused):
    bench.fake.capabilities |= {} if token_ids is None else {"token_ids": token_ids, "logprobs": True}
    result = await bench.run([{}], export=["token_rows"])
    assert (result.exit_code == 1) is refused
    assert (len(bench.fake.runs) == 0) is refused
    if refused:
        assert "policy_model gives none" in result.problem
        bench.fake.capabilities["token_ids"] = True
        assert (await bench.run([{}], export=["token_rows"])).exit_code == 0  # nothing was there to protect


async def test_a_job_without_a_rollout_fails(bench):
    result = await bench.run([{"wish": "500"}] * 3)
    assert result.exit_code == 1
    assert "failures.jsonl" in result.problem


async def test_an_agent_that_is_gone_ends_the_job_early(bench, monkeypatch):
    monkeypatch.setattr("nemo_gym.web.peers._FIRST_WAIT_S", 0.001)
    bench.servers["agent"] = "http://127.0.0.1:9"
    result = await bench.run([{}] * 500)
    assert result.exit_code == 1
    assert "could not reach a server" in result.problem
    assert len(bench.read("failures.jsonl")) < 40


async def test_a_stopped_job_seals_what_is_in_flight_and_can_be_resumed(bench):
    task = asyncio.ensure_future(bench.run([{}, {"wish": "hang"}, {}, {}]))
    async with asyncio.timeout(60):
        while len(bench.read("rollouts.jsonl")) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(map(str, bench.fake.seals.values())) == ["None", "None", "None", "cancelled"]
    assert json.loads((bench.output / "metrics.json").read_text())["rollouts"] == 3
    resumed = await bench.run(resume=True, rollout_timeout_s=0.3)
    assert resumed.summary.failures == {"timeout": 1}


async def test_two_jobs_do_not_write_one_output(bench):
    lock = manifest.Lock(bench.output)
    result = await bench.run([{}])
    assert result.exit_code == 1
    assert "another job" in result.problem
    lock.release()
    assert (await bench.run([{}])).exit_code == 0


async def test_masked_rollouts_are_no_measurement(bench):
    result = await bench.run([{"rewards": [1.0]}, {"rewards": [0.0], "mask": True}])
    assert (result.summary.reward.mean, result.summary.masked, result.summary.rollouts) == (1.0, 1, 2)


async def test_a_corrupt_journal_is_told(bench):
    await bench.run([{}] * 3)
    path = bench.output / "rollouts.jsonl"
    path.write_bytes(b"{\n" + path.read_bytes())
    assert "rollouts.jsonl:1" in (await bench.run(resume=True)).problem


async def test_limit_and_blank_lines(bench):
    await bench.run([{}, "", {}, "  ", {}], limit=2)
    assert bench.made() == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("rows", "more", "key"),
    [
        ([], {}, "job.input"),
        (["not json"], {}, "job.input"),
        (None, {"input": "/nowhere.jsonl"}, "job.input"),
        ([{}], {"output": "/dev/null/out"}, "job.output"),
    ],
)
def test_faults_are_known_before_the_start(tmp_path, rows, more, key):
    bench = Bench(tmp_path, "", Fake())
    assert [fault.key for fault in preflight(bench.job(rows, **more))] == [key]


async def test_a_changed_job_is_refused_before_anything_starts(bench):
    await bench.run([{}] * 2)
    (fault,) = preflight(bench.job(resume=True, repeats=3))
    assert fault.key == "job.resume"
    assert "repeats was 1, is 3" in fault.message
    assert preflight(bench.job(resume=True)) == []


def test_an_output_that_cannot_be_made_is_a_fault(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"responses_create_params": {"input": "hi"}}\n')
    (fault,) = preflight(JobConfig(agent="a", input=str(rows), output="/proc/no-such-folder/out"))
    assert fault.key == "job.output"
