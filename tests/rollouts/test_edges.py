"""Jobs at the edges: data that is garbage, huge or nothing, disks that are full, names of any alphabet, two at once."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.responses import JSONResponse

from nemo_gym.rollouts.job import preflight
from nemo_gym.rollouts.journal import Journal, JournalError, read
from nemo_gym.rollouts.manifest import Lock
from nemo_gym.rollouts.outcome import Outcome, Ticket
from tests import disks
from tests.rollouts.test_job import Bench
from tests.rollouts.test_job import bench as bench


def outcome(task, repeat=0, agent="agent", **more):
    ticket = Ticket(task, repeat, f"run-{task}-{repeat}-{agent}", agent, {"responses_create_params": {"input": "hi"}})
    return Outcome(ticket, 0.0, 1.0, {"reward": 1.0} | more)


# ---- data


async def test_a_first_row_of_garbage_costs_one_row(bench: Bench):
    job = bench.job(['{"responses_create_params":', {}, {}])
    assert preflight(job) == []
    result = await bench.run(['{"responses_create_params":', {}, {}])
    assert (result.exit_code, result.problem) == (0, None)
    assert bench.made() == [(1, 0), (2, 0)]
    (failure,) = bench.read("failures.jsonl")
    assert failure["kind"] == "row" and "rows.jsonl:1: not JSON" in failure["message"]


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_an_empty_dataset_is_told(tmp_path, content):
    bench = Bench(tmp_path, "http://127.0.0.1:1", None)
    (tmp_path / "rows.jsonl").write_text(content)
    (fault,) = preflight(bench.job())
    assert (fault.key, fault.message) == ("job.input", "expected rows of a dataset: it has no rows")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x81\xff\n" * 30,
        b"PAR1\x00\x15\x04" * 40,
        '{"responses_create_params": {"input": "hi"}}\n{}\n'.encode("utf-16"),
    ],
)
def test_a_file_of_another_kind_is_told(tmp_path, content):
    bench = Bench(tmp_path, "http://127.0.0.1:1", None)
    (tmp_path / "rows.jsonl").write_bytes(content)
    (fault,) = preflight(bench.job())
    assert fault.key == "job.input" and "rows.jsonl:1: not JSON" in fault.message


def test_a_mark_of_byte_order_is_no_part_of_a_row(tmp_path):
    bench = Bench(tmp_path, "http://127.0.0.1:1", None)
    (tmp_path / "rows.jsonl").write_text('{"responses_create_params": {"input": "hi"}}\n', encoding="utf-8-sig")
    assert preflight(bench.job()) == []


@pytest.mark.parametrize(
    ("key", "number"), [("repeats", 10**20), ("repeats", {"agent": 10**20}), ("limit", 10**20), ("limit", 0)]
)
def test_a_number_that_no_manifest_could_hold_is_refused(bench: Bench, key, number):
    with pytest.raises(ValueError, match=f"{key}\n"):
        bench.job([{}], **{key: number})


@pytest.mark.parametrize("repeats", [0, -1, {"agent": 0}])
def test_no_repeats_are_refused(bench: Bench, repeats):
    with pytest.raises(ValueError, match=r"repeats\n.*expected at least 1, got"):
        bench.job([{}], repeats=repeats)


@pytest.mark.nightly
async def test_a_row_of_fifty_megabytes_is_a_row(bench: Bench):
    long = "x" * 50_000_000
    result = await bench.run([{"long": long}, {}], rollout_timeout_s=300)
    assert (result.exit_code, result.problem) == (0, None)
    assert bench.made() == [(0, 0), (1, 0)]
    sizes = sorted(len(row.get("long", "")) for row in read(bench.output / "rollouts.jsonl"))
    assert sizes == [0, 50_000_000]
    assert (await bench.run(resume=True, rollout_timeout_s=300)).summary.rollouts == 2


async def test_names_of_any_alphabet(bench: Bench):
    bench.folder = bench.folder / "Größe 数据 ☃ [1]"
    bench.folder.mkdir()
    bench.output = bench.folder / "výsledky"
    result = await bench.run([{"task_id": "Straße"}, {}])
    assert (result.exit_code, result.problem) == (0, None)
    assert bench.made() == [(0, 0), (1, 0)]
    assert (await bench.run(resume=True)).exit_code == 0
    written = json.loads((bench.output / "manifest.json").read_text())
    assert written["input"].endswith("Größe 数据 ☃ [1]/rows.jsonl") and written["starts"] == 2


def test_a_name_that_is_no_text_is_told(tmp_path):
    bench = Bench(tmp_path, "http://127.0.0.1:1", None)
    bench.job([{}])
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    found = preflight(bench.job(input=strange, output=strange + "out"))
    assert [(fault.key, "expected a path in UTF-8" in fault.message) for fault in found] == [
        ("job.input", True),
        ("job.output", True),
    ]


# ---- two at once


def test_an_output_that_another_job_writes_is_a_fault_before_anything_starts(tmp_path):
    bench = Bench(tmp_path, "http://127.0.0.1:1", None)
    job = bench.job([{}])
    assert preflight(job) == []
    lock = Lock(bench.output)
    try:
        (fault,) = preflight(job)
        assert fault.key == "job.output"
        assert fault.message == f"{bench.output}: another job (process {os.getpid()}) is writing there"
    finally:
        lock.release()
    assert preflight(job) == []


# ---- agents that share the numbers of tasks


def test_two_agents_under_one_number_are_two_rollouts(tmp_path):
    journal = Journal(tmp_path)
    journal.add(outcome(0, agent="one"))
    journal.add(outcome(0, agent="two"))
    with pytest.raises(JournalError, match="task 0, repeat 0 of two is there twice"):
        journal.add(outcome(0, agent="two"))
    journal.close()
    (tmp_path / "rollouts.jsonl").write_bytes(b"".join((tmp_path / "rollouts.jsonl").open("rb").readlines()[:2]))
    again = Journal(tmp_path)
    assert (0, 0, "one") in again.done and (0, 0, "two") in again.done
    assert (0, 0, "three") not in again.done and (0, 1, "one") not in again.done
    again.close()


def test_a_journal_that_does_not_say_who_played_counts_for_whoever_is_asked(tmp_path):
    (tmp_path / "rollouts.jsonl").write_text('{"_ng_task_index": 3, "_ng_rollout_index": 1, "reward": 0.5}\n')
    journal = Journal(tmp_path)
    assert (3, 1, "agent") in journal.done and (3, 0, "agent") not in journal.done
    assert [entry.reward for entry in journal.entries] == [0.5]
    journal.close()


async def test_another_agent_is_made_beside_the_one_that_was(bench: Bench):
    bench.servers["other"] = bench.url
    await bench.run([{}, {}], repeats=2)
    result = await bench.run(resume=True, repeats=2, agent="other", accept_changes=True)
    assert (result.exit_code, result.problem) == (0, None)
    made = sorted((row["agent_ref"]["name"], *key) for row in bench.read("rollouts.jsonl") for key in [_key(row)])
    assert made == [(agent, task, repeat) for agent in ("agent", "other") for task in (0, 1) for repeat in (0, 1)]
    bench.fake.runs.clear()
    assert (await bench.run(resume=True, repeats=2, agent="other")).exit_code == 0
    assert bench.fake.runs == []


def _key(row):
    return row["_ng_task_index"], row["_ng_rollout_index"]


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    with disks.small_disk(tmp_path / "small", "256k") as where:
        yield where


async def test_a_full_disk_ends_the_job_with_words_and_it_goes_on_from_there(bench: Bench, small_disk: Path):
    bench.output = small_disk / "out"
    rows = [{"pad": "x" * 9000}] * 40
    result = await bench.run(rows)
    assert result.exit_code == 1
    assert "No space left on device" in result.problem and str(bench.output) in result.problem
    there = bench.made()  # no line is torn, and none is in the middle of another
    assert 0 < len(there) < 40
    again = await bench.run(resume=True)
    assert again.exit_code == 1 and "No space left on device" in again.problem
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)  # noqa: ASYNC221
    result = await bench.run(resume=True)
    assert (result.exit_code, result.problem) == (0, None)
    assert bench.made() == [(task, 0) for task in range(40)]
    assert json.loads((bench.output / "metrics.json").read_text())["rollouts"] == 40


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="a limit of a file's size")
def test_a_line_that_was_half_written_is_taken_back(tmp_path):
    """Of a write that got half through, nothing stays: the next line is a line."""
    program = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from nemo_gym.rollouts.journal import Journal, JournalError
from tests.rollouts.test_edges import outcome
journal = Journal(Path({str(tmp_path)!r}))
journal.add(outcome(0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    journal.add(outcome(1, text="x" * 5000))
except JournalError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.add(outcome(2))
journal.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert "rollouts.jsonl cannot be written: File too large" in done.stdout
    assert [row["_ng_task_index"] for row in read(tmp_path / "rollouts.jsonl")] == [0, 2]


# ---- servers that answer anything


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ('{"reward": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "agent", "not JSON"),
        ('{"reward": 1, "x": ' + "[" * 700 + "]" * 700 + "}", "agent", "cannot be written down: it is nested too"),
        ('{"reward": ' + HUGE + "}", "verifier", "not a finite number"),
        ('{"reward": 1e308}', "verifier", "not a finite number"),
        ('{"reward": -1e999}', "verifier", "not a finite number"),
        ('{"reward": "1"}', "verifier", "not a finite number"),
        ('{"_ng_failure_class": {"a": 1}, "reward": 0}', "verifier", "no reason given"),
    ],
)
async def test_an_answer_of_any_kind_costs_one_rollout(bench: Bench, answer, kind, words):
    result = await bench.run([{}, {"wish": "say", "say": answer}, {}], retries={})
    assert (result.exit_code, bench.made()) == (0, [(0, 0), (2, 0)])
    (failure,) = bench.read("failures.jsonl")
    assert failure["kind"] == kind and words in failure["message"]


async def test_what_is_odd_in_an_answer_is_kept_as_it_is_and_the_job_goes_on_from_it(bench: Bench):
    response = '{"usage": {"input_tokens": ' + HUGE + ', "output_tokens": -1}, "model": {}, "output": 5}'
    long = "123456789012345678901234567890"
    answer = '{"reward": 1, "long": ' + long + ', "half": "\\ud800", "response": ' + response + "}"
    result = await bench.run([{"wish": "say", "say": answer}, {}], limits={"rollouts": 1})
    assert (result.exit_code, bench.made()) == (0, [(0, 0)])
    assert (await bench.run(resume=True)).exit_code == 0
    odd, _ = bench.read("rollouts.jsonl")
    assert (str(odd["long"]), odd["half"]) == (long, "\ud800")
    assert json.loads((bench.output / "metrics.json").read_text())["prompt_tokens"] == 100


@pytest.mark.parametrize("seal", [{"call_ids": [], "incomplete": {"a": 1}}, [1], "x", {"call_ids": 5}, {}])
async def test_a_seal_of_any_kind_leaves_the_record_unsealed(bench: Bench, seal):
    bench.fake.sealing = JSONResponse(seal)
    await bench.run([{}, {}])
    assert [row["_ng_rollout"]["incomplete"] for row in bench.read("rollouts.jsonl")] == ["unsealed"] * 2


# ---- a dataset that changes under the job


CHANGES = {
    "cut": lambda path: path.write_bytes(b""),
    "written anew": lambda path: path.write_bytes(path.read_bytes().replace(b"hi", b"ho")),
    "gone": lambda path: path.unlink(),
    "copied": lambda path: shutil.copyfile(path, path.with_name("other")) and path.with_name("other").replace(path),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_dataset_that_changes_during_the_job_is_told_unless_its_rows_are_the_same(bench: Bench, change):
    bench.fake.delay = 0.02
    path = Path(bench.job([{}] * 40).input)

    async def changed():
        while len(bench.fake.runs) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        CHANGES[change](path)

    result, _ = await asyncio.gather(bench.run(), changed())
    finished = json.loads((bench.output / "manifest.json").read_text())["finished"]
    if change == "copied":
        assert (result.exit_code, result.problem) == (0, None) and finished
    else:
        words = f"{path} changed while the job ran, so some rollouts may be of other rows"
        assert (result.exit_code, result.problem, finished) == (1, words, None)


async def test_lines_as_other_systems_write_them(bench: Bench):
    """A byte order mark, carriage returns, the same row again, bytes that are no text, no end of the last line."""
    row = b'{"responses_create_params": {"input": "hi"}}'
    (bench.folder / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([row, row, b"", b"\xff\xfe", row]))
    result = await bench.run()
    assert (result.exit_code, bench.made()) == (0, [(0, 0), (1, 0), (3, 0)])
    (failure,) = bench.read("failures.jsonl")
    assert failure["kind"] == "row" and "rows.jsonl:4: not JSON" in failure["message"]


async def test_a_job_goes_on_with_another_concurrency(bench: Bench):
    await bench.run([{}] * 4, limits={"rollouts": 2})
    assert (await bench.run(resume=True, concurrency=9)).exit_code == 0
    assert bench.made() == [(task, 0) for task in range(4)]
