"""What an export wrote: files with digests, counts, options, and the account of the tokens. Beside it, the card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson
from msgspec import Struct

from .account import Account
from .formats.format import Format, Written
from .options import Options


class FormatSummary(Struct, frozen=True):
    folder: str
    rows: int
    files: list[Written]
    skipped: dict[str, int]
    """Rows that could not be made, by reason."""


class ExportSummary(Struct, frozen=True):
    formats: dict[str, FormatSummary]
    rollouts: int
    """Exported ones."""
    left_out: dict[str, int]
    """Rollouts that were not, by reason."""
    captured: int
    trained: int
    context: int
    discarded: dict[str, int]
    """Tokens by reason."""
    calls: dict[str, int]
    """Calls that are not trained, by reason."""
    sequences: dict[str, int]
    """Token sequences by why they begin where they do."""
    policy_versions: tuple[int | None, int | None]
    """The oldest and the newest that is trained."""

    @property
    def rows(self) -> int:
        return max((one.rows for one in self.formats.values()), default=0)

    @property
    def folders(self) -> dict[str, str]:
        return {name: one.folder for name, one in self.formats.items()}


def described(formats: Sequence[Format], folder: Path) -> dict[str, FormatSummary]:
    return {
        one.name: FormatSummary(
            str(folder / one.name), sum(file.rows for file in one.written), list(one.written), dict(one.skipped)
        )
        for one in formats
    }


def tokens(account: Account) -> dict[str, Any]:
    assert account.adds_up
    return {
        "captured": account.captured,
        "trained": account.trained,
        "context": account.context,
        "discarded": dict(account.discarded),
        "calls": dict(account.calls),
    }


def write(folder: Path, summary: ExportSummary, options: Options) -> None:
    """`manifest.json`; folders in it are relative, so that the whole can be moved."""
    said = msgspec.to_builtins(summary)
    for name, one in said["formats"].items():
        one["folder"] = name
    said = {"schema_version": 1, "options": _options(options), **said}
    scratch = folder / ".manifest.tmp"
    scratch.write_bytes(orjson.dumps(said, option=orjson.OPT_INDENT_2) + b"\n")
    scratch.replace(folder / "manifest.json")


def _options(options: Options) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(options)
    return built | {"include": sorted(options.include)}


def write_card(folder: Path, formats: Sequence[type[Format]], options: Options) -> None:
    """The dataset card. It lies beside the folders: pyarrow takes every file within one for data."""
    configs = "".join(f"  - config_name: {one.name}\n{_data_files(one, options)}" for one in formats)
    cards = "\n".join(one.card for one in formats)
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n\n# Rollouts of one job\n\n{cards}", "utf-8")


def _data_files(one: type[Format], options: Options) -> str:
    if not options.splits:
        return f'    data_files: "{one.name}/*"\n'
    files = "".join(f'      - split: {split}\n        path: "{one.name}/{split}-*"\n' for split, _ in options.splits)
    return f"    data_files:\n{files}"
