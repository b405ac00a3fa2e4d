"""What was answered, durable and readable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .record import CallRecord, Failure, Receipt, Seal, Times, from_json, to_json
    from .store import CaptureStore
    from .verify import Report
    from .writer import ShardWriter

__all__ = [
    "CallRecord",
    "CaptureStore",
    "Failure",
    "Receipt",
    "Report",
    "Seal",
    "ShardWriter",
    "Times",
    "from_json",
    "to_json",
]

_MODULES = {"CaptureStore": "store", "Report": "verify", "ShardWriter": "writer"}


def __getattr__(name: str) -> Any:
    # On first use: Arrow is half a second that a process which only needs the record's type should not pay.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'record')}"), name)
