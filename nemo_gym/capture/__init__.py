"""What was answered, durable and readable."""

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
