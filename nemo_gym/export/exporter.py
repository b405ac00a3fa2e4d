"""A job's captures and rewards into the files that trainers read.

First every rollout is judged (ledger.py), then its calls are read once and its rows written, in memory that does not
grow with the run. A format's folder is replaced whole when all is written.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from ..capture.store import CaptureStore
from . import account as accounts
from . import manifest, sources
from .account import Account
from .breaks import beginning
from .calls import Captured, CapturedCall, rollouts, survey
from .forest import Forest, without_ids
from .formats import FORMATS
from .formats.format import Format, Rollout
from .ledger import Entry, Ledger
from .manifest import ExportSummary
from .options import ExportError, Options, check
from .sequences import Sequence as Tokens
from .sequences import choose, sequences
from .sources import Source

__all__ = ["FORMATS", "ExportError", "ExportSummary", "Options", "export"]


def export(
    output_dir: str | Path,
    formats: Sequence[str],
    captures: str | Path | None = None,
    options: Options | None = None,
    folder: str | Path | None = None,
) -> ExportSummary:
    """Exports the job in `output_dir`, or the captures that lie there without one.

    Args:
        captures: where they are, if not in the job's own folder.
        folder: where the formats' folders go; `exports` in the job's folder unless it is given.
    """
    output, options = Path(output_dir), options or Options()
    unknown = sorted(set(formats) - FORMATS.keys())
    if unknown or not formats:
        raise ExportError(f"unknown format {', '.join(unknown) or '(none)'}; there is {', '.join(FORMATS)}")
    check(options)
    source = sources.found(output, captures, folder)
    names = list(dict.fromkeys(formats))
    if source.results is None:
        sources.check_alone(names, options)
    target = source.target
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ExportError(f"another export is writing to {target}") from None
        return _replaced(source, names, options)


def _replaced(source: Source, names: list[str], options: Options) -> ExportSummary:
    target = source.target
    scratch = target / ".export.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    for name in names:
        (scratch / name).mkdir(parents=True)
    try:
        summary = _export(source, names, options, scratch)
        for name in names:
            shutil.rmtree(target / name, ignore_errors=True)
            os.replace(scratch / name, target / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    manifest.write(target, summary, options)
    manifest.write_card(target, [FORMATS[name] for name in names], options)
    return summary


def _export(source: Source, names: list[str], options: Options, scratch: Path) -> ExportSummary:
    store, alone = CaptureStore(str(source.captures)), source.results is None
    ledger = Ledger(scratch / "ledger.sqlite")
    try:
        if source.results is not None:
            ledger.read_results(source.results, usage="_tokens" in (options.where or ""))
        newest = survey(store, ledger, exact_versions=options.max_staleness is not None, alone=alone)
        ledger.judge(options, newest, alone=alone)
        writers: list[Format] = [FORMATS[name](scratch / name, options) for name in names]
        exporter = _Exporter(ledger, writers, options, alone)
        for item in rollouts(store, ledger, alone=alone):
            if isinstance(item, CapturedCall):
                exporter.loose(item)
            else:
                exporter.rollout(item)
        for writer in writers:
            writer.close()
        exporter.left_out += ledger.without_calls()
        return exporter.summary(source.target)
    finally:
        ledger.close()


class _Exporter:
    def __init__(self, ledger: Ledger, writers: list[Format], options: Options, alone: bool) -> None:
        self._ledger = ledger
        self._alone = alone
        self._writers = writers
        self._options = options
        self._account = Account()
        self._exported = 0
        self._beginnings: Counter[str] = Counter()
        self._versions: tuple[int | None, int | None] = (None, None)
        self._explains = any(writer.needs_tokens for writer in writers)
        self.left_out: Counter[str] = Counter()

    def summary(self, target: Path) -> ExportSummary:
        return ExportSummary(
            formats=manifest.described(self._writers, target),
            rollouts=self._exported,
            left_out=dict(self.left_out),
            **manifest.tokens(self._account),
            sequences=dict(self._beginnings),
            policy_versions=self._versions,
        )

    def loose(self, call: CapturedCall) -> None:
        self._account.add(accounts.left_out([call], "no_rollout" if call.rollout_id is None else "after_seal"))

    def rollout(self, captured: Captured) -> None:
        entry = self._ledger.get(captured.rollout_id)
        blind = sum(map(without_ids, captured.calls))
        if blind:
            self._account.calls["no_token_ids"] += blind
        reason = entry.reason
        if reason is None and captured.missing and "calls_missing" not in self._options.include:
            reason = "calls_missing"
        if reason is not None:
            self._leave_out(captured, reason)
            return
        forest = Forest(captured.calls)
        choose(forest, self._options.branches)
        rows = list(sequences(forest, self._options.branches))
        reason = self._unwanted(entry, captured, rows)
        if reason is not None:
            self._leave_out(captured, reason)
            return
        stated = captured.sealed or not self._alone  # else nobody has said which calls there are
        complete = not blind and not captured.missing and entry.whole and stated
        rollout = Rollout(entry, captured.calls, rows, self._options.branches, complete)
        self._account.add(accounts.exported(forest, rows))
        made = [writer.add(rollout) for writer in self._writers]
        if not any(made):
            self.left_out["nothing_to_train"] += 1
            return
        self._exported += 1
        self._note(rows, forest)

    def _unwanted(self, entry: Entry, captured: Captured, rows: list[Tokens]) -> str | None:
        options = self._options
        longest = max(map(len, rows), default=0)
        if options.min_tokens is not None and longest < options.min_tokens:
            return "too_short"
        if options.max_tokens is not None and longest > options.max_tokens:
            return "too_long"
        if options.dedupe and not self._ledger.first_to_say(_said(entry, captured.calls)):
            return "duplicate"
        return None

    def _leave_out(self, captured: Captured, reason: str) -> None:
        self.left_out[reason] += 1
        self._account.add(accounts.left_out(captured.calls, reason))

    def _note(self, rows: list[Tokens], forest: Forest) -> None:
        if self._explains:
            self._beginnings.update(beginning(row, forest).cause for row in rows)
        versions = [version for row in rows for one in row.trained for _, version in one.spoken.versions]
        known = [version for version in (*versions, *self._versions) if version is not None]
        self._versions = (min(known), max(known)) if known else (None, None)


def _said(entry: Entry, calls: list[CapturedCall]) -> bytes:
    """The digest of what a rollout said, in order: by its ids where there are any, else by its parts."""
    digest = blake2b(entry.task_id.encode(), digest_size=16)
    for call in calls:
        if not call.trainable:
            continue
        for one in call.choices:
            digest.update(one.ids if one.ids is not None else one.parts)
            digest.update(b"|")
    return digest.digest()
