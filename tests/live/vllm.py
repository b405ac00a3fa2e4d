"""A vLLM started by hand on the embedded model, for tests: its own API server on loopback, ended with the block."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from nemo_gym.process import Child

MODEL = Path(__file__).parents[2] / "models" / "tiny_policy"
CONTEXT = 32768
"""Agents' prompts are long."""
PLAIN = (
    *("--max-model-len", str(CONTEXT), "--block-size", "32"),
    # Positions beyond those that the model was made for are told to go on.
    *("--hf-overrides", f'{{"max_position_embeddings": {CONTEXT}}}'),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
"""What suits every test that wants nothing particular: one start serves them all (`plain_vllm`)."""
_START_S = 600
_SERVER = """
import runpy
from nemo_gym.engines import forked
forked.begin()
runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
"""
"""vLLM's own; its processes are forked from one that imports vLLM meanwhile: each would import it anew."""


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
    argv = [sys.executable, "-c", _SERVER, "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--model", str(MODEL), "--served-model-name", "tiny-policy", "--enforce-eager", "--dtype", "float32"]
    env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env["TORCHDYNAMO_DISABLE"] = "1"  # else the first log-probs are compiled for minutes
    server = Child.start([*argv, *arguments], env=env, log_path=folder / "vllm.log")
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + _START_S
        while not _answers(url):
            assert server.poll() is None, server.last_words(60)
            assert time.monotonic() < until, f"vLLM did not start: {server.last_words(60)}"
            time.sleep(0.5)
        yield url
    finally:
        server.stop()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=30).status_code == 200
    except httpx.TransportError:
        return False
