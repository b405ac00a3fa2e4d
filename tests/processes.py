"""A model server as the launcher starts one: a process with a socket and its settings on standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from nemo_gym.web.service import LISTEN_FD, ServerContext

ROOT = Path(__file__).parents[1]
APP = ROOT / "responses_api_models" / "vllm_model" / "app.py"


class Process:
    def __init__(self, child: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.child = child
        self.url = url
        self.log = log

    @property
    def pid(self) -> int:
        return self.child.pid

    def children(self) -> list[int]:
        """Its processes, itself aside."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == self.pid:
                    found.append(int(entry.name))
        return sorted(found)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.child.send_signal(number)
        return self.child.wait(60)


@contextlib.asynccontextmanager
async def process(folder: Path, backend_url: str, *, run_id: str = "run1", **settings: Any) -> AsyncIterator[Process]:
    """A server in front of the scripted backend, ready."""
    capture = {"dir": str(folder / "captures"), "durability": "fsync"} | settings.pop("capture", {})
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        told = {"base_url": backend_url, "model": "scripted-model", "return_token_ids": False, "retries": 0}
        context = ServerContext(
            name="policy_model",
            kind="responses_api_models",
            implementation="vllm_model",
            settings=told | settings,
            run_id=run_id,
            admin_key="the-admin-key",
            capture=capture,
        )
        log = folder / "server.log"
        with log.open("ab") as out:
            child = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-u", str(APP)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                pass_fds=[sock.fileno()],
                env={**os.environ, LISTEN_FD: str(sock.fileno()), "PYTHONPATH": str(ROOT)},
            )
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(context))
    child.stdin.close()
    at = Process(child, url, log)
    try:
        await until_ready(at)
        yield at
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                await asyncio.to_thread(child.wait, 60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


async def until_ready(at: Process) -> None:
    async with httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        for _ in range(1200):
            if at.child.poll() is not None:
                raise AssertionError(at.log.read_text())
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get("/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.05)
    raise AssertionError(at.log.read_text())
