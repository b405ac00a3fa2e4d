"""A job's captures and rewards into the files that trainers read.

Calls are read once, in the order they were written; a rollout is let go as soon as the number of calls it was sealed
with has been seen, so memory holds the rollouts that were under way together, not the run. A format's folder is
replaced whole when all is written.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson
from msgspec import Struct

from ..capture.record import CallRecord
from ..capture.store import CaptureStore
from .account import Account
from .forest import Generation, forest, generations, without_ids
from .formats.format import Format, Result, Row
from .formats.token_rows import TokenRows
from .sequences import sequences

FORMATS: dict[str, type[Format]] = {"token_rows": TokenRows}


class ExportError(Exception):
    """Nothing was exported; words for the user."""


class ExportSummary(Struct, frozen=True):
    folders: dict[str, str]
    """format -> its folder."""
    rows: int
    rollouts: int
    """Exported ones."""
    left_out: dict[str, int]
    """Rollouts that were not, by reason."""
    captured: int
    trained: int
    context: int
    discarded: dict[str, int]
    """Tokens by reason."""
    calls: dict[str, int]
    """Calls that are not trained, by reason."""


def export(output_dir: str | Path, formats: Sequence[str], captures: str | Path | None = None) -> ExportSummary:
    """Exports the job in `output_dir`; `captures` where they are not in its own folder."""
    output = Path(output_dir)
    unknown = sorted(set(formats) - FORMATS.keys())
    if unknown or not formats:
        raise ExportError(f"unknown format {', '.join(unknown) or '(none)'}; there is {', '.join(FORMATS)}")
    source = Path(captures) if captures is not None else output / "captures"
    if not source.is_dir():
        raise ExportError(f"there are no captures at {source}")
    results = read_results(output / "rollouts.jsonl")
    folder = output / "exports"
    scratch = {name: folder / f".{name}.tmp" for name in formats}
    for path in scratch.values():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    writers = {name: FORMATS[name](scratch[name]) for name in scratch}
    exporter = _Exporter(results, list(writers.values()))
    exporter.all(CaptureStore(str(source)).calls())
    for writer in writers.values():
        writer.close()
    folders = {}
    for name, path in scratch.items():
        final = folder / name
        shutil.rmtree(final, ignore_errors=True)
        os.replace(path, final)
        folders[name] = str(final)
    summary = exporter.summary(folders, max(writer.rows for writer in writers.values()))
    described = orjson.dumps(msgspec.to_builtins(summary), option=orjson.OPT_INDENT_2)
    (folder / "summary.json").write_bytes(described + b"\n")
    (folder / "README.md").write_text(_card([name for name in FORMATS if (folder / name).is_dir()]), encoding="utf-8")
    return summary


def _card(formats: list[str]) -> str:
    """The dataset card. It lies beside the folders: pyarrow takes every file within one for data."""
    configs = "".join(f'  - config_name: {name}\n    data_files: "{name}/*"\n' for name in formats)
    return f"---\nconfigs:\n{configs}---\n\n# Rollouts of one job\n\n" + "\n".join(
        FORMATS[name].card for name in formats
    )


class _Exporter:
    def __init__(self, results: dict[str, Result], writers: list[Format]) -> None:
        self._results = results
        self._writers = writers
        self._account = Account()
        self._left_out: Counter[str] = Counter()
        self._exported = 0
        self._ended: set[str] = set()

    def all(self, records: Iterator[CallRecord]) -> None:
        held: dict[str, _Held] = {}
        for record in records:
            if record.rollout_id is None or record.rollout_id in self._ended:
                self._loose(record)
                continue
            rollout = held.setdefault(record.rollout_id, _Held())
            rollout.add(record)
            result = self._results.get(record.rollout_id)
            if result is not None and result.calls is not None and rollout.calls == result.calls:
                self._rollout(record.rollout_id, held.pop(record.rollout_id))
        for rollout_id, rollout in held.items():
            self._rollout(rollout_id, rollout)

    def summary(self, folders: dict[str, str], rows: int) -> ExportSummary:
        account = self._account
        assert account.adds_up
        return ExportSummary(
            folders=folders,
            rows=rows,
            rollouts=self._exported,
            left_out=dict(self._left_out),
            captured=account.captured,
            trained=account.trained,
            context=account.context,
            discarded=dict(account.discarded),
            calls=dict(account.calls),
        )

    def _loose(self, record: CallRecord) -> None:
        loose = list(generations(record))
        forest(loose)
        self._account.leave_out(loose, "no_rollout" if record.rollout_id is None else "after_seal")

    def _rollout(self, rollout_id: str, held: _Held) -> None:
        self._ended.add(rollout_id)
        # Calls that ran side by side may be written in another order than they were asked in.
        ordered = [one for _, one in sorted(held.generations, key=lambda item: item[0])]
        roots = forest(ordered)
        result = self._results.get(rollout_id)
        self._account.calls.update({"no_token_ids": held.without_ids} if held.without_ids else {})
        reason = _left_out(result, held)
        if reason is not None or result is None:
            self._left_out[reason or "no_result"] += 1
            self._account.leave_out(ordered, reason or "no_result")
            return
        rows = list(sequences(roots))
        self._account.rollout(ordered, rows)
        if not rows:
            self._left_out["nothing_to_train"] += 1
            return
        self._exported += 1
        for sequence in rows:
            row = Row(sequence, result, sequence.generations[-1].run_id, complete=held.without_ids == 0)
            for writer in self._writers:
                writer.add(row)


class _Held:
    """A rollout whose calls are still coming in; only what is trained of them is kept."""

    def __init__(self) -> None:
        self.calls = 0
        self.without_ids = 0
        self.generations: list[tuple[tuple[float, int], Generation]] = []

    def add(self, record: CallRecord) -> None:
        self.calls += 1
        self.without_ids += without_ids(record)
        for number, generation in enumerate(generations(record)):
            self.generations.append(((record.times.received, number), generation))


def _left_out(result: Result | None, held: _Held) -> str | None:
    if result is None:
        return "no_result"
    if result.masked:
        return "masked"
    if result.incomplete is not None:
        return f"incomplete_{result.incomplete}"
    if result.calls is not None and held.calls != result.calls:
        return "calls_missing"
    return None


def read_results(path: Path) -> dict[str, Result]:
    """What the job's journal says, by rollout id; a torn last line is left out."""
    if not path.is_file():
        raise ExportError(f"there is no job at {path.parent}: it has no rollouts.jsonl")
    results = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                result = _result(orjson.loads(line))
            except (KeyError, TypeError, ValueError) as error:
                raise ExportError(f"{path}:{number}: no rollout of a job: {error!r}") from error
            results[result.rollout_id] = result
    return results


def _result(row: dict[str, Any]) -> Result:
    task = int(row["_ng_task_index"])
    said = row.get("_ng_rollout") or {}
    named = row.get("task_id")
    return Result(
        rollout_id=str(row["_ng_rollout_id"]),
        task_id=str(task if named is None else named),
        task=task,
        agent=str((row.get("agent_ref") or {}).get("name", "")),
        reward=float(row["reward"]),
        masked=bool(row.get("mask_sample")),
        calls=said.get("calls"),
        incomplete=said.get("incomplete"),
    )
