"""What is remembered of finished rollouts: columns of numbers, so that a million of them fit into memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from msgspec import Struct

_UNKNOWN = -1


class Entry(Struct, frozen=True):
    """One finished rollout."""

    task: int
    repeat: int
    reward: float
    masked: bool
    seconds: float
    calls: int | None
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Of the prompt tokens, those that were read from a cache."""
    incomplete: str | None = None
    agent: str = ""
    model: str = ""


class Entries:
    """A list of entries, kept as columns; what is read from it is made anew."""

    def __init__(self) -> None:
        self._numbers = tuple(array("q") for _ in range(6))
        """task, repeat, calls, prompt, output and cached tokens."""
        self._reals = (array("d"), array("f"))
        """reward, seconds."""
        self._words = tuple(array("i") for _ in range(3))
        """incomplete, agent, model, each as its place in `_names`."""
        self._masked = bytearray()
        self._names: dict[str | None, int] = {}

    def append(self, entry: Entry) -> None:
        calls = _UNKNOWN if entry.calls is None else entry.calls
        tokens = entry.prompt_tokens, entry.output_tokens, entry.cached_tokens
        for column, number in zip(self._numbers, (entry.task, entry.repeat, calls, *tokens), strict=True):
            column.append(number)
        for reals, real in zip(self._reals, (entry.reward, entry.seconds), strict=True):
            reals.append(real)
        for words, word in zip(self._words, (entry.incomplete, entry.agent, entry.model), strict=True):
            words.append(self._names.setdefault(word, len(self._names)))
        self._masked.append(entry.masked)

    def __len__(self) -> int:
        return len(self._masked)

    def __iter__(self) -> Iterator[Entry]:
        names = list(self._names)
        rows = zip(*self._numbers, *self._reals, *self._words, self._masked, strict=True)
        for task, repeat, calls, prompt, output, cached, reward, seconds, incomplete, agent, model, masked in rows:
            yield Entry(
                task=task,
                repeat=repeat,
                reward=reward,
                masked=bool(masked),
                seconds=seconds,
                calls=None if calls == _UNKNOWN else calls,
                prompt_tokens=prompt,
                output_tokens=output,
                cached_tokens=cached,
                incomplete=names[incomplete],
                agent=names[agent] or "",
                model=names[model] or "",
            )


class Done:
    """Which repeats of which tasks each agent has done: a byte each, for as far as a repeat has got.

    Agents may share the numbers of tasks. Where it was not written down who played, it counts for whoever is asked for.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, int], bytearray] = {}
        """By agent and repeat."""

    def add(self, task: int, repeat: int, agent: str) -> None:
        tasks = self._tasks.setdefault((agent, repeat), bytearray())
        if len(tasks) <= task:
            tasks.extend(bytes(task + 1 - len(tasks)))
        tasks[task] = 1

    def __contains__(self, which: tuple[int, int, str]) -> bool:
        task, repeat, agent = which
        known = (self._tasks.get((name, repeat), b"") for name in (agent, ""))
        return any(task < len(tasks) and tasks[task] for tasks in known)
