"""A forked server is what it is when it is started anew; what could not be so is not forked; nothing is left of any."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nemo_gym.launch import forkserver, ports, venv
from nemo_gym.launch.forkserver import ForkServer
from nemo_gym.launch.start import start
from tests import project
from tests.launch.family import FAMILY
from tests.project import lives

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers are forked on Linux")

SECONDS = 120.0
"""Until what must come about has: the machine may be busy."""

TELLS = """
from __future__ import annotations
import gc, json, os, pickle, signal, sys, threading

class Here:
    pass

OWN = ("NG_LISTEN_FD", "PYTEST_CURRENT_TEST")
caught = [number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)]
with open("/proc/self/cmdline") as command:
    shown = command.read()
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "name": __name__, "file": __file__, "cwd": os.getcwd(),
    "said": sys.stdin.read(),
    "same": type(pickle.loads(pickle.dumps(Here()))) is Here,
    "environ": dict(sorted((key, value) for key, value in os.environ.items() if key not in OWN)),
    "listens": os.path.exists(f"/proc/self/fd/{os.environ['NG_LISTEN_FD']}"),
    "descriptors": len(os.listdir("/proc/self/fd")),
    "handlers": {number.name: str(signal.getsignal(number)) for number in caught},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "gc": gc.isenabled(),
    "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
    "threads": len(os.listdir("/proc/self/task")),
    "main": threading.current_thread() is threading.main_thread(),
    "flags": list(sys.flags),
    "command": shown.replace("\\0", " ").strip(),
    "out": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.write_through, sys.stderr.errors],
}))
"""

SLEEPS = "import os, time\nprint('main', os.getpid(), flush=True)\ntime.sleep(300)\n"


@pytest.fixture(scope="module")
def forks():
    made = ForkServer()
    yield made
    made.close()


def app(folder: Path, source: str, name="tiny") -> Path:
    file = folder / "resources_servers" / name / "app.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    return file


async def forked(forks, file: Path, said=b""):
    forks._environment["PYTEST_CURRENT_TEST"] = os.environ["PYTEST_CURRENT_TEST"]  # it is another in every test
    with ports.bind("127.0.0.1", None) as sock:
        return await forks.start(file, venv.command(file), sock, said, file.with_suffix(".log"))


async def words(child, ended=True) -> str:
    """All that it has said, when it has ended or has said something."""
    async with asyncio.timeout(SECONDS):
        while child.poll() is None if ended else not child.last_words():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return child.last_words(1000)


async def until(condition):
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def anew(file: Path, said=b""):
    with ports.bind("127.0.0.1", None) as sock:
        return start(file, sock, said, os.environ, file.with_suffix(".anew.log"))


@pytest.mark.parametrize(
    "source",
    [
        TELLS,
        "import sys\nprint('so it goes')\nsys.exit('no more')\n",
        "import os\nos._exit(7)\n",
        "def inner():\n    raise KeyError('missing')\n\ninner()\n",
        "def broken(:\n",
        "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\n",
        "import atexit, sys\natexit.register(print, 'last')\nsys.excepthook = lambda *_: 0\nraise KeyboardInterrupt\n",
    ],
)
async def test_as_if_started_anew(forks, tmp_path, source):
    """What it finds, what it says and how it ends."""
    file = app(tmp_path, source)
    first, second = await forked(forks, file, b"a document"), anew(file, b"a document")
    said = [await words(first), await words(second)]
    if source is TELLS:
        found, expected = map(json.loads, said)
        assert found == expected
        assert found["said"] == "a document"
        assert found["leads"]
    assert said[0] == said[1]
    assert first.wait(SECONDS) == second.wait(SECONDS)


async def test_ends_with_all_that_is_below_it(forks, tmp_path):
    child = await forked(forks, app(tmp_path, FAMILY.format(then="time.sleep(300)")))
    await until(lambda: child.last_words().count("\n") == 2)
    pids = [int(line.split()[1]) for line in child.last_words().splitlines()]
    assert all(lives(pid) for pid in pids)
    assert await asyncio.to_thread(child.stop, 1.0) == 128 + signal.SIGTERM
    assert not any(lives(pid) for pid in pids)
    assert not lives(child.pid)


@pytest.mark.parametrize("victim", ["server", "keeper"])
async def test_killed_server_and_killed_keeper(forks, tmp_path, victim):
    child = await forked(forks, app(tmp_path, SLEEPS))
    pid = int((await words(child, ended=False)).split()[1])
    assert psutil.Process(pid).ppid() == child.pid
    os.kill(pid if victim == "server" else child.pid, signal.SIGKILL)
    assert await child.ended(SECONDS) == 128 + signal.SIGKILL
    await until(lambda: not lives(pid))


async def test_modules_beside_an_entrypoint_are_its_own(forks, tmp_path):
    children = []
    for name in ("one", "two"):
        file = app(tmp_path, "import utils\nprint(utils.NAME)\n", name)
        file.with_name("utils.py").write_text(f"NAME = {name!r}\n")
        children.append(await forked(forks, file))
    assert [await words(child) for child in children] == ["one", "two"]


@pytest.mark.parametrize("name", ["yarl.py", "yarl/__init__.py", "queue.py", "sitecustomize.py"])
async def test_not_forked_where_a_folder_has_what_is_loaded_by_another(forks, tmp_path, name):
    file = app(tmp_path, "import yarl\nprint(yarl.__file__)\n")
    shadow = file.parent / name
    shadow.parent.mkdir(exist_ok=True)
    shadow.write_text("")
    assert await forked(forks, file) is None
    shadow.unlink()
    child = await forked(forks, file)
    assert "site-packages" in await words(child)


async def test_not_forked_into_an_environment_that_has_changed(forks, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert await forked(forks, app(tmp_path, SLEEPS)) is None


def test_what_is_loaded_ahead_starts_no_thread_and_draws_nothing():
    code = """
import json, os, sys
from nemo_gym.launch import preloaded
for name in (*preloaded._OF_EVERY, *preloaded.AHEAD, *(one for more in preloaded.AHEAD.values() for one in more)):
    __import__(name)  # unlike the process itself: a name that is gone is a fault
print(json.dumps({
    "threads": len(os.listdir("/proc/self/task")),
    "loaded": sorted({"numpy", "pyarrow", "ray", "torch", "vllm", "transformers"} & sys.modules.keys()),
    "drawn": len(sys.modules["nemo_gym.exchange.ids"]._pool),
    "handlers": len(sys.modules["logging"].getLogger().handlers),
}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=project.ROOT)
    assert json.loads(done.stdout) == {"threads": 1, "loaded": [], "drawn": 0, "handlers": 0}


DRAWS = """
import json, os, random, uuid
from held import own
from nemo_gym.exchange.ids import uuid7
print(json.dumps([uuid7()[-12:], random.random(), os.urandom(8).hex(), uuid.uuid4().hex, own.random()]))
"""


@pytest.mark.ci
async def test_ids_and_random_numbers_are_each_servers_own(tmp_path, monkeypatch):
    """Though the process that they are forked from has drawn of both before."""
    script = tmp_path / "drawn" / "preloaded.py"
    script.parent.mkdir()
    script.write_text(
        "import random, runpy, sys, types\nfrom nemo_gym.exchange.ids import uuid7\nuuid7(), random.random()\n"
        "sys.modules['held'] = held = types.ModuleType('held')\nheld.own = random.Random()\n"
        f"runpy.run_path({forkserver._PRELOADED!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(forkserver, "_PRELOADED", str(script))
    forks = ForkServer()
    try:
        children = [await forked(forks, app(tmp_path, DRAWS, name)) for name in ("one", "two", "three")]
        drawn = [value for child in children for value in json.loads(await words(child))]
    finally:
        forks.close()
    assert len(set(drawn)) == 15


@pytest.mark.ci
async def test_end_of_the_process_to_fork_from(tmp_path, caplog):
    """What was forked lives on; what is asked for after is started anew, and why is said."""
    forks = ForkServer()
    child = await forked(forks, app(tmp_path, SLEEPS))
    pid = int((await words(child, ended=False)).split()[1])
    waiting = asyncio.create_task(forked(forks, app(tmp_path, SLEEPS, "second")))
    os.kill(forks.pid, signal.SIGSTOP)
    await asyncio.sleep(0)  # it has asked
    os.kill(forks.pid, signal.SIGKILL)
    assert await waiting is None
    assert "servers are started one by one, not forked: " in caplog.text
    assert await forked(forks, app(tmp_path, SLEEPS, "third")) is None
    assert lives(pid)
    assert child.poll() is None
    assert await asyncio.to_thread(child.stop, 1.0) == 128 + signal.SIGTERM
    assert not lives(pid)


LAUNCHER = """
import asyncio, os, signal, sys, time
from pathlib import Path
from nemo_gym.launch import forkserver, ports, venv

forkserver.begin()
if sys.argv[2] == "started":
    file = Path(sys.argv[1])
    async def main():
        sock = ports.bind("127.0.0.1", None)
        child = await forkserver.taken().start(file, venv.command(file), sock, b"", file.with_suffix(".log"))
        while child.last_words().count("\\n") < 2:
            await asyncio.sleep(0.02)
    asyncio.run(main())
else:
    time.sleep(float(sys.argv[2]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.ci
@pytest.mark.parametrize("moment", ["0", "0.1", "started"])
def test_killed_launcher_leaves_nothing(tmp_path, moment):
    command = [sys.executable, "-c", LAUNCHER, str(app(tmp_path, FAMILY.format(then="time.sleep(300)"))), moment]
    environment = {**os.environ, "NG_TEST_TREE": str(tmp_path), "PYTHONPATH": str(project.ROOT)}
    done = subprocess.run(command, env=environment, check=False, timeout=SECONDS)
    assert done.returncode == -signal.SIGKILL
    ends = time.monotonic() + SECONDS
    while project.left(tmp_path):
        assert time.monotonic() < ends
        time.sleep(0.02)
