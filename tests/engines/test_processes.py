"""An engine ends what it began, and nothing else of its process."""

import subprocess
import sys
import time

import psutil

from nemo_gym.engines.processes import Begun

PARENT = "import subprocess, sys; input(); subprocess.run([sys.executable, '-c', 'input()'], stdin=0)"
"""Has a child of its own once it is told to."""


def parent() -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE)


def with_child(process: subprocess.Popen) -> list[psutil.Process]:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    until = time.monotonic() + 60
    while not (found := psutil.Process(process.pid).children()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return [psutil.Process(process.pid), *found]


def test_what_was_there_before_stays_with_all_that_it_begins():
    before = parent()
    begun = Begun()
    own = parent()
    try:
        kept, ended = with_child(before), with_child(own)
        assert {one.pid for one in begun.all()} == {one.pid for one in ended}
        begun.kill()
        own.wait(10)
        psutil.wait_procs(ended, timeout=10)
        assert [one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in ended] == [False, False]
        assert [one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in kept] == [True, True]
        assert begun.all() == []
    finally:
        for one in (before, own):
            for process in psutil.Process(one.pid).children(recursive=True) if one.poll() is None else ():
                process.kill()
            one.kill()
            one.wait()
            one.stdin.close()
