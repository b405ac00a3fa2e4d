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
from pathlib import Path

from ..capture.store import CaptureStore
from . import manifest, sources
from .account import Account
from .calls import rollouts, survey
from .captured import CapturedCall
from .formats import FORMATS
from .formats.format import Format
from .ledger import Ledger
from .manifest import ExportSummary
from .options import ExportError, Options, check
from .parcels import Packer, Parcel, loose
from .sources import Source

__all__ = ["FORMATS", "ExportError", "ExportSummary", "Options", "export"]


def export(
    output_dir: str | Path,
    formats: Sequence[str],
    captures: str | Path | None = None,
    options: Options | None = None,
    folder: str | Path | None = None,
    ray: str | None = None,
) -> ExportSummary:
    """Exports the job in `output_dir`, or the captures that lie there without one.

    Args:
        captures: where they are, if not in the job's own folder.
        folder: where the formats' folders go; `exports` in the job's folder unless it is given.
        ray: the address of a Ray cluster that does the work; the files are the same.
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
        return _replaced(source, names, options, ray)


def _replaced(source: Source, names: list[str], options: Options, ray: str | None) -> ExportSummary:
    target = source.target
    scratch = target / ".export.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    for name in names:
        (scratch / name).mkdir(parents=True)
    try:
        summary = _export(source, names, options, scratch, ray)
        for name in names:
            shutil.rmtree(target / name, ignore_errors=True)
            os.replace(scratch / name, target / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    manifest.write(target, summary, options)
    manifest.write_card(target, [FORMATS[name] for name in names], options)
    return summary


def _export(source: Source, names: list[str], options: Options, scratch: Path, ray: str | None) -> ExportSummary:
    ledger = Ledger(scratch / "ledger.sqlite")
    try:
        if source.results is not None:
            ledger.read_results(source.results, usage="_tokens" in (options.where or ""))
        formats: list[Format] = [FORMATS[name](scratch / name, options) for name in names]
        exporter = _Exporter(ledger, formats)
        if ray is None:
            _here(source, options, ledger, formats, exporter)
        else:
            from .distributed import Distributed

            for packed in Distributed(source, names, options, ledger, scratch, ray).packed():
                exporter.account.add(packed.loose)
                for parcel in packed.parcels:
                    exporter.take(parcel)
        for one in formats:
            one.close()
        exporter.left_out += ledger.without_calls()
        return exporter.summary(source.target)
    finally:
        ledger.close()


def _here(source: Source, options: Options, ledger: Ledger, formats: list[Format], exporter: _Exporter) -> None:
    """In this process, in one pass."""
    store, alone = CaptureStore(str(source.captures)), source.results is None
    exact, shared = options.max_staleness is not None, options.shared
    newest = survey(store, ledger, exact_versions=exact, alone=alone, shared=shared)
    ledger.judge(options, newest, alone=alone)
    packer = Packer(formats, options, alone=alone)
    with ledger.together():
        for item in rollouts(store, ledger, alone=alone, shared=shared):
            if isinstance(item, CapturedCall):
                exporter.account.add(loose(item))
            else:
                exporter.take(packer.pack(item, item.entry or ledger.get(item.rollout_id)))


class _Exporter:
    """Takes parcels, one after the other, and sums up."""

    def __init__(self, ledger: Ledger, formats: list[Format]) -> None:
        self._ledger = ledger
        self._formats = formats
        self._exported = 0
        self._beginnings: Counter[str] = Counter()
        self._versions: tuple[int, ...] = ()
        self.account = Account()
        self.left_out: Counter[str] = Counter()

    def take(self, parcel: Parcel) -> None:
        if parcel.reason is not None:
            self._leave_out(parcel.reason, parcel.account)
            return
        if parcel.as_duplicate is not None and not self._ledger.first_to_say(parcel.said or b""):
            self._leave_out("duplicate", parcel.as_duplicate)
            return
        self.account.add(parcel.account)
        taken = [
            one.take(made, parcel.entry)
            for one, made in zip(self._formats, parcel.made, strict=True)
            if made is not None
        ]
        if not any(taken):
            self.left_out["nothing_to_train"] += 1
            return
        self._exported += 1
        self._beginnings.update(parcel.beginnings)
        known = (*parcel.versions, *self._versions)
        self._versions = (min(known), max(known)) if known else ()

    def _leave_out(self, reason: str, account: Account) -> None:
        self.left_out[reason] += 1
        self.account.add(account)

    def summary(self, target: Path) -> ExportSummary:
        oldest, newest = self._versions or (None, None)
        return ExportSummary(
            formats=manifest.described(self._formats, target),
            rollouts=self._exported,
            left_out=dict(self.left_out),
            **manifest.tokens(self.account),
            sequences=dict(self._beginnings),
            policy_versions=(oldest, newest),
        )
