"""Where a replica's workers sit: tensor-parallel x pipeline-parallel bundles as one Ray placement group.

A replica of one worker is one bundle. One of several GPUs has a bundle for each, and vLLM's own Ray
executor puts its workers into the group that the actor is in. Without GPUs vLLM forks its workers on
one machine, so one bundle holds them all.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class Placement(Struct, frozen=True):
    bundles: tuple[dict[str, float], ...]
    strategy: str
    actor_gpus: float
    """Of the first bundle; 0 when the GPUs belong to workers of vLLM's Ray executor."""
    engine_args: dict[str, Any]
    """What vLLM must be told so that it keeps to this."""


def placement(
    tensor_parallel: int, pipeline_parallel: int, gpus_per_worker: float, how: Literal["pack", "spread"] = "pack"
) -> Placement:
    """The bundles of one replica.

    Args:
        how: the workers of a replica on as few machines as there is room for, or on as many.
    """
    workers = tensor_parallel * pipeline_parallel
    sizes = {"tensor_parallel_size": tensor_parallel, "pipeline_parallel_size": pipeline_parallel}
    if gpus_per_worker == 0:
        return Placement(({"CPU": float(workers)},), "STRICT_PACK", 0.0, sizes)
    bundle = {"CPU": 1.0, "GPU": gpus_per_worker}
    if workers == 1:
        return Placement((bundle,), "STRICT_PACK", gpus_per_worker, sizes)
    # Tensor-parallel workers talk at every layer, so they are packed unless told otherwise.
    return Placement((bundle,) * workers, how.upper(), 0.0, sizes | {"distributed_executor_backend": "ray"})
