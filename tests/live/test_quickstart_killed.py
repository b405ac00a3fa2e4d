"""`ng_run` with a real engine, killed at any moment and interrupted: nothing is left, and a resumed run completes."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from nemo_gym.capture import CaptureStore
from tests.project import ROOT, World, alive, command_of, left

pytestmark = [pytest.mark.live, pytest.mark.ci]

SECONDS = 600


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "project")
    yield made
    made.end()


def start(world, output, *args):
    command = [sys.executable, "-m", "nemo_gym.cli.main", "run", "+config_paths=[configs/quickstart.yaml]"]
    command += [f"++job.output={output}", *args]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=world.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def family(process):
    return psutil.Process(process.pid).children(recursive=True)


def kill_and_see(world, process):
    """Kill it, and wait until its last process is gone."""
    tree = family(process)
    process.kill()
    process.wait()
    began = time.monotonic()
    while any(alive(one) for one in tree) or left(world.folder):
        assert time.monotonic() - began < 30, left(world.folder)
        time.sleep(0.05)


def lines(path):
    return path.read_text().count("\n") if path.exists() else 0


def recorded(output):
    folder = output / "captures"
    return {record.call_id for record in CaptureStore(str(folder)).calls()} if folder.exists() else set()


def until(condition, process):
    end = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.stdout.read().decode()
        assert time.monotonic() < end
        time.sleep(0.05)


def commanded(process):
    return " ".join(command_of(one) for one in family(process))


def interrupt_and_see(world, process):
    """Ctrl-C, which a terminal sends to the whole of the group in front."""
    tree = family(process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert not [one for one in tree if alive(one)]
    assert left(world.folder) == []


def test_killed_five_times_interrupted_twice_and_resumed(world, tmp_path):
    output = tmp_path / "out"
    journal = output / "rollouts.jsonl"
    moments = [
        (kill_and_see, lambda p: time.sleep(2) or True),
        (kill_and_see, lambda p: "gcs_server" in commanded(p)),  # Ray is starting
        (kill_and_see, lambda p: "engines.preloaded" in commanded(p)),  # vLLM is imported
        (kill_and_see, lambda p: "VLLM::EngineCore" in commanded(p)),  # the engine is being built
        (interrupt_and_see, lambda p: "VLLM::EngineCore" in commanded(p)),
        (interrupt_and_see, lambda p: lines(journal) >= 20),
        (kill_and_see, lambda p: lines(journal) >= 90),
    ]
    kept = set()
    for end, moment in moments:
        process = start(world, output, "++job.resume=true", "++job.concurrency=8")
        until(lambda moment=moment, process=process: moment(process), process)
        end(world, process)
        kept |= recorded(output)
        print(f"{end.__name__}: {lines(journal)} rollouts done")
    done = {json.loads(line)["_ng_rollout_id"] for line in journal.read_text().splitlines()[:80]}
    process = start(world, output, "++job.resume=true")
    said = process.communicate(timeout=SECONDS)[0].decode()
    assert process.returncode == 0, said
    assert "192 of 192" in said
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows}) == len(rows) == 192
    assert done <= {row["_ng_rollout_id"] for row in rows}
    assert kept <= recorded(output)
    assert len(kept) > 90
    verify = [sys.executable, "-m", "nemo_gym.cli.main", "captures", "verify", str(output / "captures")]
    verified = subprocess.run(verify, cwd=ROOT, capture_output=True, text=True, check=False)
    print(verified.stdout, verified.stderr)
    assert verified.returncode == 0
    assert left(world.folder) == []
