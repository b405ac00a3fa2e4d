"""Where engines run in tests: without a GPU, or, on a machine that has one, on CUDA by the same checks.

`NEMO_GYM_TEST_GPUS` says how much of one each engine asks for; two engines share one unless it is said.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from msgspec import Struct

from responses_api_models.local_vllm_model.app import _has_gpu


class Device(Struct, frozen=True):
    gpus: float
    """Of each engine."""
    engine_args: dict[str, Any] = {}


_SHARE = float(os.environ.get("NEMO_GYM_TEST_GPUS", "0.4"))
_CUDA = Device(_SHARE, {"gpu_memory_utilization": round(_SHARE / 2, 2), "enforce_eager": True})

DEVICES = [
    pytest.param(
        Device(0.0), id="cpu", marks=pytest.mark.skipif(_has_gpu(), reason="this machine's vLLM is CUDA's: see cuda")
    ),
    pytest.param(
        _CUDA,
        id="cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not _has_gpu(), reason="no NVIDIA GPU on this machine")],
    ),
]
"""The parameters of a fixture that starts engines."""
