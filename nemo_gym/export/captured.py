"""A captured call as an export needs it, and a rollout's calls together.

Numbers stay the bytes that the engine's arrays were; the rest of a record is read when something asks for it.
"""

from __future__ import annotations

from msgspec import Struct

from ..capture.reader import ShardReader
from ..capture.record import CallRecord
from ..capture.schema import Row
from ..capture.shard import SEALED
from .ledger import Entry


class Spoken(Struct, frozen=True, gc=False):
    """One choice of a call. Numbers as the bytes that the engine's arrays were."""

    index: int
    ids: bytes | None
    logprobs: bytes | None
    versions: tuple[tuple[int, int], ...]
    parts: bytes
    """As they are stored, where there are no ids."""


class CapturedCall(Struct, eq=False, gc=False):
    call_id: str
    run_id: str
    rollout_id: str | None
    parent_call_id: str | None
    relation: str
    server: str
    trainable: bool
    status: str
    model: str
    received_at: float
    usage: tuple[int | None, int | None, int | None]
    """Prompt, completion and cached tokens, as the backend counts them."""
    messages: int
    """Of the request."""
    shared: int
    """How many prompt ids are the parent's."""
    shared_choice: int
    new_prompt: bytes | None
    choices: tuple[Spoken, ...]
    prefix_break: tuple[int, str] | None
    shard: ShardReader
    writer: str
    """The process that wrote it."""
    late: bool = False
    """It came after its rollout was sealed."""

    rows: WholeRows | None = None
    session_id: str | None = None
    """The client's own, where it named one."""

    @property
    def has_ids(self) -> bool:
        """Whether any of its choices can be placed."""
        choices = self.choices
        if self.new_prompt is None or not choices:
            return False
        return choices[0].ids is not None or any(one.ids is not None for one in choices)

    def record(self) -> CallRecord:
        """The whole record."""
        row = self.shard.row_of(self.call_id) if self.rows is None else self.rows.row(self)
        if row is None:
            raise KeyError(f"call {self.call_id} is no longer in {self.shard.path}")
        return self.shard.decoder.record(row)


class WholeRows:
    """Every column of a rollout's calls, read when one of them is first asked for.

    A packed shard is unpacked in large batches, so its rows are taken together; and a call is told by what it adds to
    its parent, so parents are read before their children.
    """

    def __init__(self, rollout_id: str) -> None:
        self._rollout_id = rollout_id
        self._of_shard: dict[ShardReader, dict[str, Row]] = {}

    def row(self, call: CapturedCall) -> Row | None:
        shard = call.shard
        if shard.path.suffix != SEALED or " " in self._rollout_id:  # of no rollout: its rows are not together
            return shard.row_of(call.call_id)
        rows = self._of_shard.get(shard)
        if rows is None:
            rows = {row["call_id"]: row for row in shard.rows("call", self._rollout_id)}
            self._of_shard[shard] = rows
            for row in rows.values():
                shard.decoder.kept(row)
        return rows.get(call.call_id)


class Captured:
    """A rollout's rows; `calls` in the order in which they were asked once it is whole."""

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self.entry: Entry | None = None
        """What the ledger says of it, where that was asked."""
        self.rows = 0
        self.calls: list[CapturedCall] = []
        self._seals: dict[str, list[str]] = {}

    def add_seal(self, writer: str, call_ids: list[str]) -> None:
        """In the order in which the writer wrote them: its last one counts, whatever the clock said."""
        self.rows += 1
        self._seals[writer] = call_ids

    def finish(self) -> None:
        self.calls.sort(key=lambda call: (call.received_at, call.call_id))
        stated = {writer: set(ids) for writer, ids in self._seals.items()}
        whole = WholeRows(self.rollout_id)
        for call in self.calls:
            call.rows = whole
            of_writer = stated.get(call.writer)
            call.late = of_writer is not None and call.call_id not in of_writer

    @property
    def sealed(self) -> bool:
        """Whether a server has said which calls there are."""
        return bool(self._seals)

    @property
    def missing(self) -> bool:
        """Whether a call that a server sealed is not there."""
        there = {call.call_id for call in self.calls}
        return any(call_id not in there for ids in self._seals.values() for call_id in ids)
