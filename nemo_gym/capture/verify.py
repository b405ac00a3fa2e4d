"""What of a capture is missing, torn or changed.

A problem is what must not be: a changed byte, a call that a seal does not know, a content that is not there.
A seal speaks for the process that wrote it: calls of a server that died in mid-rollout are unsealed. A torn tail
or an open shard is no problem: a writer was killed, and what it had acknowledged lies before the tear.
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
from .store import CaptureStore, latest_seals, named, opened


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
    """Rollouts that some writer never sealed; they count as incomplete."""
    incomplete: dict[str, str] = {}
    """Rollout -> why its seal says that it is not whole."""
    problems: list[str] = []

    @property
    def ok(self) -> bool:
        return not self.problems


_Calls = dict[tuple[str, str], dict[str, bytes]]
"""(writer, rollout) -> call id -> digest of its row."""


def verify(store: CaptureStore) -> Report:
    report = Report()
    calls: _Calls = defaultdict(dict)
    seen: set[str] = set()
    seals: list[tuple[str, Row]] = []
    runs: dict[Path, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in store.paths():
        try:
            shard = opened(path)
        except (ValueError, OSError, NotImplementedError) as error:
            report.problems.append(str(error))
            continue
        report.shards += 1
        if not shard.known and not named(path) and shard.size:
            report.problems.append(f"{path}: not a capture shard")
            continue
        if shard.torn:
            report.torn.append(Torn(str(path), shard.torn))
        if path.suffix != SEALED and not shard.sealed:
            report.open.append(str(path))
        if path.suffix == SEALED and not shard.packed:
            report.problems.append(f"{path}: the end of a sealed shard is missing, or was changed")
        try:
            _check_shard(shard, report, calls, seen)
            if not index.holds(shard.batches(INDEXED), path, shard.size):
                report.problems.append(f"{path.with_suffix(INDEX)}: not the index of its shard; `repair` makes it anew")
            runs[path.parent][_run(shard)].append(path.name)
            seals.extend((shard.writer, row) for row in shard.rows("seal"))
        except (
            OSError,
            MemoryError,
            ValueError,
            KeyError,
            IndexError,
            NotImplementedError,
        ) as error:  # Arrow's own errors are among these
            said = str(error)
            report.problems.append(said if said.startswith(f"{path}:") else f"{path}: cannot be unpacked: {said}")
    for path in store.directory.rglob(f"*{INDEX}"):
        if not path.with_suffix(SEALED).exists() and not path.with_suffix(SUFFIX).exists() and named(path):
            report.problems.append(f"{path.with_suffix(SEALED)}: the shard is gone, its index is there")
    for folder, found in runs.items():
        _check_runs(folder, {run: names for run, names in found.items() if run}, report)
    report.calls = len(seen)
    report.rollouts = len({rollout_id for _, rollout_id in calls})
    _check_seals(seals, report, calls)
    return report


def _check_shard(shard: ShardReader, report: Report, calls: _Calls, seen: set[str]) -> None:
    name = str(shard.path)
    for number, (batch, chain) in enumerate(zip(shard.batches(), shard.chains(), strict=True)):
        if batch.column("chain")[0].as_py() != chain:
            report.problems.append(f"{name}: something before batch {number} was changed, added or taken out")
        report.problems.extend(f"{name}: {one} was changed" for one in unsound(batch))
        for row in to_rows(batch):
            if row["kind"] != "call":
                continue
            call_id = row["call_id"]
            if call_id in seen:
                report.problems.append(f"{name}: call {call_id} is recorded twice")
            seen.add(call_id)
            if "rollout_id" in row:
                calls[shard.writer, row["rollout_id"]][call_id] = row["digest"]
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


def _check_seals(rows: list[tuple[str, Row]], report: Report, calls: _Calls) -> None:
    seals = latest_seals(rows)
    for (writer, rollout_id), seal in seals.items():
        if seal.incomplete is not None:
            report.incomplete[rollout_id] = seal.incomplete
        there = calls.get((writer, rollout_id), {})
        about = f"rollout {rollout_id} at {writer}"
        gone = [call_id for call_id in seal.call_ids if call_id not in there]
        report.problems.extend(f"{about}: call {one} is in the seal and not in the capture" for one in gone)
        more = [call_id for call_id in there if call_id not in seal.call_ids]
        report.problems.extend(f"{about}: call {one} is not in the seal" for one in more)
        if not gone and rollout_digest(there[one] for one in seal.call_ids) != seal.digest:
            report.problems.append(f"{about}: the calls are not those that were sealed")
    report.unsealed = sorted({rollout_id for writer, rollout_id in calls if (writer, rollout_id) not in seals})
