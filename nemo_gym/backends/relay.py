"""Output as it comes: each piece through its parser, what that lets go on to the client, and at the end the parts.

The parts of the reply are the pieces joined, so what was relayed and what is recorded cannot differ (P1, V0).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from msgspec.structs import replace

from ..engines.engine import EngineOutput, EnginePiece
from ..exchange.call import Call
from ..exchange.ids import uuid7
from ..exchange.increments import Increment
from ..exchange.parts import Part, ToolCall
from ..exchange.reply import TokenTrace
from ..parsers import Parsed, Parser, ParserStream


class _Output:
    def __init__(self, stream: ParserStream) -> None:
        self.stream = stream
        self.pieces: list[Part] = []
        self.untold: list[TokenTrace] = []
        """Log-probs that the client is still to get, with the next piece."""


class Relay:
    def __init__(self, parser: Parser, call: Call) -> None:
        self._parser = parser
        self._call = call
        self._outputs: dict[int, _Output] = {}

    def piece(self, piece: EnginePiece) -> None:
        """An engine's `on_piece`."""
        output = self._output(piece.index)
        if piece.tokens.texts is not None:
            output.untold.append(piece.tokens)
        self._say(piece.index, output, output.stream.feed(piece.text, piece.tokens.ids))

    def has_called(self, output: EngineOutput) -> bool:
        """Whether there is a call in what has come of it."""
        return any(isinstance(part, ToolCall) for part in self._output(output.index).pieces)

    def parsed(self, index: int) -> Parsed:
        """The whole of an output that has ended."""
        output = self._output(index)
        self._say(index, output, output.stream.finish())
        return Parsed.fold(output.pieces)

    def _output(self, index: int) -> _Output:
        if index not in self._outputs:
            self._outputs[index] = _Output(self._parser.stream())
        return self._outputs[index]

    def _say(self, index: int, output: _Output, parts: Iterable[Part]) -> None:
        for part in map(identified, parts):
            output.pieces.append(part)
            tokens = _joined(output.untold) if output.untold else None
            output.untold = []
            self._call.emit(Increment(part, index, tokens))


def identified(part: Part) -> Part:
    """A call under an id, so that its result can name it."""
    if isinstance(part, ToolCall) and not part.call_id:
        return replace(part, call_id="call_" + uuid7().replace("-", ""))
    return part


def _joined(traces: list[TokenTrace]) -> TokenTrace:
    logprobs = array("f")
    for trace in traces:
        logprobs += trace.logprobs or array("f")
    return TokenTrace(
        logprobs=logprobs,
        texts=tuple(text for trace in traces for text in trace.texts or ()),
        top=tuple(top for trace in traces for top in trace.top or ()),
    )
