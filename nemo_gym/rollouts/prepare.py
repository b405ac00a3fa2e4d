"""Data sets made ready: each row checked, repeated, named after its agent, and those of a kind put into one file.

A data set is a JSONL file; where it is not there, its `source` on the Hugging Face hub (or a folder that the `datasets`
package reads) is fetched into it first, if that is asked for. Every fault is found before anything is written.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from pydantic import ValidationError

from ..config import paths
from ..config.types import DatasetConfig
from ..dialects.responses.objects import NeMoGymResponseCreateParamsNonStreaming
from .prompts import apply_prompt_to_row, load_prompt_config

_FAULTS = 20


class PrepareError(Exception):
    """`faults`: all that is wrong, in words."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class Declared(Struct, frozen=True):
    """A data set of a configuration, and the agent that plays it."""

    agent: str
    dataset: DatasetConfig


class Prepared(Struct, frozen=True):
    kind: str
    path: str
    datasets: dict[str, int]
    """Rows of each, repeats not counted."""
    rows: int
    tools: int
    """Rows that offer tools."""
    characters: int
    """Of all inputs, as JSON."""


def declared(config: Mapping[str, Any]) -> list[Declared]:
    """The data sets of a configuration: an agent's own, and an environment's for the one agent that plays it."""
    found, players = [], dict[str, list[str]]()
    agents = [(name, settings) for name, settings in _instances(config, "responses_api_agents")]
    for name, settings in agents:
        environment = (settings.get("resources_server") or {}).get("name")
        players.setdefault(str(environment), []).append(name)
        found += [Declared(name, DatasetConfig.model_validate(entry)) for entry in settings.get("datasets") or ()]
    for name, settings in _instances(config, "resources_servers"):
        for entry in settings.get("datasets") or ():
            dataset, named = DatasetConfig.model_validate(entry), entry.get("agent")
            players_of = [named] if named else players.get(name, [])
            if len(players_of) != 1:
                some = ", ".join(players_of) or "none"
                raise PrepareError(
                    [f"{name}.datasets.{dataset.name}: expected one agent that plays {name}, there is {some}"]
                )
            found.append(Declared(players_of[0], dataset))
    return found


def prepare(sets: Iterable[Declared], output: Path, kinds: Iterable[str], download: bool = False) -> list[Prepared]:
    """Writes `<output>/<kind>.jsonl` and `<kind>_metrics.json` for each kind that there are data sets of.

    Raises:
        PrepareError: with all faults; then nothing was written.
    """
    sets = [one for one in sets if one.dataset.type in set(kinds)]
    faults: list[str] = []
    for one in sets:
        missing = download and not paths.locate(one.dataset.jsonl_fpath).exists()
        faults += (_fetch(one.dataset) if missing else ()) or _faults(one)
    if faults:
        raise PrepareError(faults)
    if sets:
        output.mkdir(parents=True, exist_ok=True)
    return [_collated(kind, group, output) for kind, group in _by_kind(sets).items()]


def _instances(config: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, value in config.items():
        for settings in (value.get(kind) or {}).values() if isinstance(value, Mapping) else ():
            yield name, settings or {}


def _by_kind(sets: Iterable[Declared]) -> dict[str, list[Declared]]:
    groups: dict[str, list[Declared]] = {}
    for one in sets:
        groups.setdefault(one.dataset.type, []).append(one)
    return groups


def _faults(one: Declared) -> Iterator[str]:
    path = paths.locate(one.dataset.jsonl_fpath)
    where = f"{one.agent}.datasets.{one.dataset.name}"
    if not path.is_file():
        hint = " (its source can be fetched: +should_download=true)" if _source(one.dataset) else ""
        yield f"{where}: {paths.shown(path)} does not exist{hint}"
        return
    count = 0
    for number, line in _lines(path):
        fault = _row_fault(line, one.dataset)
        if fault is not None:
            count += 1
            if count <= _FAULTS:
                yield f"{paths.shown(path)}:{number}: {fault}"
    if count > _FAULTS:
        yield f"{paths.shown(path)}: {count - _FAULTS} further rows have faults"
    if not any(True for _ in _lines(path)):
        yield f"{where}: {paths.shown(path)} has no rows"


def _row_fault(line: str, dataset: DatasetConfig) -> str | None:
    try:
        _ready(line, dataset)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return f"responses_create_params.{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (ValueError, KeyError, RecursionError) as error:
        return str(error.args[0]) if error.args else type(error).__name__
    return None


def _ready(line: str, dataset: DatasetConfig) -> dict[str, Any]:
    """A row that can be run, its prompt filled in."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got {type(row).__name__}")
    prompt = (dataset.model_extra or {}).get("prompt_config")
    if prompt:
        if (row.get("responses_create_params") or {}).get("input"):
            raise ValueError("responses_create_params.input: the data set has a prompt_config, so a row must have none")
        row = apply_prompt_to_row(row, load_prompt_config(str(prompt)))
    params = row.get("responses_create_params")
    if params is None:
        raise ValueError("responses_create_params: is missing")
    if not isinstance(params, dict):
        raise ValueError(f"responses_create_params: expected a JSON object, got {type(params).__name__}")
    NeMoGymResponseCreateParamsNonStreaming.model_validate(row["responses_create_params"])
    return row


def _collated(kind: str, group: list[Declared], output: Path) -> Prepared:
    path = output / f"{kind}.jsonl"
    counts, rows, tools, characters = Counter[str](), 0, 0, 0
    part = path.with_suffix(".jsonl.part")
    with part.open("w", encoding="utf-8") as file:
        for one in group:
            for _, line in _lines(paths.locate(one.dataset.jsonl_fpath)):
                row = _ready(line, one.dataset)
                row["agent_ref"] = {"type": "responses_api_agents", "name": one.agent}
                text = json.dumps(row, ensure_ascii=False)
                counts[one.dataset.name] += 1
                tools += bool(row["responses_create_params"].get("tools"))
                characters += len(json.dumps(row["responses_create_params"]["input"], ensure_ascii=False))
                for _ in range(one.dataset.num_repeats):
                    file.write(text + "\n")
                    rows += 1
    os.replace(part, path)
    made = Prepared(kind, str(path), dict(counts), rows, tools, characters)
    figures = {"datasets": made.datasets, "rows": rows, "rows_with_tools": tools, "input_characters": characters}
    (output / f"{kind}_metrics.json").write_text(json.dumps(figures, indent=2) + "\n")
    return made


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())


# ---- data sets that are elsewhere


def _source(dataset: DatasetConfig) -> Mapping[str, Any] | None:
    """Where on the hub it is, by either of the two keys that say so."""
    more = dataset.model_extra or {}
    source = more.get("source") or {}
    if source.get("type") == "huggingface" or more.get("huggingface_identifier"):
        return source or more["huggingface_identifier"]
    return None


def _place(file: str) -> Path:
    """Where a file is to be that is nowhere yet: in the environment's own folder, where that is."""
    for folder in Path(file).parents:
        if len(folder.parts) > 1 and paths.locate(folder).is_dir():
            return paths.locate(folder) / Path(file).relative_to(folder)
    return paths.absolute(file)


def _fetch(dataset: DatasetConfig) -> list[str]:
    """Writes the data set's file from its source; gives what went wrong."""
    source = _source(dataset)
    if source is None:
        return []
    try:
        import datasets
    except ImportError:
        return [f"{dataset.name}: needs the datasets package: pip install 'nemo-gym[export]'"]
    path = _place(dataset.jsonl_fpath)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    repo, file = str(source.get("repo_id")), source.get("artifact_fpath")
    split = source.get("split") or {"validation": "validation", "train": "train"}.get(dataset.type, "train")
    try:
        rows = datasets.load_dataset(repo, data_files=file, split="train" if file else split)
        with part.open("w", encoding="utf-8") as out:
            for row in rows:
                out.write(json.dumps({key: value for key, value in row.items() if value is not None}) + "\n")
    except Exception as error:  # the package raises many kinds, of many libraries
        return [f"{dataset.name}: {repo} cannot be fetched: {type(error).__name__}: {error}"]
    os.replace(part, path)
    return []
