"""Who asks which runs are up gets the living ones, against a token, from a folder that is the user's own."""

import os
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from asyncio import to_thread

import msgspec
import pytest

from nemo_gym.launch import head


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(head.RUNTIME_DIR, str(tmp_path / "runtime"))
    return tmp_path / "runtime"


async def test_registered_while_it_runs(folder):
    one = head.Head("run-1", lambda: {"servers": [{"name": "a"}]}, ["ng_run"])
    assert head.runs() == []
    await one.start()
    (run,) = head.runs()
    assert (run.run_id, run.pid) == ("run-1", os.getpid())
    assert await to_thread(head.ask, run) == {"servers": [{"name": "a"}]}
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await one.stop()
    assert head.runs() == []
    assert await to_thread(head.ask, run) is None


async def test_token_is_needed():
    one = head.Head("run-1", lambda: {"servers": []}, [])
    await one.start()
    (run,) = head.runs()
    for token in ("", "wrong", "é"):
        wrong = msgspec.structs.replace(run, token=token)
        with pytest.raises((urllib.error.HTTPError, UnicodeEncodeError)):
            await to_thread(_get, wrong)
    await one.stop()


def _get(run):
    request = urllib.request.Request(run.url + "/status", headers={"Authorization": f"Bearer {run.token}"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read()


def test_entries_of_the_dead_are_cleared(folder):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    entry = head.Run("run-1", child.pid, head.born(child.pid), "http://127.0.0.1:1", "t", 0.0, "/")
    head.runtime_dir()
    (folder / "a.json").write_bytes(msgspec.json.encode(entry))
    reborn = msgspec.structs.replace(entry, born=entry.born + 1)  # the same pid, another process
    (folder / "b.json").write_bytes(msgspec.json.encode(reborn))
    assert head.runs() == [entry]
    assert not (folder / "b.json").exists()
    child.kill()
    child.wait()
    assert head.runs() == []
    assert list(folder.iterdir()) == []


def test_folder_that_others_can_read_is_refused(folder):
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="only you can read"):
        head.runs()
