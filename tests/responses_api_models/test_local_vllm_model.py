"""The local model's configuration, and that looking at it costs nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from responses_api_models.local_vllm_model.app import LocalVLLMModel, LocalVLLMModelConfig, _folder

ROOT = Path(__file__).resolve().parents[2]


def config(**settings):
    return LocalVLLMModelConfig(name="policy_model", model="models/tiny_policy", **settings)


def test_the_shipped_config_is_one():
    file = ROOT / "responses_api_models/local_vllm_model/configs/local_vllm_model.yaml"
    settings = yaml.safe_load(file.read_text())["policy_model"]["responses_api_models"]["local_vllm_model"]
    assert LocalVLLMModelConfig(name="policy_model", **settings).served_name == "tiny-policy"


def test_defaults():
    plain = config()
    assert plain.served_name == "tiny_policy"
    assert (plain.tool_parser, plain.reasoning_parser, plain.history) == ("auto", "auto", "exact")
    assert plain.ray.address == "local"


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"num_replicas": 0}, "num_replicas"),
        ({"ray": {"adress": "x"}}, "ray.adress"),
        ({"histroy": "exact"}, "histroy"),
    ],
)
def test_mistakes_are_named(settings, where):
    with pytest.raises(ValidationError, match=where):
        config(**settings)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model: expected a model's folder with a config\.json"):
        _folder(str(tmp_path))


def test_its_config_class_is_found_without_ray_vllm_or_torch():
    code = (
        "import sys; from responses_api_models.local_vllm_model.app import LocalVLLMModel as M;"
        "assert M.config_class().__name__ == 'LocalVLLMModelConfig';"
        "print(*sorted({'ray', 'vllm', 'torch', 'transformers', 'jinja2.sandbox'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.strip()) == (0, ""), ended.stderr
    assert LocalVLLMModel.config_class() is LocalVLLMModelConfig
