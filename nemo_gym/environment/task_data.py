"""The fields that a server's tasks have, as its `task_data.py` declares them, and data sets held to that.

`task_data.py` exports `TaskData`, a pydantic model (or a union of some) of the fields alone: a row may have them flat,
under `verifier_metadata` or under `task_data`, and they are read from wherever they are. It imports nothing that would
have to be installed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..config.paths import _resolve_under_cwd_or_install
from ..config.rows import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, TASK_SOURCE_KEY_NAME
from .episodes import is_materialized_task_row

TASK_DATA_MODULE_NAME = "task_data"
TASK_DATA_EXPORT_NAME = "TaskData"
TASK_DATA_ROW_KEY = "task_data"
LEGACY_METADATA_KEY = "verifier_metadata"
RESERVED_ROW_KEYS = frozenset(
    {
        *("responses_create_params", AGENT_REF_KEY_NAME, TASK_SOURCE_KEY_NAME),
        *(TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME),
    }
)
"""Keys of a row that are no task's own."""
_ERRORS = 5
_WORDS = 400


class TaskDataSchemaError(Exception):
    """A `task_data.py` that is there and cannot be used."""


def find_server_dir(server_name: str, base_folder: str = "resources_servers") -> Path | None:
    folder = _resolve_under_cwd_or_install(Path(base_folder) / server_name, validator=Path.is_dir)
    return folder if folder.is_dir() else None


def load_task_data_schema(server_dir: Path) -> TypeAdapter[Any] | None:
    """What reads the fields of this server's tasks; None where it declares none. Raises TaskDataSchemaError."""
    path = server_dir / f"{TASK_DATA_MODULE_NAME}.py"
    if not path.is_file():
        return None
    module = _loaded(path, f"nemo_gym_task_data.{server_dir.name}")
    declared = getattr(module, TASK_DATA_EXPORT_NAME, None)
    if declared is None:
        raise TaskDataSchemaError(
            f"{path} does not export {TASK_DATA_EXPORT_NAME}, a pydantic model or a union of some"
        )
    try:
        return TypeAdapter(declared)
    except Exception as error:
        raise TaskDataSchemaError(f"{path}: {TASK_DATA_EXPORT_NAME} is no schema of pydantic: {error}") from error


def _loaded(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TaskDataSchemaError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def normalize_task_fields(row: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A row's own fields, flat, and the names of those that have two different values; the outer one is kept."""
    fields = {key: value for key, value in row.items() if key not in RESERVED_ROW_KEYS}
    conflicts: list[str] = []
    for holder in (LEGACY_METADATA_KEY, TASK_DATA_ROW_KEY):
        if isinstance(fields.get(holder), dict):
            conflicts += _spread(fields, fields.pop(holder))
        elif holder in fields and fields[holder] is None:
            del fields[holder]
    return fields, conflicts


def _spread(fields: dict[str, Any], held: Mapping[str, Any]) -> list[str]:
    conflicts = [key for key, value in held.items() if key in fields and fields[key] != value]
    for key, value in held.items():
        fields.setdefault(key, value)
    return conflicts


def legacy_metadata_fields(adapter: TypeAdapter[Any]) -> frozenset[str]:
    """The fields that the server finds under `verifier_metadata` alone (`legacy_location`)."""
    return frozenset(
        name
        for model in _models(getattr(adapter, "_type", None))
        for name, field in model.model_fields.items()
        if isinstance(field.json_schema_extra, dict)
        and field.json_schema_extra.get("legacy_location") == LEGACY_METADATA_KEY
    )


def _models(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for inner in get_args(kind) for model in _models(inner)]


class TaskDataValidationReport:
    """What was found in one data set. Counts are of rows, by key."""

    MAX_RECORDED_ERRORS = _ERRORS

    def __init__(self, server_name: str, dataset_fpath: str) -> None:
        self.server_name = server_name
        self.dataset_fpath = dataset_fpath
        self.rows = 0
        self.error_rows = 0
        self.errors: list[str] = []
        self.unknown_keys: dict[str, int] = Counter()
        self.conflicting_keys: dict[str, int] = Counter()
        self.misplaced_keys: dict[str, int] = Counter()

    @property
    def clean(self) -> bool:
        return not (self.error_rows or self.unknown_keys or self.conflicting_keys or self.misplaced_keys)

    def refuse(self, row: int, reason: str) -> None:
        self.error_rows += 1
        if len(self.errors) < self.MAX_RECORDED_ERRORS:
            self.errors.append(f"{row}: {reason[:_WORDS]}")

    def summary(self) -> str:
        head = f"{self.dataset_fpath}: {self.error_rows} of {self.rows} rows do not fit the tasks of {self.server_name}"
        found = [head, *(f"  row {error}" for error in self.errors)]
        if self.error_rows > len(self.errors):
            found.append(f"  and {self.error_rows - len(self.errors)} rows more")
        for words, keys in (
            (f"two values, one of them in {LEGACY_METADATA_KEY}", self.conflicting_keys),
            (f"the server reads them from {LEGACY_METADATA_KEY} alone", self.misplaced_keys),
            ("not declared", self.unknown_keys),
        ):
            if keys:
                found.append(f"  {words}: " + ", ".join(f"{key} ({count} rows)" for key, count in sorted(keys.items())))
        return "\n".join(found)


class TaskDataValidator:
    """Holds the rows of one data set to a schema; `report` says what was found."""

    def __init__(self, server_name: str, adapter: TypeAdapter[Any], dataset_fpath: str) -> None:
        self.report = TaskDataValidationReport(server_name, dataset_fpath)
        self._adapter = adapter
        self._inner = legacy_metadata_fields(adapter)

    def validate_row(self, row_index: int, row: Mapping[str, Any]) -> None:
        report = self.report
        report.rows += 1
        moved = TASK_DATA_ROW_KEY in row
        if is_materialized_task_row(row):
            given = row["task_input"]
            held = given.get(TASK_DATA_ROW_KEY, {}) if isinstance(given, Mapping) else {}
            for place, value in (("task_input", given), ("task_input.task_data", held)):
                if not isinstance(value, Mapping):
                    report.refuse(row_index, f"{place} must be an object, got {type(value).__name__}")
                    return
            row, moved = given, TASK_DATA_ROW_KEY in given
        if not moved:
            nested = row.get(LEGACY_METADATA_KEY)
            self._count(report.misplaced_keys, (row.keys() & self._inner) - set(nested or ()))
        fields, conflicts = normalize_task_fields(row)
        self._count(report.conflicting_keys, conflicts)
        try:
            read = self._adapter.validate_python(fields)
        except ValidationError as error:
            report.refuse(row_index, str(error).strip().replace("\n", "; "))
            return
        self._count(report.unknown_keys, (getattr(read, "model_extra", None) or {}) if read is not None else ())

    @staticmethod
    def _count(counts: dict[str, int], keys: Iterable[str]) -> None:
        for key in keys:
            counts[key] = counts.get(key, 0) + 1


def validate_jsonl_rows(
    server_name: str, adapter: TypeAdapter[Any], dataset_fpath: str, lines: Iterable[str]
) -> TaskDataValidationReport:
    validator = TaskDataValidator(server_name, adapter, dataset_fpath)
    for index, line in enumerate(lines):
        if line.strip():
            validator.validate_row(index, json.loads(line))
    return validator.report
