"""A vLLM started by hand on the embedded model, for tests: its own API server on loopback, ended with the block."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

MODEL = Path(__file__).parents[2] / "models" / "tiny_policy"
_START_S = 400


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[str]:
    """Its base URL, without `/v1`. `arguments` are vLLM's own; what it logs lies in `folder`.

    One that is up already, with these arguments, is taken from the variable NEMO_GYM_TEST_VLLM: its start takes longer
    than most tests.
    """
    if up := os.environ.get("NEMO_GYM_TEST_VLLM"):
        yield up
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "vllm.log"
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--model", str(MODEL), "--served-model-name", "tiny-policy", "--enforce-eager", "--dtype", "float32"]
    env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env["TORCHDYNAMO_DISABLE"] = "1"  # else the first log-probs are compiled for minutes
    with log.open("wb") as out:
        process = subprocess.Popen([*argv, *arguments], stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + _START_S
        while not _answers(url):
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < until, "vLLM did not start"
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=30).status_code == 200
    except httpx.TransportError:
        return False
