"""A LoRA adapter of the embedded model, made at random from a seed, and the weights that it stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.live.vllm import MODEL

NAME = "tilted"
_RANK, _ALPHA, _SIZE = 4, 8, 0.5
_MODULES = ("q_proj", "v_proj")


def _deltas() -> dict[str, tuple[Any, Any]]:
    """Module -> its A and B."""
    import torch

    config = json.loads((MODEL / "config.json").read_text())
    hidden, size = config["hidden_size"], config["head_dim"]
    heads = {"q_proj": config["num_attention_heads"], "v_proj": config["num_key_value_heads"]}
    draw = torch.Generator().manual_seed(7)
    found = {}
    for layer in range(config["num_hidden_layers"]):
        for module in _MODULES:
            a = torch.randn(_RANK, hidden, generator=draw) * _SIZE / hidden**0.5
            b = torch.randn(heads[module] * size, _RANK, generator=draw) * _SIZE
            found[f"model.layers.{layer}.self_attn.{module}"] = (a, b)
    return found


def write(folder: Path) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, (a, b) in _deltas().items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.contiguous()
    save_file(tensors, folder / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _ALPHA, "target_modules": list(_MODULES), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**told, "task_type": "CAUSAL_LM"}))
    return folder


def merged(policy: Any) -> Any:
    """The model with the adapter in its weights."""
    import torch

    with torch.no_grad():
        for name, (a, b) in _deltas().items():
            policy.get_submodule(name).weight += (_ALPHA / _RANK) * (b @ a)
    return policy
