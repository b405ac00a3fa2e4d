"""The loop of examples/grpo_tiny with everything real: two steps in CI, the proof that the policy improves at night."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.project import ROOT

pytest.importorskip("ray")
pytest.importorskip("vllm")
pytest.importorskip("transformers")
pytestmark = pytest.mark.live


def ran(output: Path, *arguments: str, seconds: float) -> list[dict[str, Any]]:
    """The results, one a seed."""
    command = [sys.executable, "-m", "examples.grpo_tiny", "--output", str(output), *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads((output / "results.json").read_bytes())
    return found


# ---- in CI


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("grpo") / "out"
    ran(output, "--steps", "2", "--prompts", "6", "--samples", "6", "--held-out", "6", seconds=1800)
    return output


@pytest.fixture(scope="module")
def curve(two_steps: Path) -> list[dict[str, Any]]:
    (result,) = json.loads((two_steps / "results.json").read_bytes())
    steps: list[dict[str, Any]] = result["curve"]
    return steps


@pytest.mark.ci
def test_what_is_trained_is_what_was_sampled(curve: list[dict[str, Any]]) -> None:
    assert len(curve) == 2
    for step in curve:  # in the second step too: the engine's weights are the learner's
        assert step["made"]["rows"] > 0 and step["made"]["clipped"] == 0
        assert step["made"]["gradient"] > 0
        lowest, highest = step["made"]["ratio"]
        assert 0.99 < lowest <= highest < 1.01


@pytest.mark.ci
def test_the_version_is_raised_on_the_tokens(two_steps: Path, curve: list[dict[str, Any]]) -> None:
    assert [(step["version"], step["versions"]) for step in curve] == [(0, [0, 0]), (1, [1, 1])]
    for number in (0, 1):
        rows = pq.read_table(two_steps / f"seed-0/step-{number:03d}/exports/token_rows").to_pylist()
        assert len(rows) == 36 and all(row["complete"] for row in rows)
        sampled = {
            version
            for row in rows
            for version, mask in zip(row["policy_version"], row["loss_mask"], strict=True)
            if mask
        }
        assert sampled == {number}
        assert len({row["advantage"] for row in rows}) > 1


@pytest.mark.ci
def test_the_weights_have_changed(two_steps: Path) -> None:
    """The tokens of the second step are likely under the new weights as they say, and not under the old ones."""
    import torch

    from examples.grpo_tiny import policy

    new = policy.Policy(two_steps / "seed-0" / "weights" / "001", 0.0)
    old = policy.Policy(policy.BASE, 0.0)
    rows = policy.read(two_steps / "seed-0" / "step-001" / "exports" / "token_rows")
    first = policy.read(two_steps / "seed-0" / "step-000" / "exports" / "token_rows")
    assert off(old.ratios(first)) < 0.01
    assert off(old.ratios(rows)) > 0.02  # sampled by other weights
    weights = zip(old.state().items(), new.state().items(), strict=True)
    assert all(name == other and not torch.equal(one, two) for (name, one), (other, two) in weights)


def off(ratios: list[Any]) -> float:
    """How far the ratio of any token is from 1."""
    return max(float((one - 1).abs().max()) for one in ratios)


@pytest.mark.ci
def test_there_is_a_curve_to_look_at(two_steps: Path) -> None:
    drawn = (two_steps / "curve.svg").read_text()
    assert drawn.startswith("<svg") and drawn.count("<circle") == 2 and drawn.count("<polyline") == 1


# ---- at night


@pytest.mark.nightly
@pytest.mark.parametrize("more", [[], ["--ahead"]], ids=["in turn", "ahead"])
def test_a_policy_improves_on_tasks_that_it_never_saw(tmp_path: Path, more: list[str]) -> None:
    seeds = ["0", "1", "2"] if not more else ["3"]
    results = ran(tmp_path / "out", "--seeds", *seeds, *more, seconds=5400)
    assert len(results) == len(seeds)
    for result in results:
        print(f"\nseed {result['seed']}: {result['before']:.3f} -> {result['after']:.3f}, low {result['low']:.3f}")
        assert result["low"] > 0.25
        lowest, highest = result["curve"][0]["made"]["ratio"]
        assert 0.99 < lowest <= highest < 1.01
    if more:  # learnt from older weights' tokens, and weighted for it
        behind = [step for step in results[0]["curve"] if step["versions"][0] < step["version"]]
        assert len(behind) > len(results[0]["curve"]) // 2
        assert any(step["made"]["ratio"][1] > 1.001 for step in behind)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["sft", "trl"])
def test_other_ways_to_learn_raise_it_too(tmp_path: Path, method: str) -> None:
    (result,) = ran(tmp_path / "out", "--method", method, seconds=3600)
    print(f"\n{method}: {result['before']:.3f} -> {result['after']:.3f}, low {result['low']:.3f}")
    assert result["low"] > 0.2
