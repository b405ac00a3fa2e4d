"""Where a server's processor time goes, written to files; by the profiler that Python has."""

from __future__ import annotations

import cProfile
import io
import pstats
from pathlib import Path
from typing import Any

from pydantic import BaseModel, PrivateAttr, field_validator


class Profiler(BaseModel):
    """`<name>.log`, the functions by their time, and `<name>.pstats`, for programs that draw them."""

    name: str
    base_profile_dir: Path
    required_str: str | None = None
    """Only functions with it in their line are in the log."""
    _profile: Any = PrivateAttr(default_factory=cProfile.Profile)

    @field_validator("name")
    @classmethod
    def _names_a_file(cls, name: str) -> str:
        if " " in name:
            raise ValueError(f"expected a name without spaces, got {name!r}")
        return name

    def start(self) -> None:
        self._profile.enable()

    def stop(self) -> None:
        self._profile.disable()
        self.dump()

    def dump(self) -> None:
        """As far as it has come."""
        self.base_profile_dir.mkdir(parents=True, exist_ok=True)
        told = io.StringIO()
        stats = pstats.Stats(self._profile, stream=told)
        stats.dump_stats(self.base_profile_dir / f"{self.name}.pstats")
        stats.sort_stats("cumulative").print_stats()
        head, mark, lines = told.getvalue().partition("filename:lineno(function)\n")
        kept = [line for line in lines.splitlines() if not self.required_str or self.required_str in line]
        (self.base_profile_dir / f"{self.name}.log").write_text(head + mark + "\n".join(kept) + "\n")
