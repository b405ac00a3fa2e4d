"""A child's tree ends when it is told to, when its main process ends, and when whoever started it is gone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nemo_gym.process import Child
from tests.launch.family import FAMILY
from tests.project import lives

PYTHON = sys.executable


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("did not come about")


def pids(log: Path) -> dict[str, int] | None:
    found = dict(line.split() for line in log.read_text().splitlines()) if log.exists() else {}
    return {name: int(pid) for name, pid in found.items()} if len(found) == 3 else None


def family(tmp_path, then="time.sleep(300)") -> tuple[Child, dict[str, int]]:
    log = tmp_path / "log"
    child = Child.start([PYTHON, "-c", FAMILY.format(then=then)], log_path=log)
    return child, until(lambda: pids(log))


def test_stop_ends_the_whole_tree(tmp_path):
    child, tree = family(tmp_path)
    assert all(lives(pid) for pid in tree.values())
    assert child.stop(1.0) == 128 + signal.SIGTERM
    assert not any(lives(pid) for pid in tree.values())


def test_tree_ends_with_its_main_process(tmp_path):
    child, tree = family(tmp_path, then="time.sleep(0.3); sys.exit(7)")
    assert child.wait(60) == 7
    assert not any(lives(pid) for pid in tree.values())


def test_grace_is_given_and_then_ends(tmp_path):
    stubborn = "import signal, time; signal.signal(15, lambda *a: print('heard', flush=True)); print('up', flush=True)"
    stubborn += "\nwhile True: time.sleep(1)"
    child = Child.start([PYTHON, "-c", stubborn], log_path=tmp_path / "log")
    until(lambda: "up" in child.last_words())
    started = time.monotonic()
    assert child.stop(0.5) == 137
    assert 0.4 < time.monotonic() - started < 30
    assert "heard" in child.last_words()


def test_orderly_end_keeps_its_status(tmp_path):
    polite = "import signal, sys, time; signal.signal(15, lambda *a: sys.exit(0)); print('up', flush=True)"
    polite += "; time.sleep(99)"
    child = Child.start([PYTHON, "-c", polite], log_path=tmp_path / "log")
    until(lambda: "up" in child.last_words())
    assert child.stop(5) == 0


LAUNCHER = """
import sys, time
from nemo_gym.process import Child
Child.start([sys.executable, "-c", {family!r}], log_path={log!r})
time.sleep({wait})
import os; os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("wait", [0, 0.01, 0.05, 0.2, 1.0])
def test_killed_launcher_leaves_nothing(tmp_path, wait):
    """At whatever moment it is killed, also before the command has begun."""
    log = tmp_path / "log"
    marker = f"NG_TEST_TREE={tmp_path}"
    script = LAUNCHER.format(family=FAMILY.format(then="time.sleep(300)"), log=str(log), wait=wait)
    environment = {**os.environ, "NG_TEST_TREE": str(tmp_path)}
    subprocess.run([PYTHON, "-c", script], env=environment, check=False, cwd=Path(__file__).parents[2])

    def left():
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
        return found

    until(lambda: not left())


def test_killed_keeper_takes_the_command_along(tmp_path):
    child, tree = family(tmp_path)
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: not lives(tree["main"]))
    for name in ("stray", "child"):
        if lives(tree[name]):
            os.kill(tree[name], signal.SIGKILL)
    child.wait(60)


def test_stdin_is_whole_and_large(tmp_path):
    script = "import sys; data = sys.stdin.buffer.read(); print(len(data), data[:3], data[-3:])"
    child = Child.start([PYTHON, "-c", script], stdin=b"abc" + b"x" * 1_000_000 + b"xyz", log_path=tmp_path / "log")
    assert child.wait(60) == 0
    assert child.last_words() == "1000006 b'abc' b'xyz'"


def test_last_words_are_of_this_start_only(tmp_path):
    log = tmp_path / "log"
    log.write_text("from an earlier run\n")
    child = Child.start([PYTHON, "-c", "print('a'); print('b'); print('c'); raise SystemExit(3)"], log_path=log)
    assert child.wait(60) == 3
    assert child.last_words(2) == "b\nc"
    assert child.last_words() == "a\nb\nc"


def test_unknown_command_says_so(tmp_path):
    child = Child.start(["/no/such/command"], log_path=tmp_path / "log")
    assert child.wait(60) == 127
    assert child.last_words() == "cannot run /no/such/command: No such file or directory"


def test_passed_socket_is_the_commands_alone(tmp_path):
    """Neither the keeper nor we keep a listening socket open: a dead server must not seem to listen."""
    import socket

    sock = socket.create_server(("127.0.0.1", 0))
    address = sock.getsockname()
    child = Child.start(
        [PYTHON, "-c", "import sys, time; print('up', flush=True); time.sleep(300)"],
        pass_fds=[sock.fileno()],
        log_path=tmp_path / "log",
    )
    sock.close()
    until(lambda: "up" in child.last_words())
    socket.create_connection(address, 1).close()
    main = psutil.Process(child.pid).children()[0]
    main.kill()
    until(lambda: child.poll() is not None)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 1)
    child.wait(60)


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory has a place in the file system on Linux")
def test_shared_memory_of_what_was_killed_is_freed(tmp_path):
    log = tmp_path / "log"
    code = "from multiprocessing.shared_memory import SharedMemory as S; import time; m = S(create=True, size=9); "
    code += "print(m.name, flush=True); import signal; signal.signal(15, signal.SIG_IGN); time.sleep(300)"
    child = Child.start([PYTHON, "-c", code], log_path=log)
    name = until(lambda: log.exists() and log.read_text().endswith("\n") and log.read_text().strip())
    path = Path("/dev/shm") / name
    assert path.exists()
    child.stop(0.2)
    until(lambda: child.poll() is not None)
    assert not path.exists()
