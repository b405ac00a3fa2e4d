"""What a page shows of a run, no HTML: its figures, and the few rollouts that are worth reading.

However many rollouts there are, what is here is bounded: figures are over all of them, and whole conversations are read
only of those chosen.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ..rollouts.profile import Profile, TaskFigures, profile
from ..rollouts.results import Result, files, lines, row
from .choice import choose
from .conversation import Gap, Turn, conversation, question
from .timeline import Timeline, timeline

if TYPE_CHECKING:
    from ..capture import CaptureStore
    from ..capture.reader import ShardReader
    from ..capture.record import CallRecord

log = logging.getLogger("nemo_gym.viewer")
FAILURES, TASKS = 20, 100


class Failure(Struct, frozen=True):
    kind: str
    message: str
    task: int | None
    repeat: int | None
    retried: bool


class Rollout(Struct, frozen=True):
    """One that is shown whole."""

    result: Result
    why: str
    question: str
    turns: list[Turn | Gap]
    timeline: Timeline | None
    model: str
    said: dict[str, str]
    """Short fields of the verifier, such as the answer it read."""


class Run(Struct, frozen=True):
    run_id: str
    dataset: str
    created: float | None
    models: list[str]
    """As the rollouts that are shown name them."""
    versions: dict[str, str]
    asked: int | None
    profile: Profile
    results: Sequence[Result]
    stopped: str
    """Why it ended before its data did, if it did."""
    failures: dict[str, int]
    retried: int
    """Failed attempts whose rollout was made anew."""
    failure_samples: list[Failure]
    incomplete: dict[str, int]
    worst: list[Rollout]
    uncertain: list[Rollout]
    best: list[Rollout]
    hardest_tasks: list[TaskFigures]


def load(named: Sequence[str | Path], results: Sequence[Result], captures: str | Path | None = None) -> Run:
    """The run whose rollouts these are.

    Args:
        named: its folders or files, as they were named to read the results.
        captures: where its calls were recorded, if not in its own folder.
    """
    folders = [path.parent for path in files(named)]
    manifest = _json(folders[0] / "manifest.json")
    found = profile(results)
    done = {(result.task, result.repeat) for result in results}
    attempts = [failure for folder in folders for failure in _failures(folder / "failures.jsonl")]
    failures = [one for one in attempts if not one.retried and (one.task, one.repeat) not in done]
    chosen = choose(results, found.tasks)
    calls = _Calls(folders, manifest, captures)
    shown = [[_rollout(result, why, calls) for result, why in group] for group in chosen]
    asked = _json(folders[0] / "metrics.json").get("asked")
    return Run(
        run_id=str(manifest.get("run_id") or folders[0].name),
        dataset=Path(str(manifest.get("input") or "")).name,
        created=manifest.get("created") if isinstance(manifest.get("created"), int | float) else None,
        models=sorted({one.model for group in shown for one in group if one.model}),
        versions={str(key): str(value) for key, value in _object(manifest.get("versions")).items()},
        asked=asked if isinstance(asked, int) and len(folders) == 1 else None,
        profile=found,
        results=results,
        stopped=str(manifest.get("stopped") or ""),
        failures=dict(Counter(failure.kind for failure in failures).most_common()),
        retried=len(attempts) - len(failures),
        failure_samples=_samples(failures),
        incomplete=dict(Counter(result.incomplete for result in results if result.incomplete).most_common()),
        worst=shown[0],
        uncertain=shown[1],
        best=shown[2],
        hardest_tasks=sorted(found.tasks, key=lambda task: (task.mean, task.task))[:TASKS],
    )


def _rollout(result: Result, why: str, calls: _Calls) -> Rollout:
    whole = row(result)
    return Rollout(
        result, why, question(whole), conversation(whole), calls.timeline(result), _model(whole), dict(_said(whole))
    )


def _model(whole: dict[str, Any]) -> str:
    response = whole.get("response")
    return str(response.get("model") or "")[:120] if isinstance(response, dict) else ""


def _said(whole: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the verifier and the dataset say in a word, reward and bookkeeping aside."""
    count = 0
    for name, value in whole.items():
        plain = isinstance(value, str | int | float) and not name.startswith("_ng_")
        if plain and name not in ("reward", "mask_sample") and len(str(value)) <= 120 and count < 12:
            count += 1
            yield name[:60], str(value)


class _Calls:
    """The recorded calls of a few rollouts; without captures there are none, and nothing fails for it."""

    def __init__(self, folders: Sequence[Path], manifest: dict[str, Any], captures: str | Path | None) -> None:
        from ..capture import CaptureStore

        said = manifest.get("shards")
        shards = [Path(str(one)) for one in said] if isinstance(said, list) else []
        source = _object(manifest.get("identity")).get("source")  # of a run that was verified anew
        shards += [Path(source)] if isinstance(source, str) else []
        places = [Path(captures)] if captures is not None else []
        places += [folder / "captures" for folder in (*folders, *shards)]
        self._stores = [CaptureStore(place) for place in dict.fromkeys(places) if place.is_dir()]
        self._opened: dict[Path, ShardReader] = {}

    def _calls(self, store: CaptureStore, rollout_id: str) -> list[CallRecord]:
        """As `store.calls`, but a shard is opened once for all rollouts: one that is still written is read whole."""
        found: list[CallRecord] = []
        for path in store.paths():
            shard = self._opened.get(path) or store.shard(path)
            if shard is not None:
                self._opened[path] = shard
                found += shard.records(rollout_id)
        return sorted(found, key=lambda record: (record.times.received, record.call_id))

    def timeline(self, result: Result) -> Timeline | None:
        for store in self._stores if result.rollout_id else ():
            try:
                found = timeline(self._calls(store, result.rollout_id), result.started, result.seconds)
            except (OSError, ValueError) as error:
                log.warning("captures of rollout %s cannot be read: %s", result.rollout_id, error)
                continue
            if found is not None:
                return found
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}
    return _object(found)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _failures(path: Path) -> Iterator[Failure]:
    if not path.is_file():
        return
    for _, line in lines(path):
        try:
            fields = msgspec.json.decode(line)
            kind = str(fields.get("kind") or fields.get("_ng_failure_class") or "unknown")
            message = str(fields.get("message") or fields.get("failure_reason") or "")
            task, repeat = fields.get("_ng_task_index"), fields.get("_ng_rollout_index")
        except (msgspec.MsgspecError, AttributeError):
            continue
        yield Failure(
            kind,
            message[:500],
            task if isinstance(task, int) else None,
            repeat if isinstance(repeat, int) else None,
            bool(fields.get("retried")),
        )


def _samples(failures: Sequence[Failure]) -> list[Failure]:
    """One of each kind and message, the kinds side by side."""
    unlike = {(failure.kind, failure.message): failure for failure in failures}
    return sorted(unlike.values(), key=lambda failure: failure.kind)[:FAILURES]
