"""What model servers and agents of NeMo Gym import for the capture of tokens: there, and without an effect."""

from __future__ import annotations

import json

import pytest
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym import responses_converter
from nemo_gym.base_responses_api_model import _orjson_dispatch_response, start_model_execution
from nemo_gym.global_config import find_open_port
from nemo_gym.server_utils import apply_rollout_prefix, rollout_path_prefix
from nemo_gym.token_id_capture import current_capture_context
from nemo_gym.token_id_capture.config import token_id_capture_config
from nemo_gym.token_id_capture.external_capture import make_external_capture_handler
from nemo_gym.web.correlation import split_rollout
from responses_api_models.vllm_model import app as vllm_model


def test_the_capture_is_never_on() -> None:
    config = token_id_capture_config({"token_id_capture": {"enabled": True, "external_staging": True}})
    assert not config.token_id_capture.enabled
    assert not config.token_id_capture.external_staging
    assert current_capture_context() is None
    with pytest.raises(ValueError, match="recorded by the model server itself"):
        make_external_capture_handler("vllm_worker")


def test_a_path_that_says_that_tokens_are_captured_is_the_same_call() -> None:
    url = apply_rollout_prefix("http://m:1/", "r1", token_capture=True) + "/v1/responses"
    assert url == "http://m:1/ng-rollout/r1/training-token-capture/v1/responses"
    assert split_rollout(url.removeprefix("http://m:1"), {}) == ("r1", "/v1/responses")
    assert rollout_path_prefix("r1") == "/ng-rollout/r1"
    assert rollout_path_prefix(None, token_capture=True) == ""
    assert apply_rollout_prefix("http://m:1/", None, token_capture=True) == "http://m:1/"


def test_what_such_a_server_says_of_its_own_call() -> None:
    request = Request({"type": "http"})
    outcome = start_model_execution(request, upstream_attempted=True)
    outcome.update(response_source="upstream", upstream_status_code=503)
    assert request.state.nemo_gym_model_execution["upstream_status_code"] == 503
    made = Response(b"mine")
    assert _orjson_dispatch_response(made) is made
    assert json.loads(_orjson_dispatch_response({"ids": [1, 2], "word": "é"}).body) == {"ids": [1, 2], "word": "é"}


def test_names_that_agents_find_beside_it() -> None:
    assert vllm_model.VLLMConverter is responses_converter.VLLMConverter
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = vllm_model.nothing_of_that_name
    usage = {"prompt_tokens_details": {"cached_tokens": None}, "cached": 7}
    assert responses_converter._usage_detail(usage, "prompt_tokens_details", "cached_tokens", "absent", "cached") == 7
    assert responses_converter._usage_detail(None, "prompt_tokens_details", "cached_tokens") is None
    assert 0 < find_open_port(disallowed_ports=[1]) < 65536
