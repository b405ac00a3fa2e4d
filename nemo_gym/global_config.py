"""Names that environments and agents import: the keys of rows and rollouts, and the run's servers."""

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.parser import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.config.rows import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_INDEX_KEY_NAME,
    CACHE_DIR_KEY_NAME,
    DISALLOWED_PORTS_KEY_NAME,
    HF_TOKEN_KEY_NAME,
    OBSERVABILITY_ENABLED_KEY_NAME,
    POLICY_API_KEY_KEY_NAME,
    POLICY_BASE_URL_KEY_NAME,
    POLICY_MODEL_KEY_NAME,
    POLICY_MODEL_NAME_KEY_NAME,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    RESULTS_DIR_KEY_NAME,
    REWARD_KEY_NAME,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
    TASK_SOURCE_KEY_NAME,
    TOKEN_ID_CAPTURE_BLOCK,
)
from nemo_gym.launch.ports import find_open_port
from nemo_gym.web.service import (
    get_first_server_config_dict,
    get_global_config_dict,
    get_hf_token,
    maybe_get_global_config_dict,
)

__all__ = [
    "AGENT_REF_KEY_NAME",
    "ATTEMPT_INDEX_KEY_NAME",
    "CACHE_DIR_KEY_NAME",
    "DISALLOWED_PORTS_KEY_NAME",
    "HF_TOKEN_KEY_NAME",
    "OBSERVABILITY_ENABLED_KEY_NAME",
    "POLICY_API_KEY_KEY_NAME",
    "POLICY_BASE_URL_KEY_NAME",
    "POLICY_MODEL_KEY_NAME",
    "POLICY_MODEL_NAME_KEY_NAME",
    "RESPONSES_CREATE_PARAMS_KEY_NAME",
    "RESPONSE_KEY_NAME",
    "RESULTS_DIR_KEY_NAME",
    "REWARD_KEY_NAME",
    "ROLLOUT_ID_KEY_NAME",
    "ROLLOUT_INDEX_KEY_NAME",
    "SKILLS_REF_KEY_NAME",
    "TASK_INDEX_KEY_NAME",
    "TASK_SOURCE_KEY_NAME",
    "TOKEN_ID_CAPTURE_BLOCK",
    "DictConfig",
    "GlobalConfigDictParser",
    "GlobalConfigDictParserConfig",
    "OmegaConf",
    "find_open_port",
    "get_first_server_config_dict",
    "get_global_config_dict",
    "get_hf_token",
    "maybe_get_global_config_dict",
]
