"""A server's own config class, found through its entrypoint without starting the server.

The entrypoint is imported as a module, so its `if __name__ == "__main__"` part does not run. The class that it would
run names its config class in the annotation of `config`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict

from . import paths
from .faults import did_you_mean
from .requirements import declared, unmet

_RUN = re.compile(r"^\s+(?:app\s*=\s*)?(\w+)\.run_webserver\(", re.M)


class NotInstalled(Exception):
    """The server cannot be imported here, since it gets an environment of its own when it is started."""


class EntrypointError(Exception):
    """`about_file`: the fault is the entrypoint's, not the implementation's name."""

    def __init__(self, message: str, about_file: bool = True) -> None:
        super().__init__(message)
        self.about_file = about_file


def config_class(kind: str, implementation: str, file: Any) -> type[BaseModel]:
    """The config class of `<kind>/<implementation>/<file>`."""
    server = server_class(kind, implementation, file)
    found = server.model_fields["config"].annotation
    if not (inspect.isclass(found) and issubclass(found, BaseModel)):
        path = paths.entrypoint(kind, implementation, file)
        raise EntrypointError(f"{paths.shown(path)}: {server.__name__}.config is not annotated with a config class")
    return found


def server_class(kind: str, implementation: str, file: Any) -> type[BaseModel]:
    """The class that the entrypoint would run."""
    if not isinstance(file, str):
        raise EntrypointError(f"expected a file's name, got {file!r}")
    path = paths.entrypoint(kind, implementation, file)
    if not path.parent.is_dir():
        there = paths.beside(Path(kind) / implementation, "[a-z]*")
        near = did_you_mean(implementation, (p.name for p in there if p.is_dir()))
        raise EntrypointError(f"there is no folder {kind}/{implementation}{near}", about_file=False)
    if not path.is_file():
        near = did_you_mean(file, (p.name for p in path.parent.glob("*.py")))
        raise EntrypointError(f"expected a file in {kind}/{implementation}, {file!r} does not exist{near}")
    with _deferred():
        module = _load(path, kind, implementation)
    server = _server_class(module, path)
    server.model_rebuild(raise_errors=False)
    return server


@contextlib.contextmanager
def _deferred() -> Iterator[None]:
    """Models that are defined meanwhile are built when they are first used: an entrypoint brings hundreds of others."""
    kept = BaseModel.model_config
    BaseModel.model_config = ConfigDict(defer_build=True)
    try:
        yield
    finally:
        BaseModel.model_config = kept


def _load(path: Path, kind: str, implementation: str) -> ModuleType:
    name = f"_entrypoint_{kind}_{implementation}_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    kept, known_before = list(sys.path), set(sys.modules)
    sys.path[:0] = [str(path.parent), str(paths.root_of(path))]  # as when it runs
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if not isinstance(error, SyntaxError) and unmet(declared(path.parent)):
            raise NotInstalled(f"cannot be loaded without what it needs: {error}") from None
        if isinstance(error, ModuleNotFoundError):
            raise EntrypointError(f"needs the module {error.name}, which is not installed") from None
        raise EntrypointError(f"{paths.shown(path)} cannot be loaded: {type(error).__name__}: {error}") from None
    finally:
        sys.path[:] = kept
        _forget_neighbours(path.parent, known_before)
    return module


def _forget_neighbours(folder: Path, known_before: set[str]) -> None:
    """Modules beside an entrypoint that it imported by their bare names: the next server may have a `utils` too."""
    for name in sys.modules.keys() - known_before:
        module, top = sys.modules[name], name.partition(".")[0]
        own = vars(module)  # asked for an attribute, some modules import more
        places = [own.get("__file__"), *own.get("__path__", ())]
        beside = (folder / top).is_dir() or (folder / f"{top}.py").is_file()
        if beside and any(place is not None and Path(place).is_relative_to(folder) for place in places):
            del sys.modules[name]


def _server_class(module: ModuleType, path: Path) -> type[BaseModel]:
    run = _RUN.findall(path.read_text(encoding="utf-8"))
    if run and inspect.isclass(found := getattr(module, run[-1], None)) and issubclass(found, BaseModel):
        return found
    own = [value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__]
    servers = [value for value in own if issubclass(value, BaseModel) and hasattr(value, "run_webserver")]
    if not servers:
        raise EntrypointError(f"{paths.shown(path)} has no server class: none calls run_webserver()")
    return servers[-1]
