"""One configuration out of files, `env.yaml` and the command line, each key with the place it came from.

Later wins: imported files < the files that import them < `env.yaml` in the working folder < the command line. Nothing
is raised for what the user wrote: every fault is collected, so that all can be told at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from . import directives, documents, paths
from .faults import Problem, did_you_mean
from .secrets import masked
from .types import KINDS, CaptureConfig, ClusterConfig, JobConfig

COMMAND_LINE = "command line"
ENV_FILE = "env.yaml"
MISSING = "???"
_WHERE = ("host", "port", "ray")
"""Settings of a server that say where it runs, and nothing of what it does."""

KeyPath = tuple[str, ...]


class Instance(msgspec.Struct, frozen=True):
    """One server of a run; `settings` as they are in the configuration, secrets included."""

    name: str
    kind: str
    implementation: str
    settings: dict[str, Any]

    @property
    def key(self) -> KeyPath:
        return self.name, self.kind, self.implementation


class Composed(msgspec.Struct, frozen=True):
    """A configuration with its references resolved.

    `written` is the same before resolution, `unresolved` the key paths that have no value, `problems` what went wrong
    while it was put together, `complete` whether every file and argument could be read, and `files` the files that the
    command line names.
    """

    config: dict[str, Any]
    origins: dict[KeyPath, str]
    instances: list[Instance]
    written: dict[str, Any]
    unresolved: frozenset[KeyPath]
    problems: list[Problem]
    complete: bool
    files: tuple[str, ...] = ()

    def origin(self, key: KeyPath) -> str:
        """Where a key was written, or the nearest key above it."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key[:-1]
        return ""

    def masked(self) -> dict[str, Any]:
        return masked(self.config, self.written)

    def digest(self) -> str:
        """What is served, in one short word: equal for equal servers, secrets and addresses aside."""
        return hashlib.blake2b(msgspec.json.encode(self.served(), order="sorted"), digest_size=16).hexdigest()

    def served(self) -> dict[str, Any]:
        """Every setting of every server under its whole key, addresses aside, secrets masked."""
        config = self.masked()
        found: dict[str, Any] = {}
        for instance in self.instances:
            settings = {key: value for key, value in _at(config, instance.key).items() if key not in _WHERE}
            found[".".join(instance.key)] = instance.implementation
            found |= _flat(settings, ".".join(instance.key)) if settings else {}
        return found

    def job(self) -> JobConfig | None:
        """The job with absolute paths; None without one."""
        if not isinstance(self.config.get("job"), dict):
            return None
        job = JobConfig.model_validate(self.config["job"])
        told: dict[str, Any] = {"output": str(paths.absolute(job.output))}
        if job.input is not None:
            told["input"] = str(paths.locate(job.input))
        told["datasets"] = [part.model_copy(update={"input": str(paths.locate(part.input))}) for part in job.datasets]
        return job.model_copy(update=told)

    def capture(self) -> CaptureConfig:
        """How calls are recorded, with the folder chosen when it is not said."""
        capture = CaptureConfig.model_validate(self.config.get("capture") or {})
        job = self.job()
        folder = capture.dir or (f"{job.output}/captures" if job else "results/captures")
        told = {"dir": str(paths.absolute(folder))}
        if capture.upload is not None and "://" not in capture.upload:
            told["upload"] = str(paths.absolute(capture.upload))
        return capture.model_copy(update=told)

    def cluster(self) -> ClusterConfig:
        """Where the servers are placed."""
        return ClusterConfig.model_validate(self.config.get("ray") or {})

    def logs(self) -> Path:
        """The folder of the servers' logs."""
        job = self.job()
        return Path(job.output) / "logs" if job else paths.absolute("results/logs")


def compose(
    args: Sequence[str], initial: Mapping[Any, Any] | None = None, env_file: str | Path | None = ENV_FILE
) -> Composed:
    """Compose a configuration from Hydra-style arguments: `+config_paths=[a.yaml]`, `++a.b=c`, `~a.b`.

    Args:
        initial: a configuration below all that; it may name files too.
        env_file: the file of keys; None for none.
    """
    return _Composer().compose(args, initial, env_file)


class _Composer:
    def __init__(self) -> None:
        self.tree = OmegaConf.create({})
        self.origins: dict[KeyPath, str] = {}
        self.problems: list[Problem] = []
        self.imported: set[Path] = set()
        self.unresolved: set[KeyPath] = set()
        self.named: list[str] = []

    def compose(
        self, args: Sequence[str], initial: Mapping[Any, Any] | None = None, env_file: str | Path | None = ENV_FILE
    ) -> Composed:
        overrides = self._parse(args)
        if initial:
            self._initial(initial)
        for override in overrides:
            if override.key_or_group == "config_paths":
                self._files(override.value(), COMMAND_LINE, ())
        here = None if env_file is None else Path.cwd() / env_file
        if here is not None and here.exists():
            self._merge(here, ENV_FILE, ())
        for override in overrides:
            if override.key_or_group != "config_paths":
                self._override(override)
        before: Any = OmegaConf.to_container(self.tree, resolve=False)
        if not self.problems:
            self.tree = OmegaConf.create(directives.follow(before, self._at))
        complete = not self.problems
        written: Any = OmegaConf.to_container(self.tree, resolve=False)
        config = self._resolve(self.tree, ())
        instances = self._instances(_without_what_moved(config, before)) if complete else []
        return Composed(
            config,
            self.origins,
            instances,
            written,
            frozenset(self.unresolved),
            self.problems,
            complete,
            tuple(self.named),
        )

    def _initial(self, initial: Mapping[Any, Any]) -> None:
        tree = initial if isinstance(initial, DictConfig) else OmegaConf.create(dict(initial))
        values: Any = OmegaConf.to_container(tree, resolve=False)
        if (named := values.pop("config_paths", None)) is not None:
            self._files(named, "", ())
        self.tree = OmegaConf.merge(self.tree, values)  # type: ignore[assignment]

    def _fault(self, key: str, where: str, message: str) -> None:
        self.problems.append(Problem(key, where, message))

    def _at(self, path: KeyPath, message: str) -> None:
        where = next((self.origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.origins), "")
        self._fault(".".join(path), where, message)

    # ---- arguments

    def _parse(self, args: Sequence[str]) -> list[Override]:
        parser, overrides = OverridesParser.create(), []
        for arg in args:
            try:
                overrides += parser.parse_overrides([arg])
            except HydraException as error:
                reason = str(error.__cause__ or error).splitlines()[0]
                expected = f"expected key=value ({reason})" if "=" not in arg else _with_quotes(arg)
                if arg.endswith((".yaml", ".yml")) and "=" not in arg:
                    expected = f'expected key=value; a file is named as "+config_paths=[{arg}]"'
                self._fault(arg, COMMAND_LINE, expected)
        return overrides

    def _override(self, override: Override) -> None:
        name = override.key_or_group
        key = tuple(name.split("."))
        if override.is_delete():
            self._delete(name, key)
            return
        try:
            OmegaConf.update(self.tree, name, override.value(), merge=True, force_add=True)
        except (OmegaConfBaseException, HydraException, ValueError, TypeError) as error:
            self._fault(name, COMMAND_LINE, str(error).splitlines()[0])
            return
        for depth in range(1, len(key)):
            self.origins.setdefault(key[:depth], COMMAND_LINE)
        self.origins[key] = COMMAND_LINE

    def _delete(self, name: str, key: KeyPath) -> None:
        parent = OmegaConf.select(self.tree, ".".join(key[:-1])) if len(key) > 1 else self.tree
        if isinstance(parent, DictConfig) and key[-1] in parent:
            del parent[key[-1]]
            self.origins = {k: origin for k, origin in self.origins.items() if k[: len(key)] != key}
        else:
            known = map(str, parent) if isinstance(parent, DictConfig) else ()
            self._fault(f"~{name}", COMMAND_LINE, "there is no such key to delete" + did_you_mean(key[-1], known))

    # ---- files

    def _files(self, named: Any, where: str, importing: tuple[Path, ...]) -> None:
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            self._fault("config_paths", where, f"expected a list of files, such as [configs/a.yaml], got {named!r}")
            return
        found = {name: self._found(name, importing) for name in named}
        if not importing:
            self.named += found
            self.imported |= set(found.values())
        for name, path in found.items():
            if path in importing:
                chain = " -> ".join(paths.shown(p) for p in (*importing, path))
                self._fault("config_paths", where, f"files import one another: {chain}")
            elif not name.strip() or not path.is_file():
                near = did_you_mean(path.name, (p.name for p in paths.beside(name, "*.yaml")))
                what = "is no path" if not name.strip() else paths.in_its_place(path)
                hint = "" if path.exists() else near
                self._fault("config_paths", where, f"expected a file, {name!r} {what}{hint}")
            elif not importing or path not in self.imported:
                # A file that several import is merged once: else it would win over the first that did.
                self.imported.add(path)
                self._merge(path, name if not importing else paths.shown(path), importing)

    def _found(self, name: str, importing: tuple[Path, ...]) -> Path:
        path = paths.locate(name)
        if not path.exists() and importing and (beside := importing[-1].parent / name).exists():
            return beside
        return path

    def _merge(self, path: Path, name: str, importing: tuple[Path, ...]) -> None:
        try:
            values, lines = documents.read(path)
        except documents.Unreadable as error:
            self._fault("", f"{name}:{error.line}" if error.line else name, error.message)
            return
        imported = values.pop("config_paths", None)
        if imported is not None:
            self._files(imported, f"{name}:{lines[('config_paths',)]}", (*importing, path))
        try:
            merged = OmegaConf.merge(self.tree, OmegaConf.create(values))
        except (OmegaConfBaseException, ValueError, TypeError) as error:
            self._fault("", name, str(error).splitlines()[0])
            return
        assert isinstance(merged, DictConfig)
        self.tree = merged
        self.origins.update({key: f"{name}:{line}" for key, line in lines.items()})

    # ---- references

    def _resolve(self, node: DictConfig | ListConfig, path: KeyPath) -> Any:
        if isinstance(node, DictConfig):
            return {key: self._leaf(node, key, (*path, str(key))) for key in node}
        return [self._leaf(node, index, (*path, str(index))) for index in range(len(node))]

    def _leaf(self, node: Any, key: Any, path: KeyPath) -> Any:
        if OmegaConf.is_missing(node, key):
            self._unresolved(path, "is required: it is still '???'")
            return MISSING
        try:
            value = node[key]
        except OmegaConfBaseException as error:
            written = node._get_node(key)._value()
            self._unresolved(path, _why_unresolved(str(written), error))
            return str(written)
        if isinstance(value, DictConfig | ListConfig):
            if len(path) > 64:
                self._unresolved(path, "refers to itself")
                return None
            return self._resolve(value, path)
        return value

    def _unresolved(self, path: KeyPath, message: str) -> None:
        self.unresolved.add(path)
        self._at(path, message)

    # ---- servers

    def _instances(self, config: dict[str, Any]) -> list[Instance]:
        found = []
        for name, value in config.items():
            kinds = [kind for kind in KINDS if isinstance(value, dict) and kind in value]
            if not kinds or name in ("job", "capture", "ray"):
                continue
            where = self.origins.get((name,), "")
            if len(kinds) > 1 or len(value) > 1:
                others = ", ".join(key for key in value if key != kinds[0])
                self._fault(name, where, f"expected {kinds[0]} alone, there is also {others}")
                continue
            kind = kinds[0]
            implementations = value[kind]
            if not isinstance(implementations, dict) or len(implementations) != 1:
                got = ", ".join(implementations) if isinstance(implementations, dict) else repr(implementations)
                where = self.origins.get((name, kind), where)
                self._fault(f"{name}.{kind}", where, f"expected one implementation, got {got or 'none'}")
                continue
            (implementation, settings), *_ = implementations.items()
            if not isinstance(settings, dict | None):
                where = self.origins.get((name, kind, implementation), where)
                self._fault(f"{name}.{kind}.{implementation}", where, f"expected a mapping, got {settings!r}")
                continue
            found.append(Instance(str(name), kind, str(implementation), settings or {}))
        return found


def _with_quotes(arg: str) -> str:
    """How an argument is said that the grammar of overrides cannot read: a path with spaces, mostly."""
    key, _, value = arg.partition("=")
    items = value[1:-1].split(",") if value[:1] == "[" and value[-1:] == "]" else None
    if "'" in value or '"' in value or not value:
        return "expected key=value, its value in quotes where it has special characters"
    like = f"[{','.join(repr(item.strip()) for item in items)}]" if items else repr(value)
    return f'expected quotes where a value has special characters: "{key}={like}"'


def _without_what_moved(config: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Without the instances whose one implementation another has inherited."""
    return {
        name: value
        for name, value in config.items()
        if not (isinstance(value, dict) and {} in value.values() and value != before.get(name))
    }


def _at(config: Any, key: KeyPath) -> Any:
    for step in key:
        config = config[step] or {}
    return config


def _flat(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {key: value}
    return {name: one for below, inner in value.items() for name, one in _flat(inner, f"{key}.{below}").items()}


def _why_unresolved(written: str, error: Exception) -> str:
    text = str(error)
    if match := re.search(r"[Ee]nvironment variable '([^']+)' not found", text):
        return f"the environment variable {match[1]} is not set ({written})"
    if match := re.search(r"Interpolation key '([^']+)' not found", text):
        key = match[1]
        return f"{written} has no value: set {key} in {ENV_FILE} or pass ++{key}=…"
    return f"{written} cannot be resolved: {text.splitlines()[0]}"
