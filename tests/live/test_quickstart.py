"""The main job with everything real: Ray, vLLM, the embedded model, an agent, an environment, captures, an export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from nemo_gym.capture import CaptureStore

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def run(*argv: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / argv[0], *argv[1:]], cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("quickstart")
    ended = run("ng_run", "+config_paths=[configs/quickstart.yaml]", f"++job.output={output}")
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    (output / "stdout").write_text(ended.stdout + ended.stderr)
    return output


@pytest.fixture(scope="module")
def rows(job: Path) -> list[dict[str, Any]]:
    files = sorted((job / "exports" / "token_rows").rglob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_every_rollout_is_there_with_mixed_rewards(job: Path) -> None:
    rollouts = [json.loads(line) for line in (job / "rollouts.jsonl").read_text().splitlines()]
    assert len(rollouts) >= 32 * 4
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rollouts}) == len(rollouts)
    mean = sum(row["reward"] for row in rollouts) / len(rollouts)
    assert 0.05 < mean < 0.95
    kinds = [item["type"] for row in rollouts for item in row["response"]["output"]]
    assert "function_call_output" in kinds
    assert any("generation_token_ids" in item for row in rollouts for item in row["response"]["output"])
    metrics = json.loads((job / "metrics.json").read_text())
    assert json.dumps(metrics)  # no NaN or infinity came through


def test_the_summary_is_for_a_person(job: Path) -> None:
    printed = (job / "stdout").read_text().lower()
    for word in ("reward", "pass@1", "pass@4", "tokens", "calls", "rollouts.jsonl", "captures", "exports"):
        assert word in printed, word


def test_the_capture_verifies_and_is_token_exact(job: Path) -> None:
    checked = run("ng_captures", "verify", str(job / "captures"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    calls = list(CaptureStore(job / "captures").calls())
    assert len(calls) >= 2 * 32
    for call in calls:
        assert (call.status, call.logprobs_mode) == ("answered", "processed")
        assert call.reply is not None and call.reply.prompt_ids
        for choice in call.reply.choices:
            assert choice.tokens is not None and choice.tokens.ids is not None and choice.tokens.logprobs is not None
            assert len(choice.tokens.ids) == len(choice.tokens.logprobs) > 0


def test_a_second_turn_begins_with_the_first_turns_tokens(job: Path) -> None:
    calls = {call.call_id: call for call in CaptureStore(job / "captures").calls()}
    turns = [call for call in calls.values() if call.relation == "turn"]
    assert turns
    for call in turns:
        parent = calls[call.parent_call_id]
        earlier = list(parent.reply.prompt_ids) + list(parent.reply.choices[0].tokens.ids)
        assert list(call.reply.prompt_ids[: len(earlier)]) == earlier
        assert (call.history, call.prefix_break) == ("exact", None)


def test_the_export_opens_in_datasets(job: Path, rows: list[dict[str, Any]]) -> None:
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(job / "exports" / "token_rows"), split="train", cache_dir=str(job / "hf"))
    assert loaded.num_rows == len(rows)
    assert loaded[0]["input_ids"] == rows[0]["input_ids"]


def recomputed(rows: list[dict[str, Any]]) -> list[np.ndarray]:
    """Log-probs of `input_ids[1:]` by transformers, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(ROOT / "models" / "tiny_policy", dtype=torch.float32).eval()
    found = []
    for start in range(0, len(rows), 32):
        lengths = [len(row["input_ids"]) for row in rows[start : start + 32]]
        # Padding behind a row changes nothing before it: attention looks only back.
        ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        for number, row in enumerate(rows[start : start + 32]):
            ids[number, : lengths[number]] = torch.tensor(row["input_ids"])
        with torch.no_grad():
            logprobs = model(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]
        found += [logprobs[number, : length - 1].numpy() for number, length in enumerate(lengths)]
    return found


def largest_difference(rows: list[dict[str, Any]], expected: list[np.ndarray], shift: int = 0) -> float:
    worst = 0.0
    for row, logprobs in zip(rows, expected, strict=True):
        mask = np.array(row["loss_mask"][1:], bool)
        captured = np.roll(np.array(row["logprobs"][1:], np.float32), shift)
        worst = max(worst, float(np.abs(captured - logprobs)[mask].max(initial=0.0)))
    return worst


def test_trained_log_probs_are_those_of_the_model(rows: list[dict[str, Any]]) -> None:
    assert sum(sum(row["loss_mask"]) for row in rows) > 1000
    expected = recomputed(rows)
    assert largest_difference(rows, expected) < 0.005
    # The same comparison must be able to fail: shifted by one token, it does.
    assert largest_difference(rows, expected, shift=1) > 0.5


def test_rows_are_whole(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        lengths = {len(row[name]) for name in ("input_ids", "loss_mask", "logprobs", "policy_version")}
        assert len(lengths) == 1
        assert all(logprob == 0.0 for logprob, mask in zip(row["logprobs"], row["loss_mask"], strict=True) if not mask)
        assert row["complete"] is True
        assert row["reward"] in (0.0, 1.0)


def test_every_process_is_gone(job: Path) -> None:
    mine = os.getpid()
    left = [
        process.info
        for process in psutil.process_iter(["pid", "cmdline", "cwd"])
        if process.info["pid"] != mine and str(job) in " ".join(process.info["cmdline"] or [])
    ]
    assert left == []
