"""A job to its end: rollouts, profile, report, and what is said of them."""

import asyncio
import io
import json
import time

import pytest
from rich.console import Console

from nemo_gym.cli.job import do_job
from nemo_gym.config.types import JobConfig
from nemo_gym.web.peers import ServerClient
from tests.loopback import serving
from tests.rollouts.fake_servers import Fake


@pytest.fixture
def shown():
    return io.StringIO()


async def done(folder, shown, rows, **more):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"responses_create_params": {"input": "hi"}} | row) + "\n" for row in rows))
    job = JobConfig(agent="agent", input=str(path), output=str(folder / "out"), **more)
    async with serving(Fake().app()) as url:
        return await do_job(
            job,
            ServerClient(
                {"agent": url, "policy_model": url},
                {"agent": "responses_api_agents", "policy_model": "responses_api_models"},
            ),
            run_id="the-run",
            config_digest="c",
            captures=None,
            logs=None,
            console=Console(file=shown, width=200),
        )


async def test_a_job_ends_with_its_report(tmp_path, shown):
    rows = [{"category": "easy", "rewards": [1.0, 0.0]}, {"category": "hard", "rewards": [0.0, 0.0]}]
    assert await done(tmp_path, shown, rows, repeats=2) == 0
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    assert (metrics["run_id"], metrics["pass@2"], metrics["pass^2"]) == ("the-run", 0.5, 0.0)
    assert metrics["reward"]["mean"] == metrics["profile"]["overall"]["reward"]["mean"] == 0.25
    assert metrics["profile"]["subsets"]["easy"]["pass@2"]["mean"] == 1.0
    page = (tmp_path / "out/report.html").read_text()
    assert "the-run" in page
    assert "agent on rows.jsonl" in page
    assert f"report       {tmp_path}/out/report.html" in shown.getvalue()
    assert "pass^2       0.000" in shown.getvalue()


async def test_a_report_that_cannot_be_written_ends_no_job(tmp_path, shown):
    (tmp_path / "out/report.html").mkdir(parents=True)
    assert await done(tmp_path, shown, [{}]) == 0
    assert "report: " in shown.getvalue()
    assert json.loads((tmp_path / "out/metrics.json").read_text())["rollouts"] == 1


async def test_a_job_that_is_told_to_end_leaves_a_report_of_what_is_done(tmp_path, shown):
    rows = [{} if number < 4 else {"wish": "hang"} for number in range(8)]
    job = asyncio.create_task(done(tmp_path, shown, rows, concurrency=4))
    journal, until = tmp_path / "out/rollouts.jsonl", time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b"\n") == 4):
        assert time.monotonic() < until and not job.done()
        await asyncio.sleep(0.02)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    assert (metrics["rollouts"], metrics["asked"]) == (4, 8)
    assert metrics["profile"]["overall"]["rollouts"] == 4
    assert "the-run" in (tmp_path / "out/report.html").read_text()
    assert f"what is done is in {tmp_path}/out/report.html" in shown.getvalue()
    assert json.loads((tmp_path / "out/manifest.json").read_text())["finished"] is None


async def test_a_job_without_a_result_has_no_report(tmp_path, shown):
    assert await done(tmp_path, shown, [{"wish": "500"}]) == 1
    assert not (tmp_path / "out/report.html").exists()
