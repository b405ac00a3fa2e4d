"""Each environment's configuration has no fault, and its data sets can be made ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_gym.config.compose import compose
from nemo_gym.config.problems import find_problems
from nemo_gym.rollouts.prepare import declared, prepare

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(
    [*ROOT.glob("resources_servers/*/configs/*.yaml"), *ROOT.glob("tests/environments/*/*/configs/*.yaml")]
)
MODEL = "responses_api_models/vllm_model/configs/vllm_model.yaml"
KEYS = ["++policy_base_url=http://127.0.0.1:9/v1", "++policy_model_name=m", "++policy_api_key=none"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_has_no_fault_and_its_data_is_sound(path, tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(ROOT / "tests" / "environments"))
    composed = compose([f"+config_paths=[{MODEL},{path}]", *KEYS])
    assert list(map(str, find_problems(composed))) == []
    assert all(made.rows >= 5 for made in prepare(declared(composed.config), tmp_path, ["example"]))
