"""What is done survives any kill: one finished rollout is one line, written with one call.

A line that a kill left unfinished is cut off when the journal is opened again, and its rollout is made anew; one that
the disk has no room for is cut off at once. Of what has been written only figures are kept in memory, a few dozen bytes
a rollout.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..config.documents import why_no_row
from ..web.body import dumps
from .entries import Done, Entries, Entry
from .outcome import Outcome

TASK, REPEAT, ROLLOUT, META = "_ng_task_index", "_ng_rollout_index", "_ng_rollout_id", "_ng_rollout"

_LARGEST_COUNT = 1 << 62
"""Tokens; beyond it, it is no count."""


class JournalError(Exception):
    """The journal is not one, or cannot be written; words for the user."""


class Journal:
    """`rollouts.jsonl` and, for what failed, `failures.jsonl` beside it.

    Args:
        saw: told of each rollout that is there already.
    """

    def __init__(self, folder: Path, saw: Callable[[Entry, dict[str, Any]], object] = lambda entry, row: None) -> None:
        self.path = folder / "rollouts.jsonl"
        self.failures_path = folder / "failures.jsonl"
        self.entries = Entries()
        _cut_torn_line(self.path)
        _cut_torn_line(self.failures_path)
        self.done = Done()
        for number, row in enumerate(read(self.path), 1):
            try:
                entry = _entry(row)
                self._remember(entry)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise JournalError(f"{self.path}:{number}: no rollout of a job: {why_no_row(error)}") from error
            saw(entry, row)
        self._rollouts = _Lines(self.path)
        self._failures = _Lines(self.failures_path)

    def add(self, outcome: Outcome) -> tuple[dict[str, Any], Entry] | None:
        """A finished rollout, or a failed one; on return no kill of this process can lose it.

        Returns:
            The row as it was written and what is remembered of it; None for a failure.

        Raises:
            JournalError: it cannot be written; the journal is what it was before.
            ValueError: it is nothing that could be read back.
        """
        if outcome.result is None:
            self._failures.append(_failure_row(outcome))
            return None
        row = _result_row(outcome)
        self._rollouts.append(row)
        entry = _entry(row)
        self._remember(entry)
        return row, entry

    def _remember(self, entry: Entry) -> None:
        if (entry.task, entry.repeat, entry.agent) in self.done:
            whose = f" of {entry.agent}" if entry.agent else ""
            raise JournalError(f"{self.path}: task {entry.task}, repeat {entry.repeat}{whose} is there twice")
        self.entries.append(entry)
        self.done.add(entry.task, entry.repeat, entry.agent)

    def close(self) -> None:
        """Raises JournalError where what was written is not on the disk."""
        try:
            self._rollouts.close()
        finally:
            self._failures.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a journal; a torn last line is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = _decoded(line)
            except (ValueError, RecursionError) as error:
                raise JournalError(f"{path}:{number}: not JSON: {why_no_row(error, line)}") from error
            if not isinstance(row, dict):
                raise JournalError(f"{path}:{number}: expected an object")
            yield row


def _decoded(line: bytes) -> Any:
    """Exact for integers of any size; and a model may have written half a character, which is no text but was kept."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return json.loads(line)


def _result_row(outcome: Outcome) -> dict[str, Any]:
    row = outcome.ticket.row
    return {
        **row,
        **(outcome.result or {}),
        # What was asked, as it was asked: on its way through the environment it has gained every default there is.
        "responses_create_params": row["responses_create_params"],
        **_identity(outcome),
        META: {
            "started": outcome.started,
            "seconds": outcome.seconds,
            "calls": outcome.calls,
            "incomplete": outcome.incomplete,
            "attempt": outcome.ticket.attempt,
        },
    }


def _failure_row(outcome: Outcome) -> dict[str, Any]:
    failure = outcome.failure
    assert failure is not None
    return {
        **_identity(outcome),
        "kind": failure.kind,
        "message": failure.message,
        "status": failure.status,
        "attempt": outcome.ticket.attempt,
        "retried": outcome.retried,
        "started": outcome.started,
        "seconds": outcome.seconds,
        "calls": outcome.calls,
        "incomplete": outcome.incomplete,
    }


def _identity(outcome: Outcome) -> dict[str, Any]:
    ticket = outcome.ticket
    return {
        TASK: ticket.task,
        REPEAT: ticket.repeat,
        ROLLOUT: ticket.rollout_id,
        "agent_ref": {"type": "responses_api_agents", "name": ticket.agent},
    }


def _entry(row: dict[str, Any]) -> Entry:
    meta = row.get(META) or {}
    response = row.get("response")
    response = response if isinstance(response, dict) else {}
    usage = response.get("usage") or {}
    details = usage.get("input_tokens_details") if isinstance(usage, dict) else None
    model, ref = response.get("model"), row.get("agent_ref")
    return Entry(
        task=int(row[TASK]),
        repeat=int(row[REPEAT]),
        reward=float(row["reward"]),
        masked=bool(row.get("mask_sample")),
        seconds=float(meta.get("seconds") or 0.0),
        calls=meta.get("calls"),
        prompt_tokens=_count(usage, "input_tokens"),
        output_tokens=_count(usage, "output_tokens"),
        cached_tokens=_count(details, "cached_tokens"),
        incomplete=meta.get("incomplete"),
        agent=str(ref.get("name") or "") if isinstance(ref, dict) else "",
        model=model if isinstance(model, str) else "",
    )


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and 0 <= value <= _LARGEST_COUNT else 0


class _Lines:
    """A file that grows by whole lines, whatever becomes of a write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._descriptor).st_size

    def append(self, row: dict[str, Any]) -> None:
        line = dumps(row) + b"\n"
        data = memoryview(line)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)  # else the next line would be part of this one
            raise self._fault(error) from error
        self._size += len(line)

    def close(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._fault(error) from error
        finally:
            os.close(self._descriptor)

    def _fault(self, error: OSError) -> JournalError:
        return JournalError(f"{self._path} cannot be written: {error.strerror}; job.resume=true makes what is missing")


def _cut_torn_line(path: Path) -> None:
    """Ends the file after its last whole line."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        block = 1 << 16
        while end > 0:
            start = max(0, end - block)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        file.truncate(end)
