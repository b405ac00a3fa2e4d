"""A configuration in which NeMo Gym's keys of this server have the names that they have here.

What vLLM's server was told there is told to the engines here; what only that server had, such as whether its replies
have token ids, is always so here and is dropped. What cannot be meant here is refused in the writer's own terms.
"""

from __future__ import annotations

from typing import Any

_DROPPED = (
    *("return_token_id_information", "uses_reasoning_parser", "uses_interleaved_reasoning"),
    *("sequential_reasoning_allowed", "show_vllm_engine_stats", "debug", "ray_worker_py_executable"),
    "is_responses_native",
)
_KWARGS, _ENV = "vllm_serve_kwargs", "vllm_serve_env_vars"
_OWN = {
    "data_parallel_size": "num_replicas",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "tool_call_parser": "tool_parser",
    "reasoning_parser": "reasoning_parser",
}
"""An option of `vllm serve` -> the key here."""
_OF_THE_SERVER = frozenset(
    {"enable_auto_tool_choice", "data_parallel_size_local", "api_server_count", "served_model_name"}
)
_PARSERS = {"openai": "harmony", "openai_gptoss": "harmony"}
"""vLLM's name of a format -> the name here."""
_PLACEMENTS = {"strict": "pack", "fill": "pack", "span": "spread"}


def named_as_here(given: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError that names the key."""
    data = {key: value for key, value in given.items() if key not in _DROPPED}
    if data.pop("hf_home", None) is not None:
        raise ValueError("hf_home: a model is served from its folder here: say that in `model`")
    if data.pop("replace_developer_role_with_system", False):
        data.setdefault("developer_role", "system")
    if data.get("chat_template_kwargs", ...) is None:
        data.pop("chat_template_kwargs")
    for name, value in (data.pop("extra_body", None) or {}).items():
        if name != "chat_template_kwargs":
            raise ValueError(
                f"extra_body.{name}: no server is between this one and its engines: see sampling_overrides"
            )
        data.setdefault(name, value)
    _read_env(data, data.pop(_ENV, None))
    kwargs = data.pop(_KWARGS, None)
    if kwargs is not None:
        _read_kwargs(data, kwargs)
    return data


def _read_kwargs(data: dict[str, Any], kwargs: Any) -> None:
    if not isinstance(kwargs, dict):
        raise ValueError(f"{_KWARGS}: expected options of vllm serve by name, got {type(kwargs).__name__}")
    engine = dict(data.get("engine_args") or {})
    for name, value in kwargs.items():
        if name in _OWN:
            data.setdefault(_OWN[name], _PARSERS.get(value, value) if isinstance(value, str) else value)
        elif name not in _OF_THE_SERVER:
            engine.setdefault(name, value)
    data["engine_args"] = engine


def _read_env(data: dict[str, Any], variables: Any) -> None:
    for name, value in (variables or {}).items():
        if name == "VLLM_ENGINE_READY_TIMEOUT_S":
            data.setdefault("start_timeout_s", value)
            continue
        if name != "VLLM_RAY_DP_PACK_STRATEGY":
            raise ValueError(f"{_ENV}.{name}: set it in the environment of ng_run: the engines have that")
        if value not in _PLACEMENTS:
            raise ValueError(f"{_ENV}.{name}: expected one of {', '.join(_PLACEMENTS)}, got {value!r}")
        data.setdefault("placement", _PLACEMENTS[value])
