"""Names that environments and agents import: servers, sessions and calls between them."""

from nemo_gym.config.types import ROLLOUT_PATH_PREFIX, BaseRunServerInstanceConfig, BaseServerConfig
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

__all__ = [
    "ROLLOUT_HEADER",
    "ROLLOUT_PATH_PREFIX",
    "SESSION_ID_KEY",
    "BaseRunServerInstanceConfig",
    "BaseServerConfig",
    "ServerClient",
    "SimpleServer",
    "apply_rollout_prefix",
    "get_first_server_config_dict",
    "get_global_config_dict",
    "get_response_json",
    "get_server_url",
    "is_nemo_gym_fastapi_entrypoint",
    "raise_for_status",
    "request",
    "rollout_path",
    "rollout_path_prefix",
]
