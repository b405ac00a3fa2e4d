"""What the documentation says of names holds in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from nemo_gym.capture.schema import COLUMNS
from nemo_gym.config.types import BaseRunServerInstanceConfig, CaptureConfig, ClusterConfig, JobConfig, PlaceConfig
from nemo_gym.model_server.server import BaseResponsesAPIModelConfig
from responses_api_models.azure_openai_model.app import AzureOpenAIModelConfig
from responses_api_models.inference_provider.app import InferenceProviderConfig
from responses_api_models.local_vllm_model.app import LocalVLLMModelConfig
from responses_api_models.openai_model.app import OpenAIModelConfig
from responses_api_models.vllm_model.app import VLLMModelConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "fern" / "pages"
CONFIGURATION = (PAGES / "configuration.mdx").read_text()


def own(model: type, base: type) -> set[str]:
    return set(model.model_fields) - set(base.model_fields)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "keys",
    [
        own(BaseResponsesAPIModelConfig, BaseRunServerInstanceConfig),
        own(VLLMModelConfig, BaseResponsesAPIModelConfig),
        own(OpenAIModelConfig, BaseResponsesAPIModelConfig),
        own(AzureOpenAIModelConfig, BaseResponsesAPIModelConfig),
        own(InferenceProviderConfig, BaseResponsesAPIModelConfig),
        own(LocalVLLMModelConfig, BaseResponsesAPIModelConfig) - {"ray"},
        set(CaptureConfig.model_fields),
        set(JobConfig.model_fields),
    ],
    ids=[
        "model servers",
        "vllm_model",
        "openai_model",
        "azure_openai_model",
        "inference_provider",
        "local_vllm_model",
        "capture",
        "job",
    ],
)
def test_every_key_is_documented(keys: set[str]) -> None:
    assert {key for key in keys if f"`{key}" not in CONFIGURATION} == set()


def test_every_key_of_a_cluster_is_documented() -> None:
    page = (PAGES / "cluster.mdx").read_text()
    keys = [f"| `ray.{key}` |" for model in (ClusterConfig, PlaceConfig) for key in model.model_fields]
    assert [key for key in keys if key not in page] == []


def columns() -> str:
    rows = [f"| `{column.name}` | {column.says} |" for column in COLUMNS if not column.internal]
    return "\n".join(["| column | |", "|---|---|", *rows])


def test_the_columns_are_those_of_the_schema() -> None:
    assert columns() in (PAGES / "capture.mdx").read_text()


def test_every_page_is_in_the_navigation() -> None:
    listed = {entry["path"] for entry in yaml.safe_load((ROOT / "fern" / "docs.yml").read_text())["navigation"]}
    assert {f"pages/{page.name}" for page in PAGES.glob("*.mdx")} == listed


@pytest.mark.parametrize(
    "page", [*PAGES.glob("*.mdx"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name
)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(
        r"`((?:nemo_gym|configs|models|tests|requirements|scripts|responses_api_\w+|resources_servers)/[\w./-]+)`", text
    ):
        assert (ROOT / path).exists(), path
    assert "{{" not in text
