"""Rows held to the fields that a server declares in its `task_data.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.task_data import (
    TaskDataSchemaError,
    TaskDataValidator,
    find_server_dir,
    load_task_data_schema,
    normalize_task_fields,
    validate_jsonl_rows,
)
from nemo_gym.task_materialization import materialize_task

SCHEMA = """from pydantic import BaseModel, ConfigDict, Field

class TaskData(BaseModel):
    model_config = ConfigDict(extra="allow")
    answer: str
    unit: str = Field("", json_schema_extra={"legacy_location": "verifier_metadata"})
"""
PARAMS = {"responses_create_params": {"input": "?"}, "_ng_task_index": 0, "agent_ref": {"name": "a"}}


@pytest.fixture
def server(tmp_path: Path) -> Path:
    (tmp_path / "task_data.py").write_text(SCHEMA)
    return tmp_path


def test_fields_are_read_from_wherever_they_are() -> None:
    for row in ({"answer": "4"}, {"verifier_metadata": {"answer": "4"}}, {"task_data": {"answer": "4"}}):
        assert normalize_task_fields({**PARAMS, **row}) == ({"answer": "4"}, [])
    both = {"answer": "4", "verifier_metadata": {"answer": "5", "unit": "m"}}
    assert normalize_task_fields(both) == ({"answer": "4", "unit": "m"}, ["answer"])
    assert normalize_task_fields({"answer": "4", "verifier_metadata": {"answer": "4"}}) == ({"answer": "4"}, [])
    assert normalize_task_fields({"verifier_metadata": "text"}) == ({"verifier_metadata": "text"}, [])
    assert normalize_task_fields({"task_data": None}) == ({}, [])


def test_what_is_found_in_a_data_set(server: Path) -> None:
    rows: list[Any] = [
        {**PARAMS, "answer": "4"},
        {**PARAMS, "answer": "4", "hint": "x"},
        {**PARAMS, "answer": 4},
        {**PARAMS, "answer": "4", "unit": "m"},
        {**PARAMS, "answer": "4", "verifier_metadata": {"answer": "5", "unit": "m"}},
        materialize_task({**PARAMS, "answer": "4", "hint": "y"}, taskset="t"),
        {"task_id": {"taskset": "t", "task_id": "1"}, "task_input": {"task_data": []}},
    ]
    lines = ["\n", *(json.dumps(row) + "\n" for row in rows)]
    adapter = load_task_data_schema(server)
    assert adapter is not None
    report = validate_jsonl_rows("sums", adapter, "data.jsonl", lines)
    assert (report.rows, report.error_rows, report.clean) == (7, 2, False)
    assert report.errors[0].startswith("3: 1 validation error")
    assert report.errors[1] == "7: task_input.task_data must be an object, got list"
    assert report.unknown_keys == {"hint": 2}
    assert report.misplaced_keys == {"unit": 1}
    assert report.conflicting_keys == {"answer": 1}
    said = report.summary()
    assert said.startswith("data.jsonl: 2 of 7 rows do not fit the tasks of sums")
    assert "hint (2 rows)" in said and "unit (1 rows)" in said


def test_a_clean_one_is_clean(server: Path) -> None:
    adapter = load_task_data_schema(server)
    assert adapter is not None
    validator = TaskDataValidator("sums", adapter, "data.jsonl")
    for index in range(3):
        validator.validate_row(index, {**PARAMS, "verifier_metadata": {"answer": "4", "unit": "m"}})
    assert validator.report.clean and validator.report.rows == 3


def test_errors_are_told_up_to_a_few(server: Path) -> None:
    adapter = load_task_data_schema(server)
    assert adapter is not None
    report = validate_jsonl_rows("sums", adapter, "d", (json.dumps({"answer": n}) for n in range(9)))
    assert (report.error_rows, len(report.errors)) == (9, 5)
    assert report.summary().endswith("and 4 rows more")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module\n", "cannot be imported: ModuleNotFoundError"),
        ("x = 1\n", "does not export TaskData"),
        ("class TaskData: ...\n", "no schema of pydantic"),
    ],
)
def test_a_declaration_that_cannot_be_used(tmp_path: Path, source: str, message: str) -> None:
    assert load_task_data_schema(tmp_path) is None
    (tmp_path / "task_data.py").write_text(source)
    with pytest.raises(TaskDataSchemaError, match=message):
        load_task_data_schema(tmp_path)


def test_where_a_server_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resources_servers" / "elsewhere").mkdir(parents=True)
    assert find_server_dir("elsewhere") is None
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    assert find_server_dir("elsewhere") == tmp_path / "resources_servers" / "elsewhere"
