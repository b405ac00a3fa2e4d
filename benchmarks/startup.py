"""How long servers without an engine take to be up, and what of it is imports: `python -m benchmarks.startup`.

First what each entrypoint's imports take by themselves, in seconds of CPU (which other work on the machine does not
change much) and by the clock; then some of them started together by `ng_run`, each anew and forked from one process
that has imported what they have in common: when each is ready, and what all of it costs.
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

import psutil
from msgspec import Struct

from benchmarks.jobs import served
from nemo_gym.launch.forkserver import SWITCH

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
_READY = re.compile(r"^(\S+) +ready after ([\d.]+) s", re.M)
CONFIG = """\
policy_model:
  responses_api_models: {vllm_model: {entrypoint: app.py, base_url: "URL", api_key: none, model: m}}
other_model:
  responses_api_models: {openai_model: {entrypoint: app.py, base_url: "URL", api_key: none, model: m}}
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


class Start(Struct):
    """One start of all: seconds to readiness by server, to that of the command, and what it cost by process."""

    ready: dict[str, float]
    up_s: float
    cpu_s: dict[str, float]


def started(url: str, forked: bool) -> Start:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.yaml").write_text(CONFIG.replace("URL", url))
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "NEMO_GYM_RUNTIME_DIR": f"{folder}/runtime",
            SWITCH: "1" if forked else "0",
        }
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
        root = psutil.Process(process.pid)
        cpu: dict[str, float] = {}
        for one in (root, *root.children(recursive=True)):
            times, name = one.cpu_times(), _name(one)
            cpu[name] = cpu.get(name, 0.0) + times.user + times.system
        process.terminate()
        process.communicate(timeout=600)
    return Start({name: float(seconds) for name, seconds in _READY.findall(said)}, up, cpu)


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    if any(word.endswith("keeper.py") for word in words):
        return "keepers"
    if any(word.endswith("preloaded.py") for word in words):
        return "the process to fork from"
    return next((Path(word).parent.name for word in words if word.endswith("app.py")), "ng_run")


def together() -> None:
    """Started anew and forked, in turns, so that what else the machine does burdens both; the better of each."""
    with served() as url:
        turns = [(started(url, forked=False), started(url, forked=True)) for _ in range(TIMES)]
    anew, forked = (min((turn[way] for turn in turns), key=lambda one: sum(one.cpu_s.values())) for way in (0, 1))
    print(f"\n{'all together, ready after (s)':44} {'anew':>6} {'forked':>6}")
    for name, seconds in anew.ready.items():
        print(f"{name:44} {seconds:6.1f} {forked.ready[name]:6.1f}")
    print(f"{'the command itself, from its start':44} {anew.up_s:6.1f} {forked.up_s:6.1f}")
    print(f"\n{'CPU s of':44} {'anew':>6} {'forked':>6}")
    for name in dict.fromkeys([*anew.cpu_s, *forked.cpu_s]):
        print(f"{name:44} {anew.cpu_s.get(name, 0.0):6.2f} {forked.cpu_s.get(name, 0.0):6.2f}")
    whole = [sum(one.cpu_s.values()) for one in (anew, forked)]
    print(f"{'all':44} {whole[0]:6.2f} {whole[1]:6.2f}   load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    imports()
    together()
