"""A configuration as one OmegaConf tree, for environments and their tests that read one by themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict

from .compose import ENV_FILE, Composed, compose
from .rows import POLICY_API_KEY_KEY_NAME, POLICY_BASE_URL_KEY_NAME, POLICY_MODEL_KEY_NAME, POLICY_MODEL_NAME_KEY_NAME
from .types import ConfigError


class GlobalConfigDictParserConfig(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    dotenv_path: Path | None = None
    initial_global_config_dict: DictConfig | None = None
    skip_load_from_cli: bool = False
    skip_load_from_dotenv: bool = False
    hide_secrets: bool = False
    offline: bool = False
    """Kept for callers that set it: nothing is ever asked of the network here."""

    NO_MODEL_GLOBAL_CONFIG_DICT: ClassVar[DictConfig] = OmegaConf.create(
        {
            POLICY_BASE_URL_KEY_NAME: "",
            POLICY_API_KEY_KEY_NAME: "",
            POLICY_MODEL_NAME_KEY_NAME: "",
            POLICY_MODEL_KEY_NAME: {"responses_api_models": {"dummy_model": {"entrypoint": "app.py"}}},
        }
    )
    """Where a configuration is read that runs no model."""


class GlobalConfigDictParser:
    def parse(self, parse_config: GlobalConfigDictParserConfig | None = None) -> DictConfig:
        """The tree, its references resolved; ports that nothing says are 0. Raises ConfigError with every fault."""
        asked = parse_config or GlobalConfigDictParserConfig()
        composed = compose(
            [] if asked.skip_load_from_cli else sys.argv[1:],
            asked.initial_global_config_dict,
            None if asked.skip_load_from_dotenv else asked.dotenv_path or ENV_FILE,
        )
        if composed.problems:
            raise ConfigError("\n".join(map(str, composed.problems)))
        return OmegaConf.create(_addressed(composed, composed.masked() if asked.hide_secrets else composed.config))

    def parse_no_environment(self, initial_global_config_dict: DictConfig | None = None) -> DictConfig:
        """The same of one tree alone, without the command line and `env.yaml`."""
        return self.parse(
            GlobalConfigDictParserConfig(
                initial_global_config_dict=initial_global_config_dict,
                skip_load_from_cli=True,
                skip_load_from_dotenv=True,
            )
        )


def _addressed(composed: Composed, config: dict[str, Any]) -> dict[str, Any]:
    for instance in composed.instances:
        settings = config[instance.name][instance.kind][instance.implementation]
        if settings is not None:
            settings.setdefault("host", "127.0.0.1")
            settings.setdefault("port", 0)
    return config
