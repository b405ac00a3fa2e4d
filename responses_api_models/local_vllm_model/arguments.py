"""What vLLM is told of a configuration: what the machine asks for first, the writer's `engine_args` last.

What is right only without a GPU is said only there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from nemo_gym.config import paths

_WITHOUT_GPU = {"dtype": "float32", "enforce_eager": True, "block_size": 32}
"""Log-probs that a trainer can reproduce, a quick start, prefixes shared from 32 tokens on."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Of adapters, that vLLM can make room for."""
_PLACES = ("tokenizer", "hf_config_path", "generation_config", "download_dir", "allowed_local_media_path")
"""Arguments that may be a path; vLLM reads it in another process's folder."""


def engine_arguments(
    model: Path, gpus: float, engine_args: Mapping[str, Any], adapters: Mapping[str, str]
) -> dict[str, Any]:
    """Args:
    gpus: of each worker.
    adapters: names and folders.
    """
    return {
        "model": str(model),
        **({} if gpus else _WITHOUT_GPU),
        **_room_for(adapters),
        **_found(engine_args),
    }


def has_connector(arguments: Mapping[str, Any]) -> bool:
    transfer = arguments.get("kv_transfer_config")
    return isinstance(transfer, Mapping) and bool(transfer.get("kv_connector"))


def _found(told: Mapping[str, Any], names: Collection[str] = _PLACES) -> dict[str, Any]:
    """With what is there, of what may also be a name that a hub knows, by its whole path."""
    found = {name: _place(value) if name in names else value for name, value in told.items()}
    if isinstance(drafter := found.get("speculative_config"), Mapping):
        found["speculative_config"] = _found(drafter, ("model",))
    return found


def _place(value: Any) -> Any:
    return str(paths.locate(value).resolve()) if isinstance(value, str) and paths.locate(value).exists() else value


def with_role(arguments: Mapping[str, Any], role: Literal["kv_producer", "kv_consumer"]) -> dict[str, Any]:
    """Those of one side of a pair; a role that was said stays."""
    return {**arguments, "kv_transfer_config": {"kv_role": role, **arguments["kv_transfer_config"]}}


def adapter_folders(adapters: Mapping[str, str]) -> dict[str, str]:
    """The folders where they are. Raises ValueError that names an adapter without one."""
    folders = {}
    for name, path in adapters.items():
        folder = paths.locate(path)
        if not (folder / "adapter_config.json").is_file():
            raise ValueError(f"adapters.{name}: expected a folder with an adapter_config.json, found none at {path!r}")
        folders[name] = str(folder.resolve())
    return folders


def _room_for(adapters: Mapping[str, str]) -> dict[str, Any]:
    if not adapters:
        return {}
    rank = max(_rank(Path(folder)) for folder in adapters.values())
    return {
        "enable_lora": True,
        "max_loras": len(adapters),
        "max_lora_rank": next((size for size in _RANKS if size >= rank), rank),
    }


def _rank(folder: Path) -> int:
    try:
        told = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        ranks = [told["r"], *(told.get("rank_pattern") or {}).values()]
        return max(int(rank) for rank in ranks)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return 0  # vLLM says what is wrong with it
