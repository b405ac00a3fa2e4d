"""How long servers without an engine take to be up, and what of it is imports: `python -m benchmarks.startup`.

First what each entrypoint's imports take by themselves, in seconds of CPU (which other work on the machine does not
change much) and by the clock; then all of them started together by `ng_run`, as it says when each is ready.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVERS = (
    "responses_api_models/vllm_model",
    "responses_api_models/openai_model",
    "responses_api_agents/simple_agent",
    "responses_api_agents/codex_agent",
    "resources_servers/mcqa",
    "resources_servers/math_equivalence",
    "resources_servers/example_weather_and_sums",
)
TIMES = 3
_IMPORTS = "import runpy, sys; sys.path[:0] = [{root!r}, {folder!r}]; runpy.run_path({app!r}, run_name='imported')"
_READY = re.compile(r"^(\S+)  ready after ([\d.]+) s", re.M)
CONFIG = """\
policy_model:
  responses_api_models: {vllm_model: {entrypoint: app.py, base_url: "http://127.0.0.1:9/v1", api_key: none, model: m}}
other_model:
  responses_api_models: {openai_model: {entrypoint: app.py, base_url: "http://127.0.0.1:9/v1", api_key: none, model: m}}
mcqa:
  resources_servers: {mcqa: {entrypoint: app.py, domain: knowledge}}
weather:
  resources_servers: {example_weather_and_sums: {entrypoint: app.py, domain: agent}}
agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: mcqa}
      model_server: {type: responses_api_models, name: policy_model}
"""


def spent(command: list[str]) -> tuple[float, float]:
    """CPU seconds and seconds of a process; the best of some."""
    best = (float("inf"), float("inf"))
    for _ in range(TIMES):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, (cpu, time.perf_counter() - began))
    return best


def imports() -> None:
    cpu, seconds = spent([sys.executable, "-c", "pass"])
    print(f"{'imports of':44} {'CPU s':>6} {'s':>6}\n{'Python itself':44} {cpu:6.2f} {seconds:6.2f}")
    for server in SERVERS:
        app = ROOT / server / "app.py"
        code = _IMPORTS.format(root=str(ROOT), folder=str(app.parent), app=str(app))
        cpu, seconds = spent([sys.executable, "-c", code])
        print(f"{server:44} {cpu:6.2f} {seconds:6.2f}")


def together() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.yaml").write_text(CONFIG)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "NEMO_GYM_RUNTIME_DIR": f"{folder}/runtime"}
        command = [sys.executable, "-m", "nemo_gym.cli.main", "run", "+config_paths=[run.yaml]"]
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        up = time.perf_counter() - began
        process.terminate()
        process.communicate(timeout=60)
    print(f"\n{'all together, ready after':44} {'s':>6}")
    for name, seconds in _READY.findall(said):
        print(f"{name:44} {float(seconds):6.1f}")
    print(f"{'the command itself, from its start':44} {up:6.1f}   load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    imports()
    together()
