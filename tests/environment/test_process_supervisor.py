"""A command within a sandbox and everything that it starts end, whatever they do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.sandbox import process_supervisor
from tests.project import lives

STRAY = """
import os, subprocess, sys, time
stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
open(sys.argv[1], "w").write(str(stray.pid))
"""


def supervised(folder: Path, *command: str, **options: Any) -> tuple[int, dict[str, Any]]:
    process = started(folder, *command, **options)
    code = process.wait(30)
    return code, json.loads((folder / "receipt.json").read_text())


def started(folder: Path, *command: str, timeout: float = 20, more: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    copied = folder / "process_supervisor.py"  # as agents do: the file alone, and an interpreter that sees nothing else
    copied.write_bytes(Path(process_supervisor.__file__).read_bytes())
    own = ["--timeout", str(timeout), "--cleanup-timeout", "5", "--receipt", str(folder / "receipt.json"), *more]
    return subprocess.Popen([sys.executable, "-I", str(copied), *own, "--", *command])


def test_a_command_that_ends_leaves_no_process_behind(tmp_path: Path) -> None:
    code, receipt = supervised(tmp_path, sys.executable, "-c", STRAY + "sys.exit(3)", str(tmp_path / "pid"))
    assert code == 0
    assert receipt == {"cleanup_confirmed": True, "return_code": 3, "error": None, "timed_out": False}
    assert not lives(int((tmp_path / "pid").read_text()))


def test_one_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code, receipt = supervised(
        tmp_path, sys.executable, "-c", STRAY + "time.sleep(300)", str(tmp_path / "pid"), timeout=2
    )
    assert (code, receipt["timed_out"], receipt["cleanup_confirmed"]) == (0, True, True)
    assert receipt["return_code"] == -signal.SIGTERM
    assert not lives(int((tmp_path / "pid").read_text()))


def test_one_that_is_stopped_says_so_and_one_stopped_before_its_start_never_starts(tmp_path: Path) -> None:
    process = started(tmp_path, sys.executable, "-c", STRAY + "time.sleep(300)", str(tmp_path / "pid"))
    until = time.monotonic() + 20
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    process.terminate()
    assert process.wait(30) == 0
    assert json.loads((tmp_path / "receipt.json").read_text())["timed_out"] is False
    assert not lives(int((tmp_path / "pid").read_text()))

    (tmp_path / "stop").touch()
    code, receipt = supervised(tmp_path, "touch", str(tmp_path / "ran"), more=("--stop-file", str(tmp_path / "stop")))
    assert (code, receipt["cleanup_confirmed"], receipt["return_code"]) == (0, True, None)
    assert not (tmp_path / "ran").exists()


def test_a_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    code, receipt = supervised(tmp_path, "/no/such/program")
    assert (code, receipt["cleanup_confirmed"]) == (1, True)
    assert "/no/such/program" in receipt["error"]


@pytest.mark.parametrize("seconds", ["0", "nan", "soon"])
def test_times_are_seconds(tmp_path: Path, seconds: str) -> None:
    asked = [sys.executable, process_supervisor.__file__, "--timeout", seconds, "--receipt", str(tmp_path / "r"), "ls"]
    assert subprocess.run(asked, capture_output=True).returncode == 2
    assert process_supervisor.exec_timeout(timeout=60) == 120
