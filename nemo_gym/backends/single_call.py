"""One call and no more (`parallel_tool_calls: false`, A10): the generation ends with its first call.

The engine ends at the token that closes a call. Up to it nothing is forced and nothing cut: every token has the odds
that it has anyway, and the end token that would follow is left unsaid. Where the model writes that token and closes no
call with it (in its reasoning, in a string that quotes it), the generation goes on, on its own tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..engines.engine import Engine, EngineOutput, EnginePiece, EngineRequest
from ..engines.gather import Gathered
from ..exchange.call import Attempt
from ..exchange.reply import TokenTrace
from .guides import WRITTEN


class Closing(Struct, frozen=True):
    """What closes a call."""

    marker: str
    id: int
    """Of the token that it is."""

    @classmethod
    def of(cls, tool_format: str | None, added_tokens: Mapping[str, int]) -> Closing | None:
        """None where calls stand in a section of several, or no token of their own closes them."""
        written = WRITTEN.get(tool_format or "")
        if written is None or any(written.around):
            return None
        marker = written.end.rpartition("\n")[2]
        return cls(marker, added_tokens[marker]) if marker in added_tokens else None


class SingleCall:
    """Args:
    asked: of the engine; it ends at the closing token.
    on_piece: gets what is still to come of an output.
    on_attempt: gets each further try.
    """

    def __init__(
        self,
        closing: Closing,
        asked: EngineRequest,
        engine: Engine,
        on_piece: Callable[[EnginePiece], None] | None,
        on_attempt: Callable[[Attempt], None] | None,
    ) -> None:
        self._closing = closing
        self._asked = asked
        self._engine = engine
        self._on_piece = on_piece
        self._on_attempt = on_attempt

    async def ended(self, output: EngineOutput, has_called: Callable[[EngineOutput], bool]) -> EngineOutput:
        """The output up to the end of its first call, or to whatever else ended it.

        Args:
            has_called: whether there is a call in an output; every piece of it was passed on.
        """
        while self._closed(output):
            # An engine leaves out of the text what ended it.
            output = replace(output, text=output.text + self._closing.marker)
            if self._on_piece is not None:
                self._on_piece(EnginePiece(output.index, self._closing.marker, TokenTrace()))
            if has_called(output):
                break
            rest = self._rest(output)
            if rest is None:
                return replace(output, finish="length")
            on_piece = None if self._on_piece is None else self._as_of(output.index, self._on_piece)
            reply = await self._engine.generate(rest, on_piece=on_piece, on_attempt=self._on_attempt)
            output = _joined(output, reply.outputs[0])
        return output

    def _closed(self, output: EngineOutput) -> bool:
        return output.finish == "stop" and (output.tokens.ids or array("i"))[-1:] == array("i", [self._closing.id])

    def _rest(self, output: EngineOutput) -> EngineRequest | None:
        """What the output goes on with; None where it may not be longer."""
        ids = output.tokens.ids or array("i")
        prompt = self._asked.prompt_ids + ids
        sampling = self._asked.sampling
        most = None if sampling.max_tokens is None else sampling.max_tokens - len(ids)
        context = self._engine.context
        if most == 0 or (context is not None and len(prompt) >= context):
            return None
        sampling = replace(sampling, n=1, max_tokens=most)
        return replace(self._asked, prompt_ids=prompt, sampling=sampling, prompt_logprobs=False)

    @staticmethod
    def _as_of(index: int, on_piece: Callable[[EnginePiece], None]) -> Callable[[EnginePiece], None]:
        return lambda piece: on_piece(replace(piece, index=index))


def _joined(output: EngineOutput, rest: EngineOutput) -> EngineOutput:
    whole = Gathered(output.index)
    for one in (output, rest):
        whole.add(EnginePiece(output.index, one.text, one.tokens))
    whole.finish, whole.stop_sequence = rest.finish, rest.stop_sequence
    return whole.whole()
