"""The process that servers are forked from: what they have in common is imported once.

It has one thread, since nothing else of a process survives a fork, and so imports nothing that starts another (pyarrow
and numpy do). A server is forked as a command is started: under a keeper, in a session of its own, with its document,
its log and its socket, and it runs its entrypoint as the interpreter would. Asked for one that would not be the same,
this process says so, and the server is started anew. It ends when the launcher closes its end or is gone.
"""

# ruff: noqa: E402 - what any interpreter has loaded is noted first, and then this folder forgotten

import sys

_AT_START = frozenset(sys.modules)
if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules are not to be found by their bare names

import ast
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from nemo_gym import keeper
from nemo_gym.process import die_with

DOCUMENT, LOG, WATCHED, REPORT, LISTENS = range(5)
"""The descriptors that come with a request to start, by their place."""
LONGEST = 1 << 16
"""Of a message, in bytes."""

_OF_EVERY = (
    "nemo_gym.web.service",
    "nemo_gym.web.serve",
    "uvicorn.loops.uvloop",
    "uvicorn.lifespan.on",
    "encodings.idna",
)
_OF_APPS = ("nemo_gym.openai_utils", "nemo_gym.reward_profile", "nemo_gym.web.abilities", "pydantic.v1")
_OF_MODELS = (
    "nemo_gym.base_responses_api_model",
    "nemo_gym.dialects.registry",
    "nemo_gym.lineage.tree",
    "nemo_gym.capture.record",
    "nemo_gym.capture.redact",
    "nemo_gym.model_server.adapt",
    "nemo_gym.model_server.admission",
    "nemo_gym.model_server.metrics",
    "nemo_gym.model_server.reuse",
)
AHEAD: dict[str, tuple[str, ...]] = {
    "nemo_gym.base_resources_server": _OF_APPS,
    "nemo_gym.base_responses_api_agent": _OF_APPS,
    "nemo_gym.agent_server.command": _OF_APPS,
    "nemo_gym.agent_server.environment": _OF_APPS,
    "nemo_gym.base_responses_api_model": _OF_MODELS,
    "nemo_gym.model_server.endpoint": (*_OF_MODELS, "nemo_gym.backends.per_dialect", "nemo_gym.model_server.replicas"),
    "nemo_gym.openai_utils": (),
    "nemo_gym.server_utils": (),
    "nemo_gym.config_types": (),
}
"""What is imported ahead for an entrypoint that imports one of these: this, and what it comes to need."""


def main() -> dict[str, Any]:
    """Returns in each server that is forked, with what was asked for."""
    die_with(int(sys.argv[2]))
    control = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    keepers: dict[int, int] = {}
    generators: list[random.Random] = []
    waiting = list(_OF_EVERY)
    while True:
        ready, _, _ = select.select([control.fileno(), *keepers], [], [], 0 if waiting else None)
        for ended in [pidfd for pidfd in keepers if pidfd in ready]:
            os.waitpid(keepers.pop(ended), 0)
            os.close(ended)
        if control.fileno() not in ready:
            if waiting:
                _load(waiting.pop(0))
            continue
        data, fds, _, _ = socket.recv_fds(control, LONGEST, LISTENS + 1)
        if not data:
            sys.exit()
        request = json.loads(data)
        if not fds:
            waiting += [name for file in request["expected"] for name in _wanted(file)]
            continue
        for name in (*_OF_EVERY, *_wanted(request["file"])):
            _load(name)
        if why := unlike(request["path"]):
            control.send(json.dumps({"refused": why}).encode())
        else:
            generators += (one for one in gc.get_objects() if type(one) is random.Random)
            gc.freeze()
            pid = os.fork()
            if pid == 0:
                for fd in (control.detach(), *keepers):
                    os.close(fd)
                request = _kept(request, fds)
                for generator in generators:
                    generator.seed()
                return request
            pidfd = os.pidfd_open(pid)
            keepers[pidfd] = pid
            socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [pidfd])
        for fd in fds:
            os.close(fd)


def _wanted(file: str) -> list[str]:
    """What is imported ahead for an entrypoint, by what it names."""
    try:
        named = set(_imported(ast.parse(Path(file).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return []  # the server says it
    return [one for name in AHEAD if name in named for one in (name, *AHEAD[name])]


def _imported(tree: ast.Module) -> list[str]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _load(name: str) -> None:
    with contextlib.suppress(Exception):  # what fails here fails again, and is told, where it is needed
        importlib.import_module(name)


# ---- whether a server may be forked


def unlike(path: list[str]) -> str:
    """Why a server with these folders first on its path would, forked, not be what it is when it is started anew;
    nothing where it would."""
    if (count := len(os.listdir("/proc/self/task"))) != 1:
        return f"{count} threads"
    for folder in path:
        for name in sorted(_offered(folder)):
            if name in ("sitecustomize", "usercustomize"):
                return f"{folder} has a {name}"
            if name in sys.modules and name not in _AT_START and not _is_from(sys.modules[name], folder):
                return f"{folder} has a {name} of its own"
    return ""


def _offered(folder: str) -> set[str]:
    """What can be imported from a folder."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return set()
    names = {entry.name.partition(".")[0] for entry in entries if entry.name.endswith((".py", ".so", ".pyc"))}
    return names | {entry.name for entry in entries if os.path.exists(os.path.join(entry.path, "__init__.py"))}


def _is_from(module: ModuleType, folder: str) -> bool:
    place = next(iter(getattr(module, "__path__", ())), None) or getattr(module, "__file__", None)
    return place is not None and os.path.samefile(os.path.dirname(place), folder)


# ---- in what is forked


def _kept(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """This process becomes a keeper; returns in the server that it keeps."""
    os.setsid()
    keeper.prctl(keeper.PR_SET_CHILD_SUBREAPER, 1)  # before the server can leave anything behind
    os.dup2(fds[LOG], 1)
    os.dup2(fds[LOG], 2)
    own = os.getpid()
    server = os.fork()
    if server == 0:
        keeper.own_session(own)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # these two as the interpreter sets them
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.dup2(fds[DOCUMENT], 0)
        for fd in fds[:LISTENS]:
            os.close(fd)
        return {**request, "listens": fds[LISTENS]}
    told = [fds[WATCHED], request["grace"], keeper.FORKED, server, fds[REPORT], *request["command"]]
    try:
        os.execv(sys.executable, [sys.executable, "-I", "-S", keeper.__file__, *map(str, told)])
    finally:
        os._exit(127)


def become(request: dict[str, Any]) -> NoReturn:
    """Run the entrypoint as `python -u FILE` does."""
    from nemo_gym.web.service import LISTEN_FD

    file, path = request["file"], request["path"]
    _show(" ".join(request["command"]))
    os.chdir(request["cwd"])
    os.environ.update({"PYTHONPATH": os.pathsep.join(path[1:]), LISTEN_FD: str(request["listens"])})
    sys.path[:] = dict.fromkeys([*path, *(place for place in sys.path if place not in request["ours"])])
    importlib.invalidate_caches()
    sys.argv = [file]
    sys.modules["__main__"] = program = ModuleType("__main__")
    program.__file__ = file
    gc.enable()
    try:
        exec(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True), program.__dict__)
    except Exception as error:
        own = error.__traceback__
        error.__traceback__ = own and own.tb_next  # the entrypoint's frames alone
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    sys.exit()


def _show(command: str) -> None:
    """What is listed as this process's command, in the place of what it was started with."""
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
    if start and end > start:  # with its last byte not zero, the text is taken for a title: it ends with the first zero
        title = os.fsencode(command)[: end - start - 2]
        ctypes.memmove(start, title.ljust(end - start - 1, b"\0") + b" ", end - start)


if __name__ == "__main__":
    become(main())
