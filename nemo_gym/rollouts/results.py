"""Stored rollouts, read back as figures: of a line only what is measured is kept, and where it stands.

A line may be large (a conversation with its token ids) and its file may be a job's or NeMo Gym's, so a line is first
cut into its fields without being read, and then only the fields that count are. The rest is read when it is shown.
"""

from __future__ import annotations

import glob
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ..config.documents import why_no_row

ROLLOUTS = "rollouts.jsonl"
SUBSET_FIELDS = ("_ng_dataset", "subset", "category", "subject", "domain", "difficulty", "level", "topic", "task_type")
"""Fields that say, by custom, which part of a dataset a row belongs to."""
ANSWER_FIELDS = ("extracted_answer", "predicted_answer", "predicted_value", "answer")
"""Fields with the answer that a verifier read out of a reply, the likeliest first."""
_WORD = 80


class ResultsError(Exception):
    """What was named holds no rollouts; words for the user."""


class Result(Struct, frozen=True, gc=False):
    """One finished rollout, measured."""

    path: str
    offset: int
    """Where its line begins in the file."""
    task: int
    repeat: int
    agent: str
    rollout_id: str
    reward: float
    masked: bool
    subset: str | None
    answer: str | None
    seconds: float | None
    started: float | None
    calls: int | None
    """Model calls that were recorded."""
    prompt_tokens: int | None
    output_tokens: int | None
    turns: int
    """Replies of the model in the conversation: what it said until the next tool result."""
    tool_calls: int
    cut_off: bool
    """The last reply ended at a limit of tokens."""
    log_prob: float | None
    """Mean over the generated tokens; None where log-probs are not known."""
    incomplete: str | None
    asked: int
    """The same for rows that ask the same of the same dataset, within this process: several agents have a task number
    each for one row."""


class _Item(Struct):
    type: str | None = None
    role: str | None = None
    generation_log_probs: list[float] | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Response(Struct):
    output: list[_Item | str | float | bool | list[Any] | None] = []
    usage: _Usage | None = None
    incomplete_details: dict[str, Any] | None = None


class _Meta(Struct):
    started: float | None = None
    seconds: float | None = None
    calls: int | None = None
    incomplete: str | None = None


class _Agent(Struct):
    name: str = ""


class Fields(Struct, frozen=True):
    """Which fields of a line are read beside the usual ones; dots lead into objects."""

    subset: str | None = None
    """None: the first of SUBSET_FIELDS that the first line has; "" for none."""
    answer: str | None = None


def files(named: Iterable[str | Path]) -> list[Path]:
    """The JSONL files meant by files, job folders, and patterns. Raises ResultsError for what there is not."""
    found: list[Path] = []
    for name in named:
        text = os.path.expanduser(str(name))
        if not text.strip():
            raise ResultsError(f"expected a job's folder or a file of rollouts, got {text!r}")
        matches = (
            sorted(glob.glob(text, recursive=True)) if glob.has_magic(text) and not Path(text).exists() else [text]
        )
        if not matches:
            raise ResultsError(f"{name}: nothing matches this pattern")
        for path in map(Path, matches):
            if path.is_dir():
                path = path / ROLLOUTS
            elif not path.exists() and path.suffix == ".jsonl" and (path.with_suffix("") / ROLLOUTS).exists():
                path = path.with_suffix("") / ROLLOUTS  # a job's output was named as a file, in NeMo Gym's manner
            if not path.is_file():
                raise ResultsError(f"{name}: expected rollouts, there is no {path}")
            if path not in found:
                found.append(path)
    return found


def read(named: Iterable[str | Path], fields: Fields | None = None) -> list[Result]:
    """All rollouts of some files or job folders. Raises ResultsError that names the file and line."""
    fields = fields or Fields()
    results: list[Result] = []
    for path in files(named):
        for offset, line in lines(path):
            try:
                cut = _cut(line)
                if fields.subset is None or fields.answer is None:
                    fields = _guessed(fields, cut)
                results.append(_result(str(path), offset, cut, fields))
            except (KeyError, ValueError, msgspec.MsgspecError) as error:
                raise ResultsError(f"{path}, at byte {offset}: no rollout: {why_no_row(error, line)}") from error
    return results


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of each whole line; a torn last one is left out."""
    offset = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and not line.isspace():
                yield offset, line
            offset += len(line)


def row(result: Result) -> dict[str, Any]:
    """The whole line of a rollout."""
    with open(result.path, "rb") as file:
        file.seek(result.offset)
        line = file.readline()
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return msgspec.json.decode(_mended(line))


def _cut(line: bytes) -> dict[str, Raw]:
    """The fields of a line, not read yet."""
    try:
        return _fields(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            return _fields(_mended(line))
        except (ValueError, RecursionError):
            raise error from None


def _mended(line: bytes) -> bytes:
    """A line with half a character in it (a lone surrogate, as a model may write one), which is no text: "?" for it."""
    return json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace")


_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_DECODERS = {  # made once: of a union, making one costs more than using it
    kind: msgspec.json.Decoder(kind | None).decode for kind in (int, str, bool, float | bool, _Response, _Meta, _Agent)
}


def _result(path: str, offset: int, cut: dict[str, Raw], fields: Fields) -> Result:
    response = _part(cut, "response", _Response) or _Response()
    items = [item for item in response.output if isinstance(item, _Item)]
    meta = _part(cut, "_ng_rollout", _Meta) or _Meta()
    agent = _part(cut, "agent_ref", _Agent) or _Agent()
    usage = response.usage or _Usage()
    subset = _interned(_word(cut, fields.subset))
    return Result(
        path=path,
        offset=offset,
        task=_read(cut, "_ng_task_index", int),
        repeat=_part(cut, "_ng_rollout_index", int) or 0,
        agent=sys.intern(agent.name),
        rollout_id=_part(cut, "_ng_rollout_id", str) or "",
        reward=_reward(cut),
        masked=bool(_part(cut, "mask_sample", bool)),
        subset=subset,
        answer=_interned(_word(cut, fields.answer)),
        seconds=meta.seconds,
        started=meta.started,
        calls=meta.calls,
        prompt_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        turns=_turns(items),
        tool_calls=sum((item.type or "").endswith("_call") for item in items),
        cut_off=(response.incomplete_details or {}).get("reason") == "max_output_tokens",
        log_prob=_mean(item.generation_log_probs for item in items),
        incomplete=_interned(meta.incomplete),
        asked=hash((bytes(cut.get("responses_create_params", b"")), bytes(cut.get("_ng_dataset", b"")))),
    )


def _reward(cut: dict[str, Raw]) -> float:
    reward = float(_read(cut, "reward", float | bool))
    if not math.isfinite(reward):
        raise ValueError(f"reward is {reward}, not a finite number")
    return reward


def _turns(items: Sequence[_Item]) -> int:
    """How often the model began to speak: after nothing, or after what is not its own."""
    turns, own_before = 0, False
    for item in items:
        own = not (item.type or "").endswith("_output") and item.role in (None, "assistant")
        turns += own and not own_before
        own_before = own
    return turns


def _mean(pieces: Iterable[list[float] | None]) -> float | None:
    total, count = 0.0, 0
    for piece in pieces:
        if piece:
            total += math.fsum(piece)
            count += len(piece)
    return total / count if count else None


def _read(cut: dict[str, Raw], name: str, kind: Any) -> Any:
    try:
        value = _DECODERS[kind](cut[name])
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from None
    if value is None:
        raise ValueError(f"{name}: is null")
    return value


def _part(cut: dict[str, Raw], name: str, kind: Any) -> Any:
    return _read(cut, name, kind) if name in cut and bytes(cut[name]) != b"null" else None


def _word(cut: dict[str, Raw], field: str | None) -> str | None:
    """A value in words, where it is one word or number; what is absent or long is none."""
    name, _, rest = (field or "").partition(".")
    if name not in cut:
        return None
    value = msgspec.json.decode(cut[name])
    for step in filter(None, rest.split(".")):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = None if value is None or isinstance(value, dict | list) else str(value)
    return text if text is None or len(text) <= _WORD or field not in SUBSET_FIELDS else None


def _interned(word: str | None) -> str | None:
    """One object for a word that is in many lines."""
    return None if word is None else sys.intern(word)


def _guessed(fields: Fields, cut: dict[str, Raw]) -> Fields:
    """Of customary names the ones that this line has."""
    subset = next((name for name in SUBSET_FIELDS if _word(cut, name) is not None), "")
    answer = next((name for name in ANSWER_FIELDS if name in cut), "")
    return Fields(
        subset if fields.subset is None else fields.subset, answer if fields.answer is None else fields.answer
    )
