"""Names that environments and agents import: servers, sessions and calls between them."""

from nemo_gym.config.types import ROLLOUT_PATH_PREFIX, BaseRunServerInstanceConfig, BaseServerConfig
from nemo_gym.web.client import GlobalAIOHTTPAsyncClientConfig
from nemo_gym.web.client import begin as set_global_aiohttp_client
from nemo_gym.web.client import session as get_global_aiohttp_client
from nemo_gym.web.client import tells_of_requests as is_global_aiohttp_client_request_debug_enabled
from nemo_gym.web.correlation import ROLLOUT_HEADER, apply_rollout_prefix, rollout_path, rollout_path_prefix
from nemo_gym.web.peers import ServerClient, get_response_json, raise_for_status, request
from nemo_gym.web.service import (
    SimpleServer,
    get_first_server_config_dict,
    get_global_config_dict,
    get_server_url,
    is_nemo_gym_fastapi_entrypoint,
)
from nemo_gym.web.session import SESSION_ID_KEY

_GLOBAL_AIOHTTP_CLIENT = None
"""For tests of environments that take it away and put it back; sessions are kept by loop (`web/client.py`)."""

__all__ = [
    "ROLLOUT_HEADER",
    "ROLLOUT_PATH_PREFIX",
    "SESSION_ID_KEY",
    "BaseRunServerInstanceConfig",
    "BaseServerConfig",
    "GlobalAIOHTTPAsyncClientConfig",
    "ServerClient",
    "SimpleServer",
    "apply_rollout_prefix",
    "get_first_server_config_dict",
    "get_global_aiohttp_client",
    "get_global_config_dict",
    "get_response_json",
    "get_server_url",
    "is_global_aiohttp_client_request_debug_enabled",
    "is_nemo_gym_fastapi_entrypoint",
    "raise_for_status",
    "request",
    "rollout_path",
    "rollout_path_prefix",
    "set_global_aiohttp_client",
]
