"""Requirements of a server's own: met by what is installed, or an environment that is made once."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nemo_gym.config.requirements import declared, lines, unmet
from nemo_gym.launch import venv


@pytest.mark.parametrize(
    ("line", "met"),
    [
        ("msgspec", True),
        ("msgspec>=0.20  # a comment", True),
        ("msgspec<0.1", False),
        ("no-such-package-here", False),
        ('no-such-package-here; python_version < "3"', True),
        ("fastapi[no-such-extra]", True),
        ("-r others.txt", False),
        ("msgspec @ https://127.0.0.1/msgspec.whl", False),
    ],
)
def test_what_is_met(tmp_path, line, met):
    (tmp_path / "requirements.txt").write_text(f"-e nemo-gym[dev] @ ../../\n# nothing\n\n{line}\n")
    assert unmet(tmp_path / "requirements.txt") == ([] if met else [line])


def test_this_package_is_not_asked_for(tmp_path):
    assert unmet(tmp_path / "requirements.txt") == []  # there is none
    for own in ("nemo-gym", "nemo_gym[test]>=0.7", "-e nemo-gym[dev] @ ../../", "-e ../../", "--editable ../../[dev]"):
        (tmp_path / "requirements.txt").write_text(own)
        assert lines(tmp_path / "requirements.txt") == []


def test_a_project_file_says_it_as_well(tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text(
        """[project]
name = "env"
dependencies = ["nemo-gym[dev]", "msgspec>=0.20", "infilling", "beside", "pinned>=1"]
[tool.uv.sources]
nemo-gym = { path = "../..", editable = true }
infilling = { git = "https://127.0.0.1/infilling.git", rev = "abc" }
beside = { path = "./beside", editable = true }
pinned = { index = "somewhere" }
"""
    )
    assert declared(tmp_path) == project
    assert lines(project) == [
        "msgspec>=0.20",
        "infilling @ git+https://127.0.0.1/infilling.git@abc",
        "-e ./beside",
        "pinned>=1",
    ]
    assert unmet(project) == lines(project)[1:]
    assert venv.command(tmp_path / "app.py")[:4] == [sys.executable, "-u", "-m", "nemo_gym.launch.venv"]
    (tmp_path / "requirements.txt").write_text("msgspec\n")  # where both are, this one counts
    assert declared(tmp_path).name == "requirements.txt"
    assert venv.command(tmp_path / "app.py") == [sys.executable, "-u", str(tmp_path / "app.py")]


def test_a_server_without_such_shares_the_projects(tmp_path):
    assert venv.command(tmp_path / "app.py") == [sys.executable, "-u", str(tmp_path / "app.py")]
    (tmp_path / "requirements.txt").write_text("msgspec\n")
    assert venv.command(tmp_path / "app.py") == [sys.executable, "-u", str(tmp_path / "app.py")]


def wheel(folder: Path) -> Path:
    """A package that is nowhere else."""
    path = folder / "only_here-1.0-py3-none-any.whl"
    info = "only_here-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("only_here.py", "VALUE = 41\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: only-here\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.ci
def test_a_server_with_such_runs_in_an_environment_that_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_GYM_VENV_DIR", str(tmp_path / "venvs"))
    folder = tmp_path / "resources_servers" / "own"
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text(f"-e nemo-gym[dev] @ ../../\n{wheel(tmp_path)}\n")
    (folder / "app.py").write_text(
        "import sys, only_here, msgspec, nemo_gym\nprint(only_here.VALUE + int(sys.stdin.read()), sys.prefix)\n"
    )
    command = venv.command(folder / "app.py")
    for again in (False, True):
        done = subprocess.run(command, input="1", capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("making an environment" in done.stdout) is not again
        value, prefix = done.stdout.split()[-2:]
        assert value == "42"
        assert prefix.startswith(str(tmp_path / "venvs" / "own-"))
    (folder / "requirements.txt").write_text(f"{tmp_path}/nowhere.whl\n")
    failed = subprocess.run(venv.command(folder / "app.py"), input="1", capture_output=True, text=True, timeout=300)
    assert failed.returncode == 1
    assert "requirements.txt cannot be installed" in failed.stderr
    assert "nowhere.whl" in failed.stdout + failed.stderr
