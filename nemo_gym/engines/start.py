"""A start that can be followed, and a failed one that says why in at most ten lines.

What fails is often not the process that reports it: vLLM's own processes write their reason where the actor's errors
go, so it is read from there. Steps go over Ray's key-value store, which every process of a Ray can read.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

_LINES, _WIDTH = 10, 400
_LOG_BYTES = 4 * 1024 * 1024
_NAMESPACE = b"nemo_gym"

_CAUSE = re.compile(r"(?:^|[\s\]|])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)):(?: (.*))?$")
_WRAPPERS = ("RayTaskError", "ActorDiedError", "EngineDeadError", "ExceptionGroup")
_SAYS_NOTHING = (
    "Engine core initialization failed",
    "For further information visit",
    "WorkerProc initialization failed",
)
_GO_ON = ("ValidationError", "StartError")
"""What they say goes over several lines."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^(?:\([^()]*\)\s*)*(?:ERROR|WARNING|INFO) [\d-]+ [\d:]+ \[[^\]]*\]\s?")

_HINTS = (
    (
        r"out of memory|no available memory|not enough memory|cannot allocate|free memory on device"
        r"|larger than the (?:available|maximum)|kv ?cache.{0,40}memory|OutOfMemory|insufficient.{0,20}memory",
        "memory: engine_args.max_model_len and gpu_memory_utilization say how much is wanted (without a GPU the"
        " environment's VLLM_CPU_KVCACHE_SPACE, in GiB)",
    ),
    (
        r"no cuda|cuda driver|libcuda|no nvidia|failed to infer device|no gpu|cuda error.{0,40}no .*device",
        "no GPU: num_gpus: 0 runs vLLM's CPU build",
    ),
    (
        r"cannot find any model weights|no such file|does not appear to have|not a valid model|no supported config",
        "model: expected a folder with config.json, the tokenizer and *.safetensors, on every machine of the Ray",
    ),
)


class ErrorLog:
    """What is written from now on to where this process's errors go, when that is a file."""

    def __init__(self) -> None:
        self._path: Path | None = None
        with contextlib.suppress(OSError):
            path = Path(os.readlink("/proc/self/fd/2"))
            if path.is_file():
                self._path, self._start = path, path.stat().st_size

    def cause(self) -> str | None:
        """The first failure that says something; None where there is none."""
        if self._path is None:
            return None
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._start)
            return cause(file.read(_LOG_BYTES).decode(errors="replace"))
        return None


def cause(text: str) -> str | None:
    """The failure in a log or a traceback that the others came of: the last one of the first traceback that names any
    reason of its own, with the lines that belong to it."""
    lines = [_PREFIX.sub("", _COLOUR.sub("", line)).rstrip() for line in text.splitlines()]
    for number, line in enumerate(lines):
        match = _CAUSE.search(line)
        if match is None or match[1].rpartition(".")[2] in _WRAPPERS or _is_empty(match[2] or ""):
            continue
        kind = match[1].rpartition(".")[2]
        words = (match[2] or "").strip()
        more = _more(lines[number + 1 :]) if not words or kind in _GO_ON else []
        return "\n".join([f"{kind}: {words}", *more])
    return None


def _is_empty(words: str) -> bool:
    return any(phrase in words for phrase in _SAYS_NOTHING)


def _more(lines: Iterable[str]) -> list[str]:
    """Lines that go on with what a failure says."""
    found: list[str] = []
    for line in lines:
        if not line.startswith(" ") or _is_empty(line):
            break
        found.append(line.strip())
    return found[: _LINES - 2]


def explained(error: BaseException) -> str:
    """Why an actor did not start, for a person: the cause, and what may be done about it."""
    text = str(error)
    words = cause(text) or _last_line(text) or type(error).__name__
    lines = [line[:_WIDTH] for line in words.removeprefix("StartError: ").splitlines()][: _LINES - 1]
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, words, re.I)), None)
    return "\n".join([*lines, *([hint] if hint else [])])


def _last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


class StartError(Exception):
    """Raised in the actor, with the words of whichever process knew why."""

    def __init__(self, words: str) -> None:
        super().__init__(words.replace("\n", "\n  "))


def say(name: str, step: str) -> None:
    """In the actor: what it does now."""
    from ray.experimental import internal_kv

    with contextlib.suppress(Exception):  # only for whoever watches
        internal_kv._internal_kv_put(_key(name), step.encode(), overwrite=True, namespace=_NAMESPACE)


def said(name: str) -> str:
    """In the server: what the actor does now."""
    from ray.experimental import internal_kv

    with contextlib.suppress(Exception):
        found = internal_kv._internal_kv_get(_key(name), namespace=_NAMESPACE)
        if found:
            return bytes(found).decode()
    return "its process is being started"


def _key(name: str) -> bytes:
    return f"start/{name}".encode()
