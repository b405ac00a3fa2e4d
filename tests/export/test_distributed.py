"""An export in portions gives what one pass gives: the same rows in the same files, the same account."""

import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext

import msgspec
import psutil
import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.cli.export import main
from nemo_gym.export import on_ray, portions
from nemo_gym.export.exporter import FORMATS, Options, export
from tests.export.made import Job, record, two_turns
from tests.project import ROOT

WRITERS = ("policy_model", "judge", "policy_model_again")


def a_run(folder, seed, rollouts=40):
    """Rollouts under way together at several servers, some with a part missing, calls of none among them."""
    draw, job = random.Random(seed), Job(folder)
    under_way = []
    for number in range(rollouts):
        name = f"r-{number}"
        said = draw.choice(["It is sunny.", "It is night.", "It may rain."])
        calls = [*two_turns(name, said, draw.choice(["Prague", "Rome"]))]
        calls += [record(name, [1, 2, 9], [7] * draw.randint(1, 3)) for _ in range(draw.randint(0, 2))]
        kept = calls[: draw.choice([len(calls)] * 5 + [1])]
        incomplete = draw.choice([None] * 6 + ["deadline"])
        if draw.random() < 0.9:
            job.rollout(
                name, reward=draw.choice([0.0, 0.5, 1.0]), task=number // 4, calls=len(calls), incomplete=incomplete
            )
        steps = [(draw.choice(WRITERS[:2]), call) for call in kept]
        under_way.append([*steps, *((writer, name) for writer in {writer for writer, _ in steps})])
    job.steps = []
    while under_way:
        steps = draw.choice(under_way[:6])
        job.steps.append(steps.pop(0))
        if draw.random() < 0.1:
            job.record(record(None, [1], [2]), writer=draw.choice(WRITERS))
        under_way = [one for one in under_way if one]
    # A server that was started anew: what comes late in the run is another process's.
    half = len(job.steps) // 2
    job.steps[half:] = [(WRITERS[2] if name == WRITERS[0] else name, one) for name, one in job.steps[half:]]
    job.write()
    return job


def files(folder, formats, options, **how):
    """The digests of the files, and all that the summary says beside where they are."""
    summary = export(folder, formats, options=options, **how)
    said = msgspec.to_builtins(summary)
    for one in said["formats"].values():
        del one["folder"]
    assert any(one["rows"] for one in said["formats"].values())
    return said


@pytest.fixture
def in_this_process(monkeypatch):
    """The portions are made here, one after the other."""
    monkeypatch.setattr(on_ray, "connected", lambda address: nullcontext())
    monkeypatch.setattr(on_ray, "over", lambda function, items: map(function, items))
    monkeypatch.setattr(portions, "_ROWS", 16)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(branches="calls", dedupe=True, include=frozenset({"incomplete", "calls_missing"}), rows_per_file=5),
        Options(advantage="rloo", max_staleness=1, splits=(("train", 0.7), ("test", 0.3)), sample=12),
    ],
    ids=["plain", "calls", "splits"],
)
def test_portions_give_what_one_pass_gives(tmp_path, in_this_process, seed, options):
    job = a_run(tmp_path, seed)
    assert len(CaptureStore(job.folder / "captures").paths()) > 2
    formats = sorted(FORMATS)
    assert files(job.folder, formats, options, ray="auto") == files(job.folder, formats, options)


def test_captures_without_a_job_too(tmp_path, in_this_process):
    job = a_run(tmp_path, 5)
    (job.folder / "rollouts.jsonl").unlink()
    formats = ["token_rows", "sft", "openai", "atif"]
    assert files(job.folder, formats, Options(), ray="auto") == files(job.folder, formats, Options())


def test_portions_are_small_and_disjoint(tmp_path, in_this_process, monkeypatch):
    job = a_run(tmp_path, 6)
    made = []
    taken = portions.packed
    monkeypatch.setattr(
        "nemo_gym.export.distributed.packed",
        lambda store, one, *more, **how: made.append(one) or taken(store, one, *more, **how),
    )
    files(job.folder, ["token_rows"], Options(), ray="auto")
    names = [entry.rollout_id for one in made for entry in one.entries]
    assert len(made) > 3 and len(set(names)) == len(names) == 40
    assert max(sum(entry.rows for entry in one.entries) for one in made) < 16 + 8
    own = [shard for one in made for shard in one.own]
    assert sorted(own) == sorted(map(str, CaptureStore(job.folder / "captures").paths()))


@pytest.mark.ci
@pytest.mark.live
def test_on_a_real_ray(tmp_path):
    pytest.importorskip("ray.data")
    job = a_run(tmp_path, 7, rollouts=80)
    for name, more in (("ray", ["--ray", "local"]), ("here", [])):
        command = [sys.executable, "-m", "nemo_gym.cli.export", str(job.folder), "-f", "token_rows", "-f", "sft"]
        ended = subprocess.run(
            [*command, "--to", f"{tmp_path}/{name}", *more], cwd=ROOT, capture_output=True, text=True, timeout=600
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    found = [msgspec.json.decode((tmp_path / name / "manifest.json").read_bytes()) for name in ("ray", "here")]
    assert found[0] == found[1]
    assert found[0]["formats"]["token_rows"]["rows"] > 40


def name(process):
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.ci
@pytest.mark.live
@pytest.mark.parametrize("moment", [("gcs_server", "raylet"), ("ray::_Stats", "ray::Map")], ids=["start", "work"])
def test_sigterm_ends_an_export_on_a_ray_of_its_own_in_order(tmp_path, moment):
    pytest.importorskip("ray.data")
    job = a_run(tmp_path, 8)
    command = [sys.executable, "-m", "nemo_gym.cli.export", str(job.folder), "--to", f"{tmp_path}/to", "--ray", "local"]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until, below = time.monotonic() + 120, []
    while not any(one.startswith(moment) for one in map(name, below)):
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.02)
        below = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGTERM)
    told, _ = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM, told
    assert "SIGTERM" not in told
    assert psutil.wait_procs(below, timeout=20)[1] == []
    assert [one.name for one in (tmp_path / "to").iterdir()] == [".lock"]


def test_captures_that_several_jobs_share(tmp_path, in_this_process):
    """What another job has made is none of this one's, however it is read."""
    job = Job(tmp_path)
    for number in range(4):
        job.rollout(f"r-{number}", *two_turns(f"r-{number}"), task=number)
    job.record(record(None, [1], [2]), *two_turns("other"))
    job.seal("other")
    job.write()
    whole = files(job.folder, ["token_rows"], Options())
    assert whole["left_out"] == {"no_result": 1} and whole["calls"] == {"no_result": 2, "no_rollout": 1}
    own = files(job.folder, ["token_rows"], Options(shared=True))
    assert own["formats"] == whole["formats"] and own["left_out"] == {} and own["calls"] == {}
    assert own["captured"] == whole["captured"] - sum(whole["discarded"].values())
    assert files(job.folder, ["token_rows"], Options(shared=True), ray="auto") == own


def test_a_ray_that_is_not_there_is_told_at_once(tmp_path, capsys):
    job = Job(tmp_path)
    job.rollout("r-0", record("r-0", [1], [2]))
    job.write()
    with socket.socket() as kept:  # bound, and nobody listens
        kept.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{kept.getsockname()[1]}"
        assert main([str(job.folder), "--ray", address]) == 2
    assert capsys.readouterr().err == f"ng_export: ray: there is no Ray at {address}: Connection refused\n"
