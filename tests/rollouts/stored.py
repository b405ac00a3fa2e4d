"""Stored rollouts, as a job writes them, for tests that read results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def message(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": content, **more}


def call(name: str, arguments: str, call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id, "id": "f"}


def output(text: str, call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def row(
    task: int, repeat: int, reward: float, items: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"Task {task}?"}]},
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        "_ng_rollout_id": f"run-{task}-{repeat}",
        "agent_ref": {"type": "responses_api_agents", "name": "agent"},
        "response": {
            "output": items if items is not None else [message("Four.")],
            "usage": {"input_tokens": 10 + task, "output_tokens": 2 + repeat, "total_tokens": 12 + task + repeat},
        },
        "reward": reward,
        "_ng_rollout": {"started": 1000.0 + task, "seconds": 1.5 + repeat, "calls": 1, "incomplete": None},
        **more,
    }


def write(folder: Path, rows: Iterable[dict[str, Any]], **manifest: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    if manifest:
        (folder / "manifest.json").write_text(json.dumps({"run_id": "run", "identity": {}} | manifest))
    return folder


def run_of(folder: Path, rewards: dict[int, list[float]], **more: Any) -> Path:
    """A job's folder with these rewards by task."""
    return write(
        folder, [row(task, n, reward, **more) for task, own in rewards.items() for n, reward in enumerate(own)]
    )
