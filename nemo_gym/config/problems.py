"""Every fault of a configuration at once, found without starting anything.

A server's settings are checked by its own config class, which its entrypoint names. Each fault says which key, which
file and line, and what was expected, and never shows a secret.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from . import paths
from .compose import MISSING, Composed, Instance, KeyPath
from .faults import Problem, did_you_mean
from .secrets import secret_name
from .servers import EntrypointError, NotInstalled, config_class
from .types import KINDS, CaptureConfig, ClusterConfig, JobConfig, ServerRef, is_loopback
from .unknown import misspelt

__all__ = ["Problem", "find_problems"]

TOP_LEVEL = ("job", "capture", "ray", "config_paths")

_MADE_FROM = frozenset({"source", "gitlab_identifier", "huggingface_identifier", "prepare_script"})
"""What a data set has whose file is fetched or made first."""

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "model_attributes": "a mapping",
    "url": "a URL",
}


def find_problems(composed: Composed) -> list[Problem]:
    """All faults of a composed configuration; nothing but how it was put together when a part could not be read."""
    if not composed.complete:
        return composed.problems
    return [*composed.problems, *_Search(composed).all()]


def nothing_is_said(composed: Composed) -> Problem:
    """Of a configuration without a key: what it lacks."""
    if not composed.files:
        return Problem("", "", 'nothing is configured: pass "+config_paths=[configs/quickstart.yaml]" or the like')
    has = "has" if len(composed.files) == 1 else "have"
    return Problem("", ", ".join(composed.files), f"{has} no keys: expected servers, each under a name of its own")


def find_job_problems(composed: Composed) -> list[Problem]:
    """The faults of the job alone, for servers that are up already."""
    if composed.problems:
        return composed.problems
    return list(_Search(composed).job_itself())


class _Search:
    def __init__(self, composed: Composed) -> None:
        self.composed = composed
        self.named = {instance.name: instance for instance in composed.instances}

    def all(self) -> Iterator[Problem]:
        yield from self.top_level()
        for instance in self.composed.instances:
            yield from self.server(instance)
        yield from self.ports()
        yield from self.job()
        yield from self.capture()
        yield from self.model(ClusterConfig, ("ray",), self.composed.config.get("ray"))

    @property
    def on_cluster(self) -> bool:
        """Whether servers are placed on other machines: this one's addresses and keys are not theirs."""
        ray = self.composed.config.get("ray")
        return isinstance(ray, dict) and ray.get("address", "local") != "local"

    def problem(self, key: KeyPath, message: str) -> Problem:
        return Problem(".".join(key), self.composed.origin(key), message)

    # ---- the top level

    def top_level(self) -> Iterator[Problem]:
        if not self.composed.config:
            yield nothing_is_said(self.composed)
        written = repr(self.composed.written)
        for name, value in self.composed.config.items():
            if name in self.named or name in TOP_LEVEL or re.search(rf"\$\{{{re.escape(str(name))}\b", written):
                continue
            if isinstance(value, dict) and not any(kind in value for kind in KINDS):
                for key in value:
                    if near := _near(str(key), KINDS):
                        yield self.problem((name, str(key)), f"is no kind of server; did you mean {near!r}?")
            if isinstance(value, dict) and "environment_servers" in value:
                continue  # NeMo Gym's relay in front of an agent: agents are called directly here
            if near := _near(name, (*TOP_LEVEL, *self.named)):
                yield self.problem((name,), f"is used by nothing; did you mean {near!r}?")

    # ---- one server

    def server(self, instance: Instance) -> Iterator[Problem]:
        settings = instance.settings
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", instance.name):
            yield self.problem(instance.key[:1], "expected a name of letters, digits, '.', '_' and '-'")
        try:
            wanted: type[BaseModel] | None = config_class(
                instance.kind, instance.implementation, settings.get("entrypoint", "app.py")
            )
        except NotInstalled:
            wanted = None
        except EntrypointError as error:
            below = ("entrypoint",) if error.about_file and "entrypoint" in settings else ()
            yield self.problem((*instance.key, *below), str(error))
            return
        settings = {"host": "127.0.0.1", "port": 1, **settings, "name": instance.name}
        if wanted is not None:
            yield from self.model(wanted, instance.key, settings)
            for slip, meant in misspelt(wanted, settings):
                yield self.problem((*instance.key, slip), f"is not a known key; did you mean {meant!r}?")
            settings = _default_references(wanted) | settings
        yield from self.references(instance.key, settings)
        yield from self.addresses(instance)
        yield from self.exposure(instance)
        yield from self.files(instance)

    def model(self, wanted: type[BaseModel], key: KeyPath, value: Any) -> Iterator[Problem]:
        """What pydantic says of `value`, in words about keys."""
        if value is None:
            return
        try:
            wanted.model_validate(value)
            return
        except ValidationError as error:
            faults = error.errors(include_url=False)
        gathered: dict[KeyPath, list[Mapping[str, Any]]] = {}
        for fault in faults:
            below = _written_part(fault["loc"], value, fault["type"] in ("missing", "extra_forbidden"))
            gathered.setdefault((*key, *below), []).append(fault)
        unknown = any(path[: len(key)] == key for path in self.composed.unresolved)
        for where, found in gathered.items():
            if where == key and unknown:
                continue  # what is wrong with the whole cannot be told before each part has its value
            if not any(where[: len(path)] == path for path in self.composed.unresolved):
                yield self.problem(where, words(wanted, where[len(key) :], found))

    def references(self, key: KeyPath, value: Any) -> Iterator[Problem]:
        """Servers that are named as `{type, name}` must be there, and of that type."""
        if isinstance(value, list):
            value = dict(enumerate(value))
        if not isinstance(value, dict):
            return
        kind, name = value.get("type"), value.get("name")
        if kind in KINDS and isinstance(name, str):
            yield from self.reference((*key, "name"), kind, name)
        for below, inner in value.items():
            yield from self.references((*key, str(below)), inner)

    def reference(self, key: KeyPath, kind: str, name: str) -> Iterator[Problem]:
        if name == MISSING or key in self.composed.unresolved:
            return
        target = self.named.get(name)
        if target is None:
            known = [other.name for other in self.named.values() if other.kind == kind]
            hint = did_you_mean(name, known) if known else f"; none is configured: {kind}/*/configs has some"
            yield self.problem(key, f"there is no server {name!r} of {kind}{hint}")
        elif target.kind != kind:
            yield self.problem(key, f"expected one of {kind}, {name!r} is one of {target.kind}")

    def addresses(self, instance: Instance) -> Iterator[Problem]:
        urls = instance.settings.get("base_url")
        for index, url in enumerate(urls if isinstance(urls, list) else [urls]):
            key = (*instance.key, "base_url", *([str(index)] if isinstance(urls, list) else []))
            if not isinstance(url, str) or key in self.composed.unresolved or url == MISSING:
                continue
            if not re.match(r"https?://[^/\s]+", url):
                yield self.problem(key, f"expected a URL that begins with http:// or https://, got {url!r}")

    def exposure(self, instance: Instance) -> Iterator[Problem]:
        """A model server that other machines can reach needs keys, or the word that it needs none."""
        settings = instance.settings
        host = settings.get("host") or "127.0.0.1"
        if self.on_cluster:
            return  # each server of the run has the run's key
        if instance.kind == "responses_api_models" and isinstance(host, str) and not is_loopback(host):
            if settings.get("api_keys") or settings.get("allow_unauthenticated") is True:
                return
            reach = f"{host} can be reached from other machines"
            yield self.problem(
                (*instance.key, "host"), f"{reach}: expected api_keys beside it, or allow_unauthenticated: true"
            )

    def files(self, instance: Instance) -> Iterator[Problem]:
        datasets = instance.settings.get("datasets")
        for index, dataset in enumerate(datasets if isinstance(datasets, list) else ()):
            file = dataset.get("jsonl_fpath") if isinstance(dataset, dict) else None
            if isinstance(file, str) and dataset.get("type") == "example" and not _MADE_FROM & dataset.keys():
                yield from self.readable((*instance.key, "datasets", str(index), "jsonl_fpath"), file)
        model = instance.settings.get("model")
        if instance.implementation.startswith("local_") and isinstance(model, str) and model != MISSING:
            yield from self.model_folder((*instance.key, "model"), model)

    def readable(self, key: KeyPath, file: str) -> Iterator[Problem]:
        path = paths.locate(file)
        if file.strip() and not path.is_file():
            near = did_you_mean(path.name, (p.name for p in paths.beside(file, f"*{path.suffix}")))
            yield self.problem(
                key, f"expected a file, {file!r} {paths.in_its_place(path)}{'' if path.exists() else near}"
            )

    def model_folder(self, key: KeyPath, model: str) -> Iterator[Problem]:
        path = paths.locate(model)
        if path.is_dir():
            if not (path / "config.json").is_file():
                yield self.problem(key, f"expected a model's folder, {model!r} has no config.json")
        elif path.exists():
            yield self.problem(key, f"expected a model's folder, {model!r} is a file")
        elif _means_a_folder(model):
            near = did_you_mean(path.name, (p.name for p in paths.beside(model) if p.is_dir()))
            yield self.problem(key, f"expected a model's folder, {model!r} does not exist{near}")

    def capture(self) -> Iterator[Problem]:
        said = self.composed.config.get("capture")
        yield from self.model(CaptureConfig, ("capture",), said)
        folder = said.get("dir") if isinstance(said, dict) and said.get("enabled") is not False else None
        if not isinstance(folder, str) or not folder.strip() or self.on_cluster or "\0" in folder:
            return
        if fault := paths.no_folder(paths.absolute(folder)):
            yield self.problem(("capture", "dir"), fault)

    # ---- ports

    def ports(self) -> Iterator[Problem]:
        taken: dict[int, str] = {}
        for instance in self.composed.instances:
            host, port = instance.settings.get("host", "127.0.0.1"), instance.settings.get("port")
            if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536 or not isinstance(host, str):
                continue
            key = (*instance.key, "port")
            if port in taken:
                if not self.on_cluster:
                    yield self.problem(key, f"expected a free port, {taken[port]} is given {port} too")
            elif not self.on_cluster and (fault := bind_fault(host, port)):
                yield self.problem(key, fault)
            taken.setdefault(port, instance.name)

    # ---- the job

    def job(self) -> Iterator[Problem]:
        yield from self.job_itself()
        job = self.composed.config.get("job")
        if not isinstance(job, dict):
            return
        for key, part in _parts(job):
            for name in ("agent", "agent_name"):
                named = part.get(name)
                if isinstance(named, str):
                    yield from self.reference((*key, name), "responses_api_agents", named)
                for place, one in enumerate(named if isinstance(named, list) else ()):
                    if isinstance(one, str):
                        yield from self.reference((*key, name, str(place)), "responses_api_agents", one)

    def job_itself(self) -> Iterator[Problem]:
        job = self.composed.config.get("job")
        yield from self.model(JobConfig, ("job",), job)
        if not isinstance(job, dict):
            return
        for key, part in _parts(job):
            for name in ("input", "input_jsonl_fpath"):
                if isinstance(part.get(name), str) and (*key, name) not in self.composed.unresolved:
                    yield from self.readable((*key, name), part[name])


def _default_references(wanted: type[BaseModel]) -> dict[str, Any]:
    """The servers that a class names where nothing else is said."""
    fields = wanted.model_fields.items()
    return {name: dict(field.default) for name, field in fields if isinstance(field.default, ServerRef)}


def _parts(job: dict[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """The job itself and each of its datasets, where something is said of agents and files."""
    yield ("job",), job
    datasets = job.get("datasets")
    for place, part in enumerate(datasets if isinstance(datasets, list) else ()):
        if isinstance(part, dict):
            yield ("job", "datasets", str(place)), part


def bind_fault(host: str, port: int) -> str:
    """Why this address cannot be listened on; empty when it can."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(1)
    except socket.gaierror:
        return f"the host {host!r} is not known"
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"expected a free port, {port} on {host} is in use"
        return f"cannot listen on {host}:{port}: {error.strerror}"
    return ""


def _near(word: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.8)), None)


def _means_a_folder(model: str) -> bool:
    """`org/name` may be a hub's name; everything else that has a slash, or whose first part is here, is a path."""
    first, *rest = Path(model).parts or ("",)
    return model.startswith((".", "~", "/")) or len(rest) != 1 or paths.locate(first).is_dir()


def _written_part(loc: Iterable[str | int], value: Any, one_more: bool) -> tuple[str, ...]:
    """The part of pydantic's location that is in the configuration; the rest names its own unions and classes."""
    found: list[str] = []
    for step in loc:
        inside = step in value if isinstance(value, dict) else isinstance(value, list) and step in range(len(value))
        if inside:
            value = value[step]
        elif one_more and isinstance(value, dict) and isinstance(step, str) and "[" not in step:
            return (*found, step)
        else:
            break
        found.append(str(step))
    return tuple(found)


def words(wanted: type[BaseModel], key: KeyPath, faults: Sequence[Mapping[str, Any]]) -> str:
    """What pydantic says of one key of `wanted`, for whoever wrote it."""
    first = faults[0]
    if first["type"] == "missing":
        return "is required"
    if first["type"] == "extra_forbidden":
        known = _keys(wanted) if len(key) == 1 else ()
        return "is not a known key" + did_you_mean(key[-1], known)
    name = key[-1] if key else ""
    expected = list(dict.fromkeys(_expected(fault, name) for fault in faults))
    if None in expected:
        return str(first["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    got = "" if any(secret_name(part) for part in key) else f", got {_short(first['input'])}"
    return f"expected {' or '.join(str(e) for e in expected)}{got}"


def _expected(fault: Mapping[str, Any], name: str) -> str | None:
    """What would have been right, in plain words; None when pydantic's own message says it better."""
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in ("literal_error", "enum"):
        return str(context["expected"])
    if kind in ("value_error", "assertion_error"):
        return None
    limits = {"greater_than": "more than", "greater_than_equal": "at least", "less_than": "less than"}
    limits["less_than_equal"] = "at most"
    if kind in limits:
        (bound,) = context.values()
        return f"{limits[kind]} {bound}"
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    if stem == "string" and name.endswith("url"):
        return "a URL"
    return _EXPECTED.get(stem, str(fault["msg"]).removeprefix("Input should be "))


def _keys(wanted: type[BaseModel]) -> set[str]:
    return set(wanted.model_fields) - {"name"}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
