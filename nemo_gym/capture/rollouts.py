"""What one writer knows of each rollout: its calls in order, for the seal; its records, while memory allows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from .record import CallRecord

_SEALED = 1024
"""So many sealed rollouts are remembered."""


class Rollout:
    def __init__(self) -> None:
        self.calls: dict[str, bytes] = {}
        """Call id -> digest of its row, in order."""
        self.records: list[CallRecord] | None = []
        """None when they are no longer held."""
        self.size = 0
        """Of its records, about."""
        self.lost = False
        """A call of it could not be recorded."""


class Rollouts:
    """Bounded: the least recently used are forgotten, and records before that."""

    def __init__(self, max_rollouts: int, max_records: int, max_bytes: int = 128 << 20) -> None:
        self._rollouts: OrderedDict[str, Rollout] = OrderedDict()
        self._sealed: OrderedDict[str, None] = OrderedDict()
        self._max_rollouts = max_rollouts
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records = 0
        self._bytes = 0
        self.forgot = False
        """Whether any was."""

    def get(self, rollout_id: str) -> Rollout | None:
        return self._rollouts.get(rollout_id)

    def stated(self, record: CallRecord, digest: bytes) -> None:
        """Its row is on its way to the disk."""
        if record.rollout_id is not None:
            self.use(record.rollout_id).calls[record.call_id] = digest

    def unstated(self, record: CallRecord) -> None:
        if record.rollout_id is not None:
            self.use(record.rollout_id).calls.pop(record.call_id, None)

    def durable(self, record: CallRecord, size: int) -> None:
        """`size` is about what was new in it."""
        rollout = self._rollouts.get(record.rollout_id) if record.rollout_id is not None else None
        if rollout is None or rollout.records is None:
            return
        rollout.records.append(record)
        rollout.size += size
        self._records += 1
        self._bytes += size
        if self._records > self._max_records or self._bytes > self._max_bytes:
            for other in self._rollouts.values():
                self.drop_records(other)
                if self._records <= self._max_records // 2 and self._bytes <= self._max_bytes // 2:
                    break  # not again at each call to come

    def sealed(self, rollout_id: str) -> None:
        """Its calls stay known for a while, in case one comes late; its records lie on the disk."""
        self.drop_records(self.use(rollout_id))
        self._sealed[rollout_id] = None
        self._sealed.move_to_end(rollout_id)
        while len(self._sealed) > _SEALED:
            oldest, _ = self._sealed.popitem(last=False)
            if self._rollouts.pop(oldest, None) is not None:
                self.forgot = True

    def lost(self, record: CallRecord) -> None:
        if record.rollout_id is not None:
            self.use(record.rollout_id).lost = True

    def use(self, rollout_id: str) -> Rollout:
        rollout = self._rollouts.get(rollout_id)
        if rollout is None:
            rollout = self._rollouts[rollout_id] = Rollout()
            if len(self._rollouts) > self._max_rollouts:
                _, oldest = self._rollouts.popitem(last=False)
                self.forgot = True
                self.drop_records(oldest)
        else:
            self._rollouts.move_to_end(rollout_id)
        return rollout

    def drop_records(self, rollout: Rollout) -> None:
        self._records -= len(rollout.records or ())
        self._bytes -= rollout.size
        rollout.records, rollout.size = None, 0


def rollout_digest(digests: Iterable[bytes]) -> str:
    """Of a rollout's rows at one server, in order."""
    return blake2b(b"".join(digests), digest_size=16).hexdigest()
