"""Names that environments and agents import: servers, sessions and calls between them."""

from nemo_gym.config.types import ROLLOUT_PATH_PREFIX, BaseRunServerInstanceConfig, BaseServerConfig
from nemo_gym.web.correlation import ROLLOUT_HEADER, apply_rollout_prefix, rollout_path, rollout_path_prefix
from nemo_gym.web.peers import ServerClient, get_response_json, raise_for_status, request
from nemo_gym.web.service import (
    SimpleServer,
    get_first_server_config_dict,
    get_global_config_dict,
    is_nemo_gym_fastapi_entrypoint,
)
from nemo_gym.web.service import get_server_url as url_of
from nemo_gym.web.session import SESSION_ID_KEY


def get_server_url(server_name: str) -> str:
    """A peer's base URL, by this module's `get_global_config_dict`: tests of environments put another in its place."""
    return url_of(server_name, get_global_config_dict())


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
