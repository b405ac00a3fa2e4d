"""A directory of captures, read: whole records, contents and prefixes joined back.

The directory is a run's folder, or one with such folders anywhere below it. Shards that are still being written
or were torn are read as far as they are whole. Nothing is kept open or in memory between calls but what the
operating system caches.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from .index import lacks, rollout_key
from .reader import ShardReader
from .record import CallRecord, Receipt, Seal
from .schema import Row
from .shard import SEALED, SUFFIX

if TYPE_CHECKING:
    from .tail import Tail
    from .verify import Report

log = logging.getLogger("nemo_gym.capture")
_BEGAN = ("rollout_id", "received_at", "at")
_SEAL = ("at", "sealed_calls", "digest", "incomplete")


class CaptureStore:
    """Raises FileNotFoundError when there is no such directory, NotADirectoryError when it is a file, and ValueError
    for an empty path: that would be the working folder, which nobody named.

    Args:
        only: which of the directory's shards count, by their path without its suffix; all unless it is given.
    """

    def __init__(self, directory: str | PathLike[str], only: Callable[[Path], bool] | None = None) -> None:
        if not str(directory).strip():
            raise ValueError("expected a folder of captures, found an empty path")
        self.directory = Path(directory)
        self._only = only
        if self.directory.is_file():
            raise NotADirectoryError(f"{self.directory} is a file; expected a folder of captures")
        if not self.directory.is_dir():
            raise FileNotFoundError(f"no such directory: {self.directory}")
        self._skipped: set[Path] = set()

    def paths(self) -> list[Path]:
        """The shards, in the order in which each process wrote them."""
        streams = list(self.directory.rglob(f"*{SUFFIX}"))  # first: one that is sealed meanwhile is found below
        sealed = set(self.directory.rglob(f"*{SEALED}"))
        found = [*sealed, *(one for one in streams if one.with_suffix(SEALED) not in sealed)]
        if self._only is not None:
            found = [one for one in found if self._only(one.with_suffix(""))]
        return sorted(found, key=_order)

    def shards(self, rollout_id: str | None = None) -> Iterator[ShardReader]:
        """All, or those in which a rollout may be: most of a long run are not even opened then.

        What is no shard is named in a warning and left out; `verify` counts it as a problem.
        """
        key = None if rollout_id is None else rollout_key(rollout_id)
        for path in self.paths():
            shard = None if key is not None and lacks(path, key) else self.shard(path)
            if shard is not None:
                yield shard

    def shard(self, path: Path) -> ShardReader | None:
        """None when it is no shard, or gone."""
        try:
            return opened(path)
        except FileNotFoundError:
            return None  # pruned since it was listed
        except (ValueError, OSError) as error:
            if path not in self._skipped:
                self._skipped.add(path)
                log.warning("captures: skipped %s", error)
            return None

    def rollouts(self) -> list[str]:
        """The ids of all rollouts that have a call or a seal, in the order in which they began."""
        began: dict[str, float] = {}
        for shard in self.shards():
            for batch in shard.batches(_BEGAN):
                columns = [batch.column(name).to_pylist() for name in _BEGAN]
                for rollout_id, received, at in zip(*columns, strict=True):
                    if rollout_id is not None:
                        time = received if received is not None else at
                        began[rollout_id] = min(time, began.get(rollout_id, time))
        return sorted(began, key=began.__getitem__)

    def calls(self, rollout_id: str | None = None) -> Iterator[CallRecord]:
        """Whole records. One rollout's in the order in which they were received; else shard by shard."""
        if rollout_id is None:
            for shard in self.shards():
                yield from shard.records()
            return
        found = [record for shard in self.shards(rollout_id) for record in shard.records(rollout_id)]
        yield from sorted(found, key=lambda record: (record.times.received, record.call_id))

    def seals(self, rollout_id: str | None = None) -> list[tuple[str, Seal]]:
        """(server, its latest seal) for each rollout and server that has one."""
        latest = _latest_seals(self.shards(rollout_id), rollout_id, "server")
        return [(server, seal) for (server, _), seal in latest.items()]

    def seals_of_runs(self) -> list[tuple[tuple[str, str], Seal]]:
        """((run id, server), its latest seal) of all: a later run may name its rollouts as an earlier one did."""
        latest = _latest_seals(self.shards(), None, "run_id", "server")
        return [((run_id, server), seal) for (run_id, server, _), seal in latest.items()]

    def receipts(self) -> dict[str, Receipt]:
        """By call id. A call without one is not known to have been delivered."""
        return {
            row["call_id"]: Receipt(row["call_id"], row["delivered"], row["at"])
            for shard in self.shards()
            for row in shard.rows("receipt", columns=("call_id", "delivered", "at"))
        }

    def table(self, columns: Sequence[str] | None = None, rollout_id: str | None = None) -> pa.Table:
        """One row a call. Raises ValueError that names a column there is not."""
        from .table import table

        return table(self, columns, rollout_id)

    def tables(
        self, columns: Sequence[str] | None = None, rollout_id: str | None = None
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """`table` in pieces, for what does not fit into memory."""
        from .table import pieces

        return pieces(self, columns, rollout_id)

    def tail(self, *, from_start: bool = False) -> Tail:
        """What is recorded from now on."""
        from .tail import Tail

        return Tail(self, from_start=from_start)

    def verify(self) -> Report:
        """Holds chains, digests, contents, parents and seals together."""
        from .verify import verify

        return verify(self)


def opened(path: Path) -> ShardReader:
    """The shard, sealed since it was listed or not. Raises as ShardReader does."""
    try:
        shard = ShardReader(path)
    except FileNotFoundError:
        return ShardReader(path.with_suffix(SEALED))
    if shard.size and not shard.known and not named(path):
        raise ValueError(f"{path}: not a capture shard")
    return shard


def named(path: Path) -> bool:
    """Whether it bears the name of a writer's shard: only that tells an empty one from a stranger's file."""
    return re.fullmatch(r".+-\d+-\d+", path.stem) is not None


def _order(path: Path) -> tuple[str, str, int]:
    number = re.fullmatch(r"(.*)-(\d+)", path.stem)
    return (str(path.parent), *((number[1], int(number[2])) if number else (path.stem, 0)))


def _latest_seals(shards: Iterable[ShardReader], rollout_id: str | None, *by: str) -> dict[tuple[str, ...], Seal]:
    """By these columns and the rollout. A writer's last one counts, whatever the clock said; of writers, the latest."""
    last: dict[tuple[str, str], Row] = {}
    for shard in shards:
        for row in shard.rows("seal", rollout_id, (*_SEAL, *by)):
            last[shard.writer, row["rollout_id"]] = row
    latest: dict[tuple[str, ...], Row] = {}
    for row in sorted(last.values(), key=lambda row: float(row["at"])):
        latest[(*[str(row[name]) for name in by], row["rollout_id"])] = row
    return {
        key: Seal(key[-1], tuple(row["sealed_calls"]), row["digest"].hex(), row.get("incomplete"))
        for key, row in latest.items()
    }
