"""A job killed with SIGKILL, again and again, and resumed, makes each rollout once."""

import asyncio
import json
import random
import signal
import sys
import time
import urllib.request

import pytest

from tests.rollouts import kills

ROWS, REPEATS = 25, 4


async def _start(script, *arguments):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", script, *map(str, arguments), stdout=asyncio.subprocess.PIPE
    )


def _written(journal):
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.fixture
async def url():
    process = await _start("tests.rollouts.fake_servers", 0.03)
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def test_kill_and_resume(url, tmp_path):
    dataset, output = tmp_path / "rows.jsonl", tmp_path / "out"
    dataset.write_text('{"responses_create_params": {"input": "hi"}, "rewards": [1, 0]}\n' * ROWS)
    journal = output / "rollouts.jsonl"
    draw = random.Random(1)

    async def start():
        return await _start("tests.rollouts.run_a_job", url, dataset, output, REPEATS, 4)

    for kill in range(3):
        process = await start()
        aim = (kill + 1) * 20 + draw.randint(0, 9)
        until = time.monotonic() + 30
        while time.monotonic() < until and _written(journal) < aim:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        if kill == 1:
            journal.write_bytes(journal.read_bytes()[:-7])  # the kill fell into a write
    process = await start()
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    made = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows]
    assert sorted(made) == [(task, repeat) for task in range(ROWS) for repeat in range(REPEATS)]
    assert json.loads((output / "manifest.json").read_text())["starts"] == 4
    with urllib.request.urlopen(f"{url}/seals") as answer:  # noqa: ASYNC210
        sealed = json.load(answer)
    assert {row["_ng_rollout_id"] for row in rows} <= sealed.keys()


@pytest.mark.ci
async def test_job_and_servers_killed_at_random(tmp_path):
    """With real servers: as many kills as fit into the time, each followed by a resume."""
    found = await kills.campaign(tmp_path, 100, seconds=20)
    kills.check(found)
    assert found.kills.total() >= 1


@pytest.mark.nightly
async def test_a_hundred_kills(tmp_path):
    made, seed = 0, 1
    while made < 100:
        (tmp_path / str(seed)).mkdir()
        found = await kills.campaign(tmp_path / str(seed), 100 - made, seed=seed)
        kills.check(found)
        made, seed = made + found.kills.total(), seed + 1
