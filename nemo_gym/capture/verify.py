"""What of a capture is missing, torn or changed.

A problem is what must not be: a changed byte, a call that a seal does not know, a content that is not there.
A seal speaks for the process that wrote it: calls of a server that died in mid-rollout are unsealed, and so is what
came after a seal, which lies behind it in the file whatever the clock said. A torn tail or an open shard is no
problem: a writer was killed, and what it had acknowledged lies before the tear.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from msgspec import Struct

from . import index
from .columns import to_rows
from .index import INDEX, INDEXED
from .reader import ShardReader, unsound
from .rollouts import rollout_digest
from .schema import Row
from .shard import SEALED, SUFFIX
from .store import CaptureStore, named, opened


class Torn(Struct, frozen=True):
    path: str
    bytes: int
    """After the last whole batch."""


class Report(Struct):
    shards: int = 0
    calls: int = 0
    rollouts: int = 0
    without_rollout: int = 0
    open: list[str] = []
    """Shards without an end: their writer lives, or was killed."""
    torn: list[Torn] = []
    unsealed: list[str] = []
    """Rollouts that some writer never sealed, or not since their last call; they count as incomplete."""
    late: dict[str, list[str]] = {}
    """Rollout -> its calls that came after its seal: whole, and not what was stated of it."""
    incomplete: dict[str, str] = {}
    """Rollout -> why its seal says that it is not whole."""
    problems: list[str] = []

    @property
    def ok(self) -> bool:
        return not self.problems


class _Found:
    """Of each (writer, rollout), in the order in which it was written."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], dict[str, bytes]] = defaultdict(dict)
        """Call id -> digest of its row."""
        self.seals: dict[tuple[str, str], tuple[Row, int]] = {}
        """The last seal, and how many calls were before it."""
        self.seen: set[str] = set()
        """All calls."""

    def seal(self, writer: str, row: Row) -> None:
        key = (writer, row["rollout_id"])
        self.seals[key] = row, len(self.calls.get(key, ()))


def verify(store: CaptureStore) -> Report:
    report = Report()
    found = _Found()
    runs: dict[Path, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in store.paths():
        try:
            shard = opened(path)
        except (ValueError, OSError, NotImplementedError) as error:
            report.problems.append(str(error))
            continue
        report.shards += 1
        if shard.torn:
            report.torn.append(Torn(str(path), shard.torn))
        if path.suffix != SEALED and not shard.sealed:
            report.open.append(str(path))
        if path.suffix == SEALED and not shard.packed:
            report.problems.append(f"{path}: the end of a sealed shard is missing, or was changed")
        try:
            _check_shard(shard, report, found)
            if not index.holds(shard.batches(INDEXED), path, shard.size):
                report.problems.append(f"{path.with_suffix(INDEX)}: not the index of its shard; `repair` makes it anew")
            runs[path.parent][_run(shard)].append(path.name)
        except (OSError, MemoryError, ValueError, LookupError, NotImplementedError) as error:  # also all of Arrow's
            said = str(error)
            report.problems.append(said if said.startswith(f"{path}:") else f"{path}: cannot be unpacked: {said}")
    for path in store.directory.rglob(f"*{INDEX}"):
        if not path.with_suffix(SEALED).exists() and not path.with_suffix(SUFFIX).exists() and named(path):
            report.problems.append(f"{path.with_suffix(SEALED)}: the shard is gone, its index is there")
    for folder, of_runs in runs.items():
        _check_runs(folder, {run: names for run, names in of_runs.items() if run}, report)
    report.calls = len(found.seen)
    report.rollouts = len({rollout_id for _, rollout_id in found.calls})
    _check_seals(found, report)
    return report


def _check_shard(shard: ShardReader, report: Report, found: _Found) -> None:
    name = str(shard.path)
    for number, (batch, chain) in enumerate(zip(shard.batches(), shard.chains(), strict=True)):
        if batch.column("chain")[0].as_py() != chain:
            report.problems.append(f"{name}: something before batch {number} was changed, added or taken out")
        report.problems.extend(f"{name}: {one} was changed" for one in unsound(batch))
        for row in to_rows(batch):
            if row["kind"] == "seal":
                found.seal(shard.writer, row)
            if row["kind"] != "call":
                continue
            call_id = row["call_id"]
            if call_id in found.seen:
                report.problems.append(f"{name}: call {call_id} is recorded twice")
            found.seen.add(call_id)
            if "rollout_id" in row:
                found.calls[shard.writer, row["rollout_id"]][call_id] = row["digest"]
            else:
                report.without_rollout += 1
            _check_call(shard, row, report)


def _run(shard: ShardReader) -> str:
    """Which run's; "" where no row says so."""
    for batch in shard.batches(("run_id",)):
        for run_id in batch.column("run_id").to_pylist():
            if run_id:
                return str(run_id)
    return ""


def _check_runs(folder: Path, runs: dict[str, list[str]], report: Report) -> None:
    """A writer puts only its own run's into a folder, whatever that is called by now."""
    own = folder.name if folder.name in runs else max(runs, key=lambda run: len(runs[run]), default="")
    for run, names in runs.items():
        if run != own:
            report.problems.extend(f"{folder / name}: of run {run}, among the shards of run {own}" for name in names)


def _check_call(shard: ShardReader, row: Row, report: Report) -> None:
    try:
        missing = [key for key in shard.referred(row) if not shard.holds(key)]
    except (KeyError, ValueError) as error:
        report.problems.append(f"{shard.path}: call {row['call_id']} cannot be joined: missing {error}")
        return
    for key in missing:
        report.problems.append(f"{shard.path}: call {row['call_id']} refers to content {key.hex()}, which is not there")


def _check_seals(found: _Found, report: Report) -> None:
    for (writer, rollout_id), (row, before) in found.seals.items():
        stated, incomplete = row["sealed_calls"], row.get("incomplete")
        if incomplete is not None:
            report.incomplete[rollout_id] = incomplete
        there = found.calls.get((writer, rollout_id), {})
        about = f"rollout {rollout_id} at {writer}"
        gone = [call_id for call_id in stated if call_id not in there]
        report.problems.extend(f"{about}: call {one} is in the seal and not in the capture" for one in gone)
        more = [call_id for call_id in list(there)[:before] if call_id not in stated]
        report.problems.extend(f"{about}: call {one} is not in the seal" for one in more)
        if not gone and rollout_digest(there[one] for one in stated) != row["digest"].hex():
            report.problems.append(f"{about}: the calls are not those that were sealed")
        if late := list(there)[before:]:
            report.late.setdefault(rollout_id, []).extend(late)
    unsealed = {rollout_id for writer, rollout_id in found.calls if (writer, rollout_id) not in found.seals}
    report.unsealed = sorted(unsealed | report.late.keys())
