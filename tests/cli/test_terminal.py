"""A terminal that is closed, or a pipe that nobody reads any more, does not end what writes to it."""

import os
import pty
import subprocess
import sys

import pytest

GOES_ON = """
import sys
from nemo_gym.cli.terminal import console
out = console()
out.print("first")
sys.stdin.readline()  # by now nobody is there
for _ in range(3):
    out.print("more" * 5000)
    with out.status("working"):
        pass
open(sys.argv[1], "w").write("done")
"""


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_it_goes_on_when_nobody_is_there_any_more(tmp_path, kind):
    ours, theirs = os.pipe() if kind == "pipe" else pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", GOES_ON, str(tmp_path / "done")],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    while b"first" not in seen:
        seen += os.read(ours, 1000)
    os.close(ours)
    _, complaints = child.communicate(b"\n", timeout=60)
    assert (child.returncode, complaints) == (0, b"")
    assert (tmp_path / "done").read_text() == "done"


def test_what_is_written_is_what_is_shown(capsys):
    from nemo_gym.cli.terminal import console

    console().print("[bold]words[/] that are longer than a line " + "x" * 200)
    assert capsys.readouterr().out == "words that are longer than a line " + "x" * 200 + "\n"
