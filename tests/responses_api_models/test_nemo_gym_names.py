"""A configuration that is written for NeMo Gym's vllm_model or local_vllm_model means the same here."""

from unittest.mock import MagicMock

import pytest
from pydantic import ValidationError

from nemo_gym.server_utils import ServerClient
from responses_api_models.local_vllm_model.app import LocalVLLMModelConfig
from responses_api_models.openai_model.app import OpenAIModelConfig
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig

BASE = {"name": "m", "base_url": "http://127.0.0.1:1/v1", "api_key": "none", "model": "x"}


def test_nemo_gyms_keys_are_read():
    config = VLLMModelConfig.model_validate(
        BASE
        | {
            "return_token_id_information": True,
            "uses_reasoning_parser": True,
            "uses_interleaved_reasoning": False,
            "replace_developer_role_with_system": True,
            "chat_template_kwargs": {"enable_thinking": False},
            "extra_body": {"top_k": 5},
        }
    )
    assert config.return_token_ids is True
    assert config.developer_role == "system"
    assert config.extra_body == {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 5}


def test_what_a_vllm_is_asked_besides():
    config = VLLMModelConfig.model_validate(
        BASE
        | {
            "default_headers": {"x-team": "a"},
            "is_responses_native": True,
            "sequential_reasoning_allowed": False,
            "endpoint_file": "/tmp/endpoint",
            "request_prompt_and_generation_token_ids": True,
        }
    )
    assert (config.api, config.return_token_ids) == ("responses", True)
    server = VLLMModel(config=config, server_client=MagicMock(spec=ServerClient))
    assert server.provider("responses").fixed_headers("responses", "k") == {
        "content-type": "application/json",
        "authorization": "Bearer k",
        "x-team": "a",
    }


def test_openai_models_tries_are_retries():
    said = {"name": "m", "openai_base_url": "http://127.0.0.1:1/v1", "openai_api_key": "none", "openai_model": "x"}
    assert OpenAIModelConfig.model_validate(said | {"max_http_attempts": 3}).retries == 2
    assert OpenAIModelConfig.model_validate(said | {"max_http_attempts": 1, "retries": 5}).retries == 5


def test_our_own_names_win_and_null_is_nothing():
    config = VLLMModelConfig.model_validate(
        BASE | {"return_token_ids": None, "return_token_id_information": False, "extra_body": None}
    )
    assert config.return_token_ids is None
    assert config.extra_body == VLLMModelConfig.model_validate(BASE).extra_body


LOCAL = {
    "name": "m",
    "model": "models/tiny_policy",
    "return_token_id_information": True,
    "uses_reasoning_parser": False,
    "hf_home": None,
    "debug": False,
    "replace_developer_role_with_system": True,
    "extra_body": {"chat_template_kwargs": {"enable_thinking": True}},
    "vllm_serve_env_vars": {"VLLM_RAY_DP_PACK_STRATEGY": "span", "VLLM_ENGINE_READY_TIMEOUT_S": "3600"},
    "vllm_serve_kwargs": {
        "data_parallel_size": 2,
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 1,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "openai",
        "reasoning_parser": "deepseek_r1",
        "gpu_memory_utilization": 0.9,
        "max_model_len": 4096,
    },
}


def test_what_vllms_server_was_told_the_engines_are():
    config = LocalVLLMModelConfig.model_validate(LOCAL)
    assert (config.num_replicas, config.tensor_parallel_size, config.placement) == (2, 4, "spread")
    assert (config.tool_parser, config.reasoning_parser) == ("harmony", "deepseek_r1")
    assert config.engine_args == {"gpu_memory_utilization": 0.9, "max_model_len": 4096}
    assert (config.developer_role, config.start_timeout_s) == ("system", 3600.0)
    assert config.chat_template_kwargs == {"enable_thinking": True}


def test_keys_of_our_own_win_there_too():
    ours = {"engine_args": {"max_model_len": 99}, "num_replicas": 1, "tool_parser": None}
    config = LocalVLLMModelConfig.model_validate(LOCAL | ours)
    assert (config.num_replicas, config.tool_parser, config.engine_args["max_model_len"]) == (1, None, 99)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hf_home": "/models"}, "hf_home: a model is served from its folder here"),
        ({"vllm_serve_env_vars": {"CUDA_X": "1"}}, "vllm_serve_env_vars.CUDA_X: set it in the environment of ng_run"),
        ({"vllm_serve_kwargs": ["--x"]}, "vllm_serve_kwargs: expected options of vllm serve by name, got list"),
        ({"extra_body": {"top_k": 1}}, "extra_body.top_k: no server is between"),
        ({"use_completions_api": True}, "use_completions_api"),
    ],
)
def test_what_cannot_be_meant_here_is_told(changes, says):
    with pytest.raises(ValidationError, match=says):
        LocalVLLMModelConfig.model_validate(LOCAL | changes)
