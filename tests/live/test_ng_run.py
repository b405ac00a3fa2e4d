"""`ng_run` with real servers: how it ends, and that nothing of it is ever left."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests import project
from tests.project import World, left

pytestmark = pytest.mark.live

ENV = "env.resources_servers.tiny"
MODEL = "policy_model.responses_api_models.local_tiny"


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stays_up_until_told(world, number):
    process = world.start("run", "+config_paths=[run.yaml]")
    world.until_up(process)
    status = json.loads(world.run("--json", command="status", config=False)[1])
    (run,) = status["runs"]
    assert run["answers"]
    assert {server["name"]: server["state"] for server in run["servers"]} == {"policy_model": "ready", "env": "ready"}
    assert "s3cr3t" not in str(status)
    plain = world.run(command="status", config=False)[1]
    assert "policy_model  ready  http://127.0.0.1:" in plain
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert left(world.folder) == []
    assert world.run(command="status", config=False)[1] == "nothing is running\n"


@pytest.mark.parametrize("moment", [0.5, 1.5, 2.5, 3.5, "up"])
def test_sigkill_at_any_moment_leaves_nothing(world, moment):
    process = world.start("run", "+config_paths=[run.yaml]", f"++{ENV}.mode=stray")
    if moment == "up":
        world.until_up(process)
    else:
        time.sleep(moment)
    process.kill()
    process.communicate()
    world.gone(30)
    assert world.run(command="status", config=False)[1] == "nothing is running\n"
    assert list((world.folder / "runtime").iterdir()) == []


@pytest.mark.parametrize("moment", [0.5, 1.0, "servers"])
def test_interrupted_while_starting(world, moment):
    """A moment is seconds of the command's own CPU, or until its servers start: a loaded machine gets there later."""
    process = world.start("run", "+config_paths=[run.yaml]", f"++{MODEL}.ready_after_s=100")
    child, ends = psutil.Process(process.pid), time.monotonic() + 120

    def come() -> bool:
        return bool(child.children()) if moment == "servers" else sum(child.cpu_times()[:2]) >= moment

    while not come():
        assert time.monotonic() < ends
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in err
    assert left(world.folder) == []


# ---- with a job


@pytest.fixture
def job(world):
    (world.folder / "run.yaml").write_text(project.JOB)
    return [f"++job.output={world.folder}/out", "++job.repeats=2"]


def test_job_from_start_to_end(world, job):
    code, out, err = world.run(*job)
    assert (code, err) == (0, "")
    assert "mean reward" in out
    assert "0.500" in out
    assert "8 of 8" in out
    rows = [json.loads(line) for line in (world.folder / "out/rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    assert (world.folder / "out/logs/agent.log").exists()
    assert left(world.folder) == []

    code, _, err = world.run(*job)
    assert code == 2
    assert "job.output" in err
    assert "job.resume=true" in err
    assert world.run(*job, "++job.resume=true")[0] == 0


def test_job_interrupted_killed_and_resumed(world, job):
    slow = [*job, "++agent.responses_api_agents.tiny_agent.seconds=1.5", "++job.concurrency=2"]
    process = world.start("run", "+config_paths=[run.yaml]", *slow)
    journal = world.folder / "out/rollouts.jsonl"
    end = time.monotonic() + 120
    while not (journal.exists() and journal.read_text().count("\n") >= 2):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.kill()
    process.communicate()
    world.gone(30)
    done = journal.read_text().count("\n")
    assert done < 8
    slow[-2] = "++agent.responses_api_agents.tiny_agent.seconds=1.5"
    code, out, _ = world.run(*slow, "++job.resume=true")
    assert code == 0
    assert "resuming" in out
    assert journal.read_text().count("\n") == 8


def until_seen(world, wanted):
    """What `ng_status` says of the first job that it shows as wanted."""
    end = time.monotonic() + 120
    while True:
        runs = json.loads(world.run("--json", command="status", config=False)[1])["runs"]
        found = [run for run in runs if run.get("job") and wanted(run["job"])]
        if found:
            return found[0]
        assert time.monotonic() < end, runs
        time.sleep(0.1)


def test_a_job_is_seen_from_another_shell(world, job):
    slow = "++agent.responses_api_agents.tiny_agent.seconds=60"
    process = world.start("run", "+config_paths=[run.yaml]", *job, slow, "++job.concurrency=3")
    run = until_seen(world, lambda job: job["running"] == 3)
    assert (run["job"]["asked"], run["job"]["done"], run["job"]["output"]) == (8, 0, f"{world.folder}/out")
    plain = world.run(command="status", config=False)[1]
    assert "0/8 rollouts" in plain and "running 3" in plain
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert left(world.folder) == []


def test_two_runs_at_once_have_logs_of_their_own(world):
    first = world.start("run", "+config_paths=[run.yaml]")
    second = world.start("run", "+config_paths=[run.yaml]")
    for process in (first, second):
        world.until_up(process)
    runs = json.loads(world.run("--json", command="status", config=False)[1])["runs"]
    logs = [server["log"] for run in runs for server in run["servers"]]
    assert len(set(logs)) == len(logs) == 4
    assert all(Path(log).is_file() for log in logs)
    for process in (first, second):
        process.send_signal(signal.SIGINT)
    for process in (first, second):
        process.communicate(timeout=60)
    assert left(world.folder) == []


def test_server_that_dies_ends_the_job(world, job):
    process = world.start("run", "+config_paths=[run.yaml]", *job, "++agent.responses_api_agents.tiny_agent.seconds=60")
    servers = []
    end = time.monotonic() + 120
    while not servers or any(server["state"] != "ready" for server in servers):
        assert time.monotonic() < end
        runs = json.loads(world.run("--json", command="status", config=False)[1])["runs"]
        servers = runs[0]["servers"] if runs else []
    keeper = next(server["pid"] for server in servers if server["name"] == "env")
    (child,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "env: was ended by SIGKILL" in out
    assert left(world.folder) == []


def test_collect_on_servers_that_are_up(world, job):
    process = world.start("run", "+config_paths=[run.yaml]", "~job")
    world.until_up(process)
    args = ["+agent_name=agent", "+input_jsonl_fpath=rows.jsonl", f"+output_jsonl_fpath={world.folder}/c/r.jsonl"]
    code, out, err = world.run(*args, "+num_repeats=2", command="collect_rollouts", config=False)
    assert (code, err) == (0, "")
    assert "8 of 8" in out
    assert (world.folder / "c/r.jsonl").read_text() == (world.folder / "c/r/rollouts.jsonl").read_text()
    args[0] = "+agent_name=agnet"
    code, _, err = world.run(*args, "+overwrite=true", command="collect_rollouts", config=False)
    assert code == 2
    assert "has no agent 'agnet'; did you mean 'agent'?" in err
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    code, _, err = world.run(*args, "+overwrite=true", command="collect_rollouts", config=False)
    assert (code, err) == (1, "nothing is running: start the servers with ng_run in another shell\n")
