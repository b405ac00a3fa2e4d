"""What is known of every rollout before its calls are read: its result, how many rows it has, whether it is wanted.

It lies on the disk (SQLite, in the export's scratch folder), so a run of any size is judged in the same memory: groups,
samples and splits are found there. What is drawn at random is drawn by a digest of the seed and the rollout's or the
task's id: the same captures and seed give the same files, in whatever order they are read.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..config.documents import why_no_row
from .advantages import write_advantages
from .options import ExportError, Options

COLUMNS = {
    "id": "TEXT PRIMARY KEY",
    "task": "INTEGER",
    "repeat": "INTEGER",
    "task_id": "TEXT",
    "agent": "TEXT",
    "reward": "REAL",
    "masked": "INTEGER",
    "sealed": "INTEGER",
    "incomplete": "TEXT",
    "seconds": "REAL",
    "prompt_tokens": "INTEGER",
    "output_tokens": "INTEGER",
    "row": "TEXT",
    "calls": "INTEGER NOT NULL DEFAULT 0",
    "rows": "INTEGER NOT NULL DEFAULT 0",
    "oldest": "INTEGER",
    "raw": "INTEGER NOT NULL DEFAULT 0",
    "reason": "TEXT",
    "advantage": "REAL",
    "done": "INTEGER NOT NULL DEFAULT 0",
}
"""`row` has the other plain values of its line of rollouts.jsonl, as JSON."""
_RESULT = tuple(COLUMNS)[:13]
_BATCH = 2000
_READ = 1 << 20
"""Bytes of the journal at once: its lines are long."""
_SHORT = 1000
"""Bytes of JSON; what is longer is no figure."""


class Entry(Struct, frozen=True):
    """One rollout, judged."""

    rollout_id: str
    task: int | None
    task_id: str
    agent: str
    reward: float | None
    rows: int
    """Rows of the captures that are about it: when so many are read, it is whole."""
    reason: str | None
    """Why it is left out."""
    advantage: float | None
    split: str | None
    whole: bool
    """The job says that its record is."""
    done: bool
    """Its calls were read already."""


class Survey(Struct):
    """What one pass over the captures' plain columns says of a rollout."""

    rows: int = 0
    calls: int = 0
    oldest: int | None = None
    raw: bool = False
    incomplete: str | None = None
    """What a seal says, where no job does."""


class Ledger:
    def __init__(self, path: Path) -> None:
        self._data = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._data.execute("PRAGMA journal_mode=OFF")
        self._data.execute("PRAGMA synchronous=OFF")
        self._data.execute("PRAGMA cache_size=-32768")
        self._data.execute("PRAGMA temp_store=FILE")
        self._data.create_function("root", 1, math.sqrt, deterministic=True)  # not every SQLite has one
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        self._data.execute(f"CREATE TABLE rollout ({columns}) WITHOUT ROWID")
        self._data.execute("CREATE TABLE said (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        self._options = Options()

    def close(self) -> None:
        self._data.close()

    # ---- what is known

    def read_results(self, path: Path, *, usage: bool = False) -> None:
        """The job's journal; a torn last line is left out.

        Args:
            usage: fill `prompt_tokens` and `output_tokens` too, for which each response has to be read.
        """
        if not path.is_file():
            raise ExportError(f"there is no job at {path.parent}: it has no rollouts.jsonl")
        places = ", ".join("?" * len(_RESULT))
        insert = f"INSERT OR REPLACE INTO rollout ({', '.join(_RESULT)}) VALUES ({places})"
        with path.open("rb", _READ) as file:
            self._data.execute("BEGIN")
            for batch in _batches(_results(path, file, usage)):
                self._data.executemany(insert, batch)
            self._data.execute("COMMIT")

    def add(self, found: dict[str, Survey]) -> None:
        """Adds up over any number of pieces of the captures."""
        self._data.execute("BEGIN")
        self._data.executemany(
            "INSERT INTO rollout (id, rows, calls, oldest, raw, incomplete) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET incomplete = coalesce(excluded.incomplete, incomplete), "
            "rows = rows + excluded.rows, calls = calls + excluded.calls, raw = max(raw, excluded.raw), "
            "oldest = min(coalesce(oldest, excluded.oldest), coalesce(excluded.oldest, oldest))",
            ((key, one.rows, one.calls, one.oldest, one.raw, one.incomplete) for key, one in found.items()),
        )
        self._data.execute("COMMIT")

    # ---- judged

    def judge(self, options: Options, newest: int | None, *, alone: bool = False) -> None:
        """Says of each rollout whether it is exported.

        Args:
            newest: the newest policy version of the captures.
            alone: there is no job, so no rollout has a result; each is a task of its own.
        """
        self._options = options
        self._data.execute("BEGIN")
        if alone:
            self._data.execute("UPDATE rollout SET task_id = id")
        for reason, name, condition in _faults(options, newest, alone):
            if name not in options.include:
                self._data.execute(f"UPDATE rollout SET reason = {reason} WHERE reason IS NULL AND ({condition})")
        if options.advantage is not None:
            # Over all rollouts whose rewards hold: what is filtered from training still says what the policy earns.
            write_advantages(self._data, options.advantage)
        self._has_agents(options.agents)
        for reason, condition, values in _filters(options):
            self._leave_out(reason, condition, values)
        if options.sample is not None:
            self._data.create_function("drawn", 1, lambda key: _drawn(options.seed, "sample", key), deterministic=True)
            kept = "SELECT id FROM rollout WHERE reason IS NULL AND rows > 0 ORDER BY drawn(id), id LIMIT ?"
            self._leave_out("not_sampled", f"id NOT IN ({kept})", (options.sample,))
        self._data.execute("COMMIT")

    def _has_agents(self, wanted: tuple[str, ...]) -> None:
        """An agent that played nothing is a slip, and what was exported before is not to be replaced by nothing."""
        there = [name for (name,) in self._data.execute("SELECT DISTINCT agent FROM rollout ORDER BY 1") if name]
        if wanted and there and not set(wanted) & set(there):
            raise ExportError(f"agent: no rollout is of {', '.join(wanted)}; there is {', '.join(there)}")

    def _leave_out(self, reason: str, condition: str, values: tuple[Any, ...]) -> None:
        try:
            self._data.execute(
                f"UPDATE rollout SET reason = ? WHERE reason IS NULL AND ({condition}\n)", (reason, *values)
            )
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise ExportError(
                f"where: {error}; there are {', '.join(COLUMNS)}, and row ->> '$.name' for the rest of a rollout's row"
            ) from error

    def get(self, rollout_id: str) -> Entry:
        found = self._data.execute(
            "SELECT task, coalesce(task_id, ''), coalesce(agent, ''), reward, rows, reason, advantage, "
            "incomplete IS NULL AND calls >= coalesce(sealed, 0), done FROM rollout WHERE id = ?",
            (rollout_id,),
        ).fetchone() or (None, "", "", None, 0, "no_result", None, 0, 0)  # it began since the first pass
        task, task_id, agent, reward, rows, reason, advantage, whole, done = found
        split = _split(self._options, task_id)
        return Entry(rollout_id, task, task_id, agent, reward, rows, reason, advantage, split, bool(whole), bool(done))

    def has(self, rollout_id: str) -> bool:
        return self._data.execute("SELECT 1 FROM rollout WHERE id = ?", (rollout_id,)).fetchone() is not None

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is noted meanwhile is written at once: each note by itself costs as much as reading a call."""
        self._data.execute("BEGIN")
        yield
        self._data.execute("COMMIT")

    def done(self, rollout_id: str) -> None:
        self._data.execute("UPDATE rollout SET done = 1 WHERE id = ?", (rollout_id,))

    def without_calls(self) -> Counter[str]:
        """Rollouts of which the captures have nothing, by why they are left out."""
        rows = self._data.execute(
            "SELECT coalesce(reason, 'no_calls'), count(*) FROM rollout WHERE rows = 0 GROUP BY 1"
        ).fetchall()
        return Counter(dict(rows))

    def first_to_say(self, digest: bytes) -> bool:
        return self._data.execute("INSERT OR IGNORE INTO said VALUES (?)", (digest,)).rowcount == 1


def _faults(options: Options, newest: int | None, alone: bool) -> Iterator[tuple[str, str, str]]:
    """(SQL of the reason, its name among INCLUDABLE, SQL of the condition)."""
    if not alone:
        yield "'no_result'", "", "reward IS NULL"
    yield "'masked'", "masked", "masked"
    yield "'incomplete_' || incomplete", "incomplete", "incomplete IS NOT NULL"
    yield "'calls_missing'", "calls_missing", "calls < sealed"
    yield "'raw_logprobs'", "raw_logprobs", "raw"
    current = options.policy_version if options.policy_version is not None else newest
    if options.max_staleness is not None and current is not None:
        yield "'off_policy'", "off_policy", f"oldest < {current - options.max_staleness:d}"


def _filters(options: Options) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    if options.agents:
        yield "filter_agent", f"agent NOT IN ({', '.join('?' * len(options.agents))})", options.agents
    if options.min_reward is not None:
        yield "filter_reward", "reward < ?", (options.min_reward,)
    if options.max_reward is not None:
        yield "filter_reward", "reward > ?", (options.max_reward,)
    if options.where is not None:
        yield "filter_where", f"NOT coalesce(({options.where}\n), 0)", ()


def _split(options: Options, task_id: str) -> str | None:
    if not options.splits:
        return None
    drawn = _drawn(options.seed, "split", task_id) / 2**63
    for name, share in options.splits:
        drawn -= share
        if drawn < 0:
            return name
    return options.splits[-1][0]


def _drawn(seed: int, what: str, key: str) -> int:
    """A number below 2^63 that the seed and the key decide."""
    digest = blake2b(f"{seed}\0{what}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    batch: list[tuple[Any, ...]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    yield batch


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Response(Struct):
    usage: _Usage | None = None


_line = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_response = msgspec.json.Decoder(_Response | None).decode


def _results(path: Path, file: Iterable[bytes], usage: bool) -> Iterator[tuple[Any, ...]]:
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return
        try:
            raw = _line(line)
            yield _result(raw, _usage(raw.get("response") if usage else None))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ExportError(f"{path}:{number}: no rollout of a job: {why_no_row(error, line)}") from error


def _result(raw: dict[str, msgspec.Raw], usage: _Usage) -> tuple[Any, ...]:
    """A row is mostly the token ids of its response, of which no Python object is made."""
    row = {name: msgspec.json.decode(value) for name, value in raw.items() if len(value) <= _SHORT}
    task = int(row["_ng_task_index"])
    said = row.get("_ng_rollout") or {}
    named = row.get("task_id")
    plain = {name: value for name, value in row.items() if isinstance(value, int | float | str | None)}
    return (
        str(row["_ng_rollout_id"]),
        task,
        row.get("_ng_rollout_index"),
        str(task if named is None else named),
        str((row.get("agent_ref") or {}).get("name", "")),
        float(row["reward"]),
        int(bool(row.get("mask_sample"))),
        said.get("calls"),
        said.get("incomplete"),
        said.get("seconds"),
        usage.input_tokens,
        usage.output_tokens,
        msgspec.json.encode(plain).decode(),
    )


def _usage(response: msgspec.Raw | None) -> _Usage:
    try:
        found = None if response is None else _response(response)
    except msgspec.ValidationError:
        found = None  # another shape: an environment's own
    return _Usage() if found is None or found.usage is None else found.usage
