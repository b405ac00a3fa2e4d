"""A configuration that is written for NeMo Gym's vllm_model means the same here."""

from responses_api_models.vllm_model.app import VLLMModelConfig

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


def test_our_own_names_win_and_null_is_nothing():
    config = VLLMModelConfig.model_validate(
        BASE | {"return_token_ids": None, "return_token_id_information": False, "extra_body": None}
    )
    assert config.return_token_ids is None
    assert config.extra_body == VLLMModelConfig.model_validate(BASE).extra_body
