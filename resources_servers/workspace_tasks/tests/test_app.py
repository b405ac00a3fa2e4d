"""Every task's reference earns the reward, and doing nothing does not; the limits of a check hold."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.server_utils import ServerClient
from resources_servers.workspace_tasks.app import VerifyRequest, WorkspaceTasks, WorkspaceTasksConfig
from resources_servers.workspace_tasks.data.generate import tasks

DATA = Path(__file__).parents[1] / "data" / "example.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
RESPONSE = {
    "id": "resp_1",
    "created_at": 1.0,
    "model": "m",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


def server(**settings: Any) -> WorkspaceTasks:
    return WorkspaceTasks(config=WorkspaceTasksConfig(name="env", **settings), server_client=ServerClient({}))


async def verified(row: dict[str, Any], files: dict[str, str], answer: str = "", **settings: Any) -> Any:
    body = {**row, "response": RESPONSE, "taken_files": files, "final_message": answer}
    return await server(**settings).verify(VerifyRequest.model_validate(body))


def solved(row: dict[str, Any], folder: Path) -> dict[str, str]:
    for name, text in row["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["bash", "-c", row["solution"]["command"]], cwd=folder, check=True, capture_output=True)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_data_is_what_the_generator_writes() -> None:
    assert tasks(30, 11) == ROWS
    assert len({row["task_id"] for row in ROWS}) == 30


@pytest.mark.parametrize("row", ROWS[:8], ids=lambda row: row["task_id"])
async def test_the_reference_earns_the_reward_and_nothing_does_not(row: dict[str, Any], tmp_path: Path) -> None:
    right = await verified(row, solved(row, tmp_path), row["solution"]["answer"])
    assert (right.reward, right.failed_check) == (1.0, None)
    wrong = await verified(row, row["files"], "I did nothing.")
    assert wrong.reward == 0.0
    assert wrong.failed_check


@pytest.mark.ci
@pytest.mark.parametrize("row", ROWS[8:], ids=lambda row: row["task_id"])
async def test_all_the_others_too(row: dict[str, Any], tmp_path: Path) -> None:
    assert (await verified(row, solved(row, tmp_path), row["solution"]["answer"])).reward == 1.0
    assert (await verified(row, row["files"], "I did nothing.")).reward == 0.0


async def test_a_check_that_the_agent_rewrote_does_not_count() -> None:
    row = next(row for row in ROWS if row["task_id"].startswith("fix"))
    assert (await verified(row, {**row["files"], "check.py": "print('ok')\n"})).reward == 0.0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time; time.sleep(60)", "did not end within 1 s"),
        ("x = bytearray(1 << 30)", "exits with"),
        ("raise SystemExit(3)", "exits with 3"),
        ("import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True); print(1 / 0)", "ZeroDivision"),
    ],
)
async def test_a_check_has_limits(code: str, words: str) -> None:
    row = {**ROWS[0], "checks": [{"kind": "runs", "path": "check.py"}]}
    result = await verified(
        row, {"check.py": code}, check_timeout_s=1 if "sleep(60)" in code else 20, check_memory_mb=512
    )
    assert result.reward == 0.0
    assert words in result.failed_check


@pytest.mark.parametrize(
    ("answer", "reward"), [("12345", 1.0), ("about 12345.", 1.0), ("123456", 0.0), ("x12345", 0.0)]
)
async def test_an_answer_is_a_whole_word(answer: str, reward: float) -> None:
    row = {**ROWS[0], "checks": [{"kind": "answer_has", "word": "12345"}]}
    assert (await verified(row, {}, answer)).reward == reward


async def test_a_file_outside_is_not_written(tmp_path: Path) -> None:
    row = {**ROWS[0], "checks": [{"kind": "runs", "path": "check.py"}]}
    outside = tmp_path / "outside.py"
    assert (await verified(row, {"check.py": "", str(outside): "x", "../../up.py": "x"})).reward == 1.0
    assert not outside.exists()
