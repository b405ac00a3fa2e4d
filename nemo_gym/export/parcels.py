"""One rollout, ready to be taken: its rows in every format, or why it is left out, and where its tokens went.

A parcel is made of the rollout alone, wherever that is done. What depends on others (a duplicate, a task that was seen)
is decided when it is taken, in the order of the export.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct, field

from . import account as accounts
from .account import Account
from .breaks import beginning
from .captured import Captured, CapturedCall
from .forest import Forest, without_ids
from .formats.format import Format, Made, Rollout
from .ledger import Entry
from .options import Options
from .sequences import Sequence as Tokens
from .sequences import choose, sequences


class Parcel(Struct):
    entry: Entry
    account: Account
    reason: str | None = None
    """Why it is left out."""
    made: list[Made | None] = field(default_factory=list)
    """By format; None where the format did not want it."""
    beginnings: Counter[str] = field(default_factory=Counter)
    versions: tuple[int, ...] = ()
    """The oldest and the newest that is trained."""
    said: bytes | None = None
    """The digest of what it said, where duplicates are left out."""
    as_duplicate: Account | None = None


class Packer:
    """Makes parcels.

    Args:
        alone: there is no job, so nobody but the seals says which calls there are.
    """

    def __init__(self, formats: Sequence[Format], options: Options, *, alone: bool) -> None:
        self._formats = formats
        self._options = options
        self._alone = alone
        self._explains = any(one.needs_tokens for one in formats)

    def pack(self, captured: Captured, entry: Entry) -> Parcel:
        options = self._options
        blind = sum(map(without_ids, captured.calls))
        reason = entry.reason
        if reason is None and captured.missing and "calls_missing" not in options.include:
            reason = "calls_missing"
        if reason is not None:
            return Parcel(entry, _left_out(captured, reason, blind), reason)
        forest = Forest(captured.calls)
        choose(forest, options.branches)
        rows = list(sequences(forest, options.branches))
        reason = _unwanted(options, rows)
        if reason is not None:
            return Parcel(entry, _left_out(captured, reason, blind), reason)
        stated = captured.sealed or not self._alone
        complete = not blind and not captured.missing and entry.whole and stated
        rollout = Rollout(entry, captured.calls, rows, options.branches, complete)
        account = accounts.exported(forest, rows)
        _note_blind(account, blind)
        parcel = Parcel(entry, account, versions=_versions(rows))
        parcel.made = [one.made(rollout) if one.wants(entry) else None for one in self._formats]
        if self._explains:
            parcel.beginnings = Counter(beginning(row, forest).cause for row in rows)
        if options.dedupe:
            parcel.said = _said(entry, captured.calls)
            parcel.as_duplicate = _left_out(captured, "duplicate", blind)
        return parcel


def loose(call: CapturedCall) -> Account:
    """Of a call outside any rollout, or that came when its rollout was done."""
    return accounts.left_out([call], "no_rollout" if call.rollout_id is None else "after_seal")


def _left_out(captured: Captured, reason: str, blind: int) -> Account:
    account = accounts.left_out(captured.calls, reason)
    _note_blind(account, blind)
    return account


def _note_blind(account: Account, blind: int) -> None:
    if blind:
        account.calls["no_token_ids"] += blind


def _unwanted(options: Options, rows: list[Tokens]) -> str | None:
    longest = max(map(len, rows), default=0)
    if options.min_tokens is not None and longest < options.min_tokens:
        return "too_short"
    if options.max_tokens is not None and longest > options.max_tokens:
        return "too_long"
    return None


def _versions(rows: list[Tokens]) -> tuple[int, ...]:
    known = [version for row in rows for one in row.trained for _, version in one.spoken.versions]
    return (min(known), max(known)) if known else ()


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
