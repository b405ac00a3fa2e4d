"""A server with requirements of its own gets an environment of its own; all others share the project's.

This module is run in place of such a server's entrypoint: it makes the environment, once, and becomes the server. So
it is made beside the start of the others, its output is in the server's log, and what goes wrong is its last words.
The environment sees the project's packages behind its own, so only what differs is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from nemo_gym.config import paths
from nemo_gym.config.requirements import declared, lines, unmet

_MADE = ".made"


def command(entrypoint: Path) -> list[str]:
    """How a server is started: by the project's own Python, or by this module."""
    if needed(entrypoint):
        return [sys.executable, "-u", "-m", "nemo_gym.launch.venv", str(entrypoint)]
    return [sys.executable, "-u", str(entrypoint)]


def needed(entrypoint: Path) -> bool:
    return bool(unmet(declared(entrypoint.parent)))


def environment(requirements: Path) -> Path:
    """The Python of the environment for these requirements, made when it is not there."""
    wanted = lines(requirements)
    words = "\n".join([sys.version, sys.prefix, *wanted])
    folder = _folder() / f"{requirements.parent.name}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two runs that start at once, one makes it
        if not (folder / _MADE).exists():
            _make(folder, requirements.parent, wanted)
    return _python(folder)


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("NEMO_GYM_VENV_DIR") or Path(cache) / "nemo_gym" / "venvs")


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _make(folder: Path, beside: Path, wanted: list[str]) -> None:
    print(f"making an environment for {', '.join(wanted)} in {folder}", flush=True)
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=False).create(folder)
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(wanted) + "\n")
    (site,) = folder.glob("lib/python*/site-packages")
    shared = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(paths.PARENT_DIR)]
    (site / "project.pth").write_text("".join(f"{path}\n" for path in dict.fromkeys(shared)))
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(_python(folder)), "--disable-pip-version-check", "install", "-q",
         "-r", str(listed)],
        cwd=beside,
        check=True,
    )  # fmt: skip
    (folder / _MADE).touch()


def main() -> None:
    entrypoint = Path(sys.argv[1])
    wanted = declared(entrypoint.parent)
    try:
        python = environment(wanted)
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"its {wanted.name} cannot be installed: {error}")
    os.execv(python, [str(python), "-u", str(entrypoint)])


if __name__ == "__main__":
    main()
