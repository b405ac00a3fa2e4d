"""A model server for agents under evaluation and training, with the jobs, environments and exports around it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_SURFACE = {
    "AggregateMetrics": "config_types",
    "AggregateMetricsRequest": "config_types",
    "BaseMultiRewardVerifyResponse": "base_resources_server",
    "BaseResourcesServerConfig": "base_resources_server",
    "BaseResponsesAPIAgentConfig": "base_responses_api_agent",
    "BaseResponsesAPIModelConfig": "base_responses_api_model",
    "BaseRunRequest": "base_resources_server",
    "BaseRunServerInstanceConfig": "config_types",
    "BaseSeedSessionRequest": "base_resources_server",
    "BaseSeedSessionResponse": "base_resources_server",
    "BaseServerConfig": "config_types",
    "BaseVerifyRequest": "base_resources_server",
    "BaseVerifyResponse": "base_resources_server",
    "CACHE_DIR": "config.paths",
    "Domain": "config_types",
    "ModelServerRef": "config_types",
    "NeMoGymAsyncOpenAI": "openai_utils",
    "NeMoGymChatCompletion": "openai_utils",
    "NeMoGymChatCompletionCreateParamsNonStreaming": "openai_utils",
    "NeMoGymResponse": "openai_utils",
    "NeMoGymResponseCreateParamsNonStreaming": "openai_utils",
    "PARENT_DIR": "config.paths",
    "RESULTS_DIR": "config.paths",
    "ROOT_DIR": "config.paths",
    "ReverifyMode": "base_resources_server",
    "SESSION_ID_KEY": "server_utils",
    "ServerClient": "server_utils",
    "SimpleResourcesServer": "base_resources_server",
    "SimpleResponsesAPIAgent": "base_responses_api_agent",
    "SimpleResponsesAPIModel": "base_responses_api_model",
    "WORKING_DIR": "config.paths",
    "_resolve_under_cwd_or_install": "config.paths",
    "get_response_json": "server_utils",
    "raise_for_status": "server_utils",
}
"""What may be imported from here, and where it is; loaded when it is first asked for, so that the package is light."""


def __getattr__(name: str) -> Any:
    if name not in _SURFACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_SURFACE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_SURFACE})
