"""A job that is killed at random, the job itself, one of its servers, or both, and resumed each time.

python -m tests.rollouts.kills 100        # so many kills, then the last resume; prints what came of it
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

from nemo_gym.capture import CaptureStore
from tests.project import ROOT, command_of, left
from tests.scripted import Answer, Request, chat_reply, scripted

TASKS, REPEATS = 40, 5
LONG_S = 300
AT_START = 0.25
"""So often the kill comes while the servers are starting."""


class Killed(Struct):
    """What a campaign came to."""

    kills: Counter[str]
    exit_code: int
    said: str
    made: list[tuple[int, int]]
    ids: list[str]
    recorded: set[str]
    """Rollouts that have a call in the captures."""
    starts: int


def answers(request: Request) -> Answer:
    if not request.asks:
        return Answer({"object": "list", "data": [{"id": "scripted-model", "object": "model"}]})
    return Answer(chat_reply("I say \\boxed{B}."), delay=0.02)


class Campaign:
    def __init__(self, folder: Path, url: str, seed: int) -> None:
        self.folder = folder
        self.output = folder / "out"
        self.journal = self.output / "rollouts.jsonl"
        self.draw = random.Random(seed)
        self.kills: Counter[str] = Counter()
        rows = folder / "rows.jsonl"
        options = [{letter: str(number)} for number, letter in enumerate("ABCD")]
        with rows.open("w") as file:
            for number in range(TASKS):
                row = {"responses_create_params": {"input": f"Question {number}?"}, "options": options}
                file.write(json.dumps(row | {"expected_answer": "B" if number % 2 else "A"}) + "\n")
        self.command = [
            sys.executable, "-m", "nemo_gym.cli.main", "run",
            "+config_paths=[responses_api_models/vllm_model/configs/vllm_model.yaml,"
            "resources_servers/mcqa/configs/mcqa.yaml]",
            f"++policy_base_url={url}", "++policy_model_name=scripted-model", "++policy_api_key=none",
            "++policy_model.responses_api_models.vllm_model.return_token_ids=false",
            f"++job={{agent: mcqa_simple_agent, input: '{rows}', output: '{self.output}', "
            f"repeats: {REPEATS}, concurrency: 6, resume: true}}",
        ]  # fmt: skip
        self.environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "",  # else each start compiles anew
            "PYTHONPATH": str(ROOT),
            "NG_TEST_TREE": str(folder),
            "NEMO_GYM_RUNTIME_DIR": str(folder / "runtime"),
        }

    def lines(self) -> int:
        with contextlib.suppress(OSError):
            return self.journal.read_bytes().count(b"\n")
        return 0

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "said").open("wb") as said:
            return subprocess.Popen(self.command, cwd=ROOT, env=self.environment, stdout=said, stderr=said)

    async def kill_once(self) -> None:
        """Starts the job, kills something of it, and returns when nothing of it is left."""
        before = self.lines()
        process = self.start()
        aim = before + self.draw.randint(0, 3)
        early = time.monotonic() + self.draw.uniform(0, 5) if self.draw.random() < AT_START else None
        until = time.monotonic() + LONG_S
        while process.poll() is None and time.monotonic() < until:
            if (early is not None and time.monotonic() > early) or (early is None and self.lines() > aim):
                break
            await asyncio.sleep(0.01)
        what = self.draw.choice(["job", "server", "both"])
        servers = self._servers(process)
        if what != "job" and not servers:
            what = "job"  # none has started yet
        if process.poll() is None:
            self.kills[what] += 1
            for pid in ([self.draw.choice(servers)] if what != "job" else []) + (
                [process.pid] if what != "server" else []
            ):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait, LONG_S)
        await self._gone()

    def _servers(self, process: subprocess.Popen[bytes]) -> list[int]:
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(process.pid).children(recursive=True)
            return [one.pid for one in found if command_of(one).endswith("app.py") and "keeper" not in command_of(one)]
        return []

    async def _gone(self) -> None:
        until = time.monotonic() + LONG_S
        while left(self.folder):
            assert time.monotonic() < until, left(self.folder)
            await asyncio.sleep(0.05)

    async def finished(self) -> Killed:
        """The last resume, to the end."""
        process = self.start()
        code = await asyncio.to_thread(process.wait, LONG_S)
        rows: list[dict[str, Any]] = [json.loads(line) for line in self.journal.read_text().splitlines()]
        calls = CaptureStore(str(self.output / "captures")).calls()
        return Killed(
            kills=self.kills,
            exit_code=code,
            said=(self.folder / "said").read_text(),
            made=sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows),
            ids=[row["_ng_rollout_id"] for row in rows],
            recorded={call.rollout_id for call in calls if call.rollout_id},
            starts=json.loads((self.output / "manifest.json").read_text())["starts"],
        )

    def end(self) -> None:
        for pid in left(self.folder):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


async def campaign(folder: Path, kills: int, seconds: float = float("inf"), seed: int = 1) -> Killed:
    """So many kills, or as many as fit in the time, each followed by a resume; the last one runs to the end."""
    async with scripted(answers) as backend:
        one = Campaign(folder, backend.url, seed)
        until = time.monotonic() + seconds
        try:
            while one.kills.total() < kills and time.monotonic() < until and one.lines() < TASKS * REPEATS - 20:
                await one.kill_once()
                backend.requests.clear()
            return await one.finished()
        finally:
            one.end()


def check(found: Killed) -> None:
    """Exactly the rollouts asked for, none twice, each with its calls."""
    assert found.exit_code == 0, found.said
    assert found.made == [(task, repeat) for task in range(TASKS) for repeat in range(REPEATS)]
    assert len(set(found.ids)) == len(found.ids)
    assert set(found.ids) <= found.recorded


def main() -> None:
    kills, made = int(sys.argv[1]), Counter[str]()
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    while made.total() < kills:
        with tempfile.TemporaryDirectory(prefix="ng-kills-") as folder:
            found = asyncio.run(campaign(Path(folder), kills - made.total(), seed=seed))
        check(found)
        made += found.kills
        seed += 1
        print(
            f"{made.total()} kills {dict(made)}, {found.starts} starts of the last job, all its rollouts there",
            flush=True,
        )


if __name__ == "__main__":
    main()
