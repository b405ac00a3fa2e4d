"""How one rollout's sequences came about: its calls, what each sequence is made of, and where the tokens differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..capture.store import CaptureStore
from . import account as accounts
from . import sources
from .account import Account
from .breaks import Beginning, beginning
from .calls import one_rollout
from .captured import Captured, CapturedCall
from .forest import WIDTH, Forest, Generation, prefix
from .formats.format import ints
from .options import Branches, ExportError, Options, check
from .sequences import Sequence, choose, sequences

_AROUND = 6


class Piece(Struct, frozen=True):
    """A call's part of a sequence."""

    call_id: str
    choice: int
    prompt: int
    """Prompt tokens that are new in it."""
    generated: int
    trained: bool
    discarded: str | None


class Difference(Struct, frozen=True):
    """Ids around the place where a prompt leaves the tokens of the call before."""

    position: int
    of: int
    """How many tokens that call had."""
    before: list[int]
    """The last ones that are alike."""
    were: list[int]
    are: list[int]


class Explained(Struct, frozen=True):
    """One sequence."""

    branch: int
    tokens: int
    trained: int
    beginning: Beginning
    difference: Difference | None
    pieces: list[Piece]


class Told(Struct, frozen=True):
    """One call."""

    call_id: str
    server: str
    relation: str
    parent_call_id: str | None
    status: str
    prompt: int | None
    generated: int | None
    """Tokens; null where the backend gave no ids."""
    discarded: str | None


class Explanation(Struct, frozen=True):
    rollout_id: str
    calls: list[Told]
    sequences: list[Explained]
    account: Account


def explain(
    output_dir: str | Path, rollout_id: str, captures: str | Path | None = None, branches: Branches = "all"
) -> Explanation:
    """Whatever the job says of the rollout: also of one that an export leaves out."""
    check(Options(branches=branches))
    source = sources.found(Path(output_dir), captures, None).captures
    captured = one_rollout(CaptureStore(str(source)), rollout_id)
    if not captured.calls:
        raise ExportError(f"there is no call of a rollout {rollout_id!r} in {source}; ng_captures list names them")
    return _explained(captured, branches)


def _explained(captured: Captured, branches: Branches) -> Explanation:
    forest = Forest(captured.calls)
    choose(forest, branches)
    rows = list(sequences(forest, branches))
    return Explanation(
        rollout_id=captured.rollout_id,
        calls=[_told(call, forest) for call in captured.calls],
        sequences=[_sequence(row, forest) for row in rows],
        account=accounts.exported(forest, rows),
    )


def _told(call: CapturedCall, forest: Forest) -> Told:
    made = forest.of_call(call.call_id)
    return Told(
        *(call.call_id, call.server, call.relation, call.parent_call_id, call.status),
        made[0].start if made else None,
        sum(one.said for one in made) if made else None,
        made[0].discarded if made else "no_token_ids",
    )


def _sequence(row: Sequence, forest: Forest) -> Explained:
    began = beginning(row, forest)
    first = row.trained[0]
    before = forest.of_call(began.before)
    broken = began.position is not None and before
    return Explained(
        branch=row.branch,
        tokens=len(row),
        trained=sum(one.said for one in row.trained),
        beginning=began,
        difference=_difference(before[0], first, began.position or 0) if broken else None,
        pieces=[
            Piece(
                one.call.call_id, one.spoken.index, len(one.added) // WIDTH, one.said, one in row.trained, one.discarded
            )
            for one in row.generations
        ],
    )


def _difference(before: Generation, first: Generation, position: int) -> Difference:
    were, are = prefix(before, before.end), prefix(first, first.start)
    return Difference(
        position=position,
        of=before.end,
        before=_ids(are, max(0, position - _AROUND), position),
        were=_ids(were, position, position + _AROUND),
        are=_ids(are, position, position + _AROUND),
    )


def _ids(data: bytes, start: int, end: int) -> list[int]:
    return ints(data[start * WIDTH : end * WIDTH]).tolist()


# ---- words


def lines(explanation: Explanation) -> Iterator[str]:
    yield f"rollout {explanation.rollout_id}: {len(explanation.calls)} calls, {len(explanation.sequences)} sequences"
    names = {call.call_id: f"call {number}" for number, call in enumerate(explanation.calls, 1)}
    for call in explanation.calls:
        parent = f" of {names.get(call.parent_call_id, call.parent_call_id)}" if call.parent_call_id else ""
        size = "no token ids" if call.prompt is None else f"{call.prompt:,} prompt + {call.generated:,} generated"
        why = f"   not trained: {call.discarded}" if call.discarded else ""
        yield f"  {names[call.call_id]}  {call.call_id}  {call.server}  {call.relation}{parent}  {size}{why}"
    for one in explanation.sequences:
        yield ""
        yield f"sequence {one.branch}: {one.tokens:,} tokens, {one.trained:,} trained; {_began(one.beginning, names)}"
        if one.difference is not None:
            yield from _differs(one.difference)
        for piece in one.pieces:
            state = "trained" if piece.trained else f"context ({piece.discarded or 'trained in another sequence'})"
            choice = f" choice {piece.choice}" if piece.choice else ""
            yield f"  {names[piece.call_id]}{choice}: {piece.prompt:,} prompt + {piece.generated:,} generated, {state}"
    yield ""
    yield "tokens: " + in_words(explanation.account)


def _began(began: Beginning, names: dict[str, str]) -> str:
    words = f"broke: {began.cause}" if began.is_break else f"began: {began.cause}"
    return words + (f" after {names.get(began.before, began.before)}" if began.before else "")


def _differs(one: Difference) -> Iterator[str]:
    yield f"  the prompt leaves that call's {one.of:,} tokens at {one.position:,}, after … {_row(one.before)}"
    yield f"    they were {_row(one.were) or '(at their end)'}"
    yield f"    they are  {_row(one.are) or '(at its end)'}"


def _row(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def in_words(account: Any) -> str:
    """captured = trained + context + discarded."""
    words = f"{account.captured:,} captured = {account.trained:,} trained + {account.context:,} context"
    return words + "".join(f" + {count:,} discarded ({why})" for why, count in sorted(account.discarded.items()))
