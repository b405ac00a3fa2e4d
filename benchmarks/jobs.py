"""What a job costs: instant rollouts over real HTTP, through agent, model and resources servers, capture on.

    python -m benchmarks.jobs                     # 20,000 rollouts
    python -m benchmarks.jobs --rollouts 3000

`ng_run` runs the job as any; the model behind it answers at once, from a process of its own that is not counted. The
figures are CPU seconds and resident sets of every process of the run, read while it goes on. Asked for: 10 ms of CPU a
rollout over all of them, and no process grown by 50 MB after the first 2,000.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from benchmarks.server import Canned

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
SETTLED = 2000
"""Rollouts after which no process may grow much."""
CPU_MS, GROWTH, REPORT = 10.0, 50_000_000, 200_000_000
"""Of all processes, a rollout; of each, in bytes; of the one that writes the report, in all."""


class Process(Struct):
    """One process of the run: its CPU, and its resident set by rollouts done."""

    cpu_s: float = 0.0
    sizes: list[tuple[int, int]] = []

    @property
    def most(self) -> int:
        return max((size for _, size in self.sizes), default=0)

    def growth(self, settled: int) -> int:
        """Between the largest it was when it had settled and the largest it was after."""
        before = [size for done, size in self.sizes if done <= settled]
        after = [size for done, size in self.sizes if done > settled]
        return max(after, default=0) - max(before, default=0) if before and after else 0


class Figures(Struct):
    rollouts: int
    seconds: float
    processes: dict[str, Process]

    @property
    def cpu_ms(self) -> float:
        """Of all processes, a rollout."""
        return sum(process.cpu_s for process in self.processes.values()) / max(self.rollouts, 1) * 1000


# ---- the model behind the model server


REPLY = msgspec.json.encode(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "I say \\boxed{B}."}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 61, "completion_tokens": 7, "total_tokens": 68},
    }
)
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class Instant(Canned):
    def answered(self, head: bytes) -> bytes:
        body = REPLY if head.startswith(b"post") else b'{"object":"list","data":[{"id":"m","object":"model"}]}'
        return _OK % len(body) + body


def backend(fd: int) -> None:
    import uvloop

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Instant, sock=socket.socket(fileno=fd), backlog=1024)
        await server.serve_forever()

    uvloop.run(run())


@contextlib.contextmanager
def served() -> Iterator[str]:
    with socket.create_server((HOST, 0), backlog=1024) as sock:
        argv = [sys.executable, "-m", "benchmarks.jobs", "--backend", str(sock.fileno())]
        child = subprocess.Popen(argv, pass_fds=[sock.fileno()], cwd=ROOT)
        try:
            yield f"http://{HOST}:{sock.getsockname()[1]}/v1"
        finally:
            child.terminate()
            child.wait()


# ---- the job


def dataset(path: Path, rows: int) -> None:
    options = [{"A": "1653"}, {"B": "1643"}, {"C": "1590"}, {"D": "1674"}]
    with path.open("wb") as file:
        for number in range(rows):
            asked = (
                f"Question {number}: what is 53 times 31?\nA: 1653\nB: 1643\nC: 1590\nD: 1674\nGive \\boxed{{letter}}."
            )
            params = {"input": [{"role": "user", "content": asked}]}
            row = {"task_id": f"t{number}", "responses_create_params": params, "options": options}
            file.write(msgspec.json.encode(row | {"expected_answer": "B" if number % 2 else "A"}) + b"\n")


def arguments_of(folder: Path, url: str, repeats: int, concurrency: int) -> list[str]:
    return [
        "+config_paths=[responses_api_models/vllm_model/configs/vllm_model.yaml,resources_servers/mcqa/configs/mcqa.yaml]",
        f"++policy_base_url={url}",
        "++policy_model_name=m",
        "++policy_api_key=none",
        "++policy_model.responses_api_models.vllm_model.return_token_ids=false",
        f"++job={{agent: mcqa_simple_agent, input: '{folder}/rows.jsonl', output: '{folder}/out', "
        f"repeats: {repeats}, concurrency: {concurrency}}}",
    ]


def measured(rollouts: int, *, repeats: int = 4, concurrency: int = 32, env: dict[str, str] | None = None) -> Figures:
    """A job of so many rollouts, watched."""
    with tempfile.TemporaryDirectory(prefix="ng-jobs-") as name, served() as url:
        folder = Path(name)
        dataset(folder / "rows.jsonl", rollouts // repeats)
        told = {"PYTHONPATH": str(ROOT), "NEMO_GYM_RUNTIME_DIR": str(folder / "runtime")}
        (folder / "runtime").mkdir(mode=0o700)
        with (folder / "said").open("wb") as said:
            began = time.monotonic()
            child = subprocess.Popen(
                [sys.executable, "-m", "nemo_gym.cli.main", "run", *arguments_of(folder, url, repeats, concurrency)],
                cwd=ROOT,
                env=os.environ | told | (env or {}),
                stdout=said,
                stderr=said,
            )
            try:
                figures = _watched(child, folder / "out" / "rollouts.jsonl")
            finally:
                if child.poll() is None:
                    child.terminate()
                child.wait()
        figures.seconds = time.monotonic() - began
        if child.returncode != 0:
            raise RuntimeError((folder / "said").read_text())
        return figures


def _watched(child: subprocess.Popen[bytes], journal: Path) -> Figures:
    """Looks at every process twice a second, until the job is done."""
    figures = Figures(0, 0.0, {})
    root = psutil.Process(child.pid)
    place = 0
    while child.poll() is None:
        with contextlib.suppress(OSError), journal.open("rb") as file:
            file.seek(place)
            data = file.read()
            place += len(data)
            figures.rollouts += data.count(b"\n")
        with contextlib.suppress(psutil.Error):
            for process in (root, *root.children(recursive=True)):
                _look(process, figures, figures.rollouts)
        time.sleep(0.5)
    with contextlib.suppress(OSError), journal.open("rb") as file:
        file.seek(place)
        figures.rollouts += file.read().count(b"\n")
    return figures


def _look(process: psutil.Process, figures: Figures, done: int) -> None:
    with contextlib.suppress(psutil.Error):
        name = _name(process)
        if not name:  # it is ending, and was looked at under its name before
            return
        found = figures.processes.setdefault(name, Process())
        times = process.cpu_times()
        found.cpu_s = max(found.cpu_s, times.user + times.system)
        found.sizes.append((done, process.memory_info().rss))


def _name(process: psutil.Process) -> str:
    argv = process.cmdline()
    for word in argv:
        if word.endswith("keeper.py"):
            return "keeper of " + Path(argv[-1]).parent.name
        if word.endswith("app.py"):
            return Path(word).parent.name
    if "nemo_gym.viewer.apart" in argv:
        return "report"
    return "job" if "nemo_gym.cli.main" in argv else " ".join(argv[:3])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--backend", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.backend is not None:
        backend(arguments.backend)
        return
    figures = measured(arguments.rollouts, repeats=arguments.repeats, concurrency=arguments.concurrency)
    print(
        f"{figures.rollouts:,} rollouts in {figures.seconds:.1f} s, {figures.rollouts / figures.seconds:.0f} a second"
    )
    for name, process in sorted(figures.processes.items(), key=lambda pair: -pair[1].cpu_s):
        print(
            f"{name:32s} {process.cpu_s / max(figures.rollouts, 1) * 1000:7.3f} ms a rollout   "
            f"{process.most >> 20:5d} MiB at most   "
            f"{process.growth(SETTLED) / 1e6:+7.1f} MB after the first {SETTLED:,}"
        )
    print(f"{'all':32s} {figures.cpu_ms:7.3f} ms a rollout, asked for {CPU_MS:g}")


if __name__ == "__main__":
    main()
