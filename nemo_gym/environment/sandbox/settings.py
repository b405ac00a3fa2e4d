"""Which provider a configuration means: a block that it names, or one that it holds.

A block is `{provider: settings}` and may have `default_metadata` beside it, which every sandbox of it bears unless
its own says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ...config.faults import did_you_mean

_METADATA = "default_metadata"
_CORES = (
    *("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "BLIS_NUM_THREADS", "PYTHON_CPU_COUNT", "NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT"),
    *("POLARS_MAX_THREADS", "PYTEST_XDIST_AUTO_NUM_WORKERS", "DJANGO_TEST_PROCESSES", "GOMAXPROCS"),
    *("CARGO_BUILD_JOBS", "RAYON_NUM_THREADS", "RUST_TEST_THREADS", "UV_THREADPOOL_SIZE"),
    "CMAKE_BUILD_PARALLEL_LEVEL",
)
CPU_CAP_ENV_VARS: tuple[str, ...] = _CORES
"""By which programs are told how many cores they may use; a container's limit alone does not tell them."""


def cpu_cap_env(cpu: float | None) -> dict[str, str]:
    """Those variables for so many cores, one at least; none where there is no limit."""
    return {} if cpu is None else dict.fromkeys(CPU_CAP_ENV_VARS, str(max(1, int(cpu))))


def resolve_provider_config(
    sandbox_provider: str | Mapping[str, Any], named_configs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`{provider: settings}`, for `create_provider`. Raises ValueError or TypeError in the configuration's terms.

    Args:
        sandbox_provider: a block, or the name of one.
        named_configs: the configuration's blocks by name.
    """
    block = _block(sandbox_provider, named_configs)
    names = [name for name in block if name != _METADATA]
    if len(names) != 1:
        raise ValueError(f"sandbox_provider: expected exactly one provider key, got {', '.join(names) or 'none'}")
    return {names[0]: block[names[0]]}


def resolve_provider_metadata(
    sandbox_provider: str | Mapping[str, Any], named_configs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What every sandbox of this block bears. Raises as `resolve_provider_config` does."""
    found = _block(sandbox_provider, named_configs).get(_METADATA) or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"sandbox_provider: {_METADATA} must be a mapping, got {found!r}")
    return dict(found)


def rewrite_image(image: str | None, rewrites: list[dict[str, str]]) -> str | None:
    """The image under another registry: the first rule whose `from` it begins with gives its `to`."""
    for rule in rewrites if image is not None else ():
        if image is not None and image.startswith(rule["from"]):
            return rule["to"] + image.removeprefix(rule["from"])
    return image


def _block(sandbox_provider: str | Mapping[str, Any], named_configs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(sandbox_provider, str):
        named = named_configs or {}
        if not sandbox_provider:
            raise ValueError("sandbox_provider: expected a name, got an empty one")
        if named.get(sandbox_provider) is None:
            near = did_you_mean(sandbox_provider, map(str, named))
            raise ValueError(
                f"sandbox_provider: Sandbox provider reference {sandbox_provider!r} is not defined: "
                f"the configuration has no such block{near}"
            )
        found: Any = named[sandbox_provider]
    elif isinstance(sandbox_provider, Mapping | DictConfig):
        found = sandbox_provider
    else:
        raise TypeError(f"sandbox_provider: expected a name or a block, got {type(sandbox_provider).__name__}")
    if isinstance(found, DictConfig):
        found = OmegaConf.to_container(found, resolve=True)
    if not isinstance(found, Mapping):
        raise ValueError(f"sandbox_provider: expected a block to be a mapping, got {found!r}")
    return found
