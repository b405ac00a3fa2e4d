"""Eval jobs: rows in, rollouts and figures out.

`Rollouts` hands out a job's rollouts as they finish; it is imported when it is asked for, since figures are used where
no job runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .online import JobFailed as JobFailed
    from .online import Rollout as Rollout
    from .online import Rollouts as Rollouts
    from .online import Turn as Turn

__all__ = ["JobFailed", "Rollout", "Rollouts", "Turn"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import online

    return getattr(online, name)
