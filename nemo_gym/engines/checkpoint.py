"""A folder of safetensors, looked at before anything of it is loaded.

vLLM takes a folder that is not there, a tensor that is missing or a wrong shape without a word, and is lost at the next
token; so what a folder holds is compared with what the model was made of, by the headers alone: no weight is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100 * 1024 * 1024
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""The engine turns one of these into another as it loads."""
_TIED = "lm_head.weight"
_NAMED = 3
"""So many tensors are named in an error, and the others counted."""


class BadCheckpoint(ValueError):
    """What is wrong, in words for whoever gave the path."""


class Tensor(Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]


Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of each file: whether it is still the same."""


class Checkpoint(Struct, frozen=True):
    tensors: Mapping[str, Tensor]
    stamp: Stamp


def read(folder: str | Path) -> Checkpoint:
    """Raises BadCheckpoint."""
    folder = Path(folder)
    try:
        if not folder.is_dir():
            there = "it is a file; expected the folder that it is in" if folder.exists() else "there is no such folder"
            raise BadCheckpoint(there)
        files = _files(folder)
        tensors: dict[str, Tensor] = {}
        for file in files:
            tensors |= _header(file)
        stats = [(file.name, file.stat()) for file in files]
    except OSError as error:
        raise BadCheckpoint(f"it cannot be read ({error.strerror or type(error).__name__})") from None
    return Checkpoint(tensors, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise BadCheckpoint("there is no *.safetensors in it")
        return files
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        files = [folder / name for name in names]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadCheckpoint(f"{INDEX} is not readable") from None
    if missing := [file.name for file in files if not file.is_file()]:
        raise BadCheckpoint(f"{INDEX} names files that are not there: {_some(missing)}")
    return files


def _header(file: Path) -> dict[str, Tensor]:
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _LONGEST_HEADER + 1
        text = opened.read(length) if length <= _LONGEST_HEADER else b""
        size = opened.seek(0, 2)
    try:
        entries: dict[str, Any] = json.loads(text)
        entries.pop("__metadata__", None)
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        tensors = {name: Tensor(entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadCheckpoint(f"{file.name} is no safetensors file, or not whole") from None
    if size != 8 + length + end:
        raise BadCheckpoint(f"{file.name} is not whole: {size} bytes, where its header says {8 + length + end}")
    return tensors


def check(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, tied: bool) -> None:
    """Raises BadCheckpoint unless each tensor of the model is there, in its shape, and no other.

    Args:
        tied: the output layer is the embedding's, and may be written or not.
    """
    optional = {_TIED} if tied else set()
    if missing := sorted(expected.keys() - found.keys() - optional):
        raise BadCheckpoint(f"tensors of the model are missing: {_some(missing)}")
    if unknown := sorted(found.keys() - expected.keys() - optional):
        raise BadCheckpoint(f"tensors that the model does not have: {_some(unknown)}")
    both = sorted(found.keys() & expected.keys())
    wrong = [name for name in both if found[name].shape != expected[name].shape]
    if wrong:
        told = [f"{name} {list(found[name].shape)} instead of {list(expected[name].shape)}" for name in wrong]
        raise BadCheckpoint(f"wrong shapes: {_some(told)}")
    other = [name for name in both if not _alike(found[name].dtype, expected[name].dtype)]
    if other:
        told = [f"{name} {found[name].dtype} instead of {expected[name].dtype}" for name in other]
        raise BadCheckpoint(f"wrong number formats: {_some(told)}")


def _alike(found: str, expected: str) -> bool:
    return found == expected or {found, expected} <= _FLOATS


def _some(names: Iterable[str]) -> str:
    named = list(names)
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more
