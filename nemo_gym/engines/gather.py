"""What an engine gave piece by piece, as the whole outputs that it would have given at once."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from ..exchange.reply import Finish, TokenTrace
from .engine import EngineOutput, EnginePiece


class Gathered:
    """The pieces of one output."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.finish: Finish | None = None
        self.stop_sequence: str | None = None
        self.versions: tuple[tuple[int, int], ...] = ()
        """Runs over the whole output; those of the pieces hold where these are not told."""
        self._text: list[str] = []
        self._ids: array | None = None
        self._logprobs: array | None = None
        self._texts: list[str] | None = None
        self._top: list[Mapping[str, float]] | None = None
        self._runs: list[tuple[int, int]] = []

    def add(self, piece: EnginePiece) -> None:
        trace = piece.tokens
        start = len(self._ids or ())
        self._text.append(piece.text)
        if trace.ids is not None:
            self._ids = trace.ids[:] if self._ids is None else self._ids + trace.ids
        if trace.logprobs is not None:
            self._logprobs = trace.logprobs[:] if self._logprobs is None else self._logprobs + trace.logprobs
        if trace.texts is not None:
            self._texts = [*(self._texts or ()), *trace.texts]
        if trace.top is not None:
            self._top = [*(self._top or ()), *trace.top]
        for at, version in trace.versions:
            if not self._runs or self._runs[-1][1] != version:
                self._runs.append((start + at, version))

    def whole(self) -> EngineOutput:
        assert self.finish is not None
        trace = TokenTrace(
            self._ids,
            self._logprobs,
            self.versions or tuple(self._runs),
            None if self._texts is None else tuple(self._texts),
            None if self._top is None else tuple(self._top),
        )
        return EngineOutput(self.index, trace, "".join(self._text), self.finish, self.stop_sequence)
