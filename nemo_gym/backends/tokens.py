"""A backend of our own: render, generate on token ids, parse.

Token ids and log-probs are the engine's, never made from text again. The parser sees everything that was
generated, with its ids, so that a marker that is one token is never taken for the same characters written
out; `tool_choice: none` leaves call markup in the text (A10).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec.structs import replace

from ..engines.engine import Engine, EngineOutput, EngineReply, EngineRequest
from ..exchange.call import Call
from ..exchange.ids import uuid7
from ..exchange.parts import Part, ToolCall
from ..exchange.reply import Choice, Finish, ModelReply, Usage
from ..exchange.request import ModelRequest
from ..parsers import Parsed, Parser, output_parser
from ..parsers.tokens import Vocabulary, reasoning_tokens
from ..rendering.continuation import render
from ..rendering.conversation import tool_dicts
from ..rendering.renderer import Renderer
from .backend import Capabilities

_BLOCK = ("<think>", "</think>")
_EFFORTS = 16
"""How many are remembered: a client may write anything there."""


class TokensBackend:
    """Args:
    engine: what generates.
    renderer: the model's conversation format.
    tool_parser: the name of the format of its tool calls; None leaves them in the text.
    reasoning_parser: the name of the format of its reasoning; None leaves it in the text.
    model_name: what replies call the model.
    history: `exact` continues earlier turns on their own tokens, `template` renders all anew.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        tool_parser: str | None,
        reasoning_parser: str | None,
        model_name: str,
        history: Literal["exact", "template"] = "exact",
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._tool_parser = tool_parser
        self._reasoning_parser = reasoning_parser
        self._model_name = model_name
        self._exact = history == "exact"
        self._in_reasoning: dict[str | None, bool | None] = {}
        """By effort: whether a turn begins inside a reasoning block."""
        self._vocabulary = Vocabulary(renderer.added_tokens, renderer.decode)
        output_parser(tool_parser, reasoning_parser)  # an unknown name is refused now, not at the first call

    async def generate(self, request: ModelRequest, call: Call) -> ModelReply:
        rendered = render(self._renderer, request, call.prior, exact=self._exact)
        call.history, call.prefix_break, call.logprobs_mode = rendered.history, rendered.prefix_break, "processed"
        call.sent = call.sent or time.time()
        reply = await self._engine.generate(
            EngineRequest(
                prompt_ids=rendered.ids,
                sampling=request.sampling,
                guide=_guide(request.output_schema),
                affinity=call.rollout_id,
            ),
            on_attempt=call.attempts.append,
        )
        parser = self._parser(request)
        parsed = [parser.parse(output.text, output.tokens.ids) for output in reply.outputs]
        choices = tuple(_choice(output, parts.parts) for output, parts in zip(reply.outputs, parsed, strict=True))
        return ModelReply(
            id="chatcmpl-" + call.id.replace("-", ""),
            model=self._model_name,
            created=int(call.received),
            choices=choices,
            usage=self._usage(len(rendered.ids), reply, parsed),
            prompt_ids=rendered.ids,
        )

    def _parser(self, request: ModelRequest) -> Parser:
        callable_tools = request.tools and request.tool_choice != "none"
        return output_parser(
            tool_calls=self._tool_parser if callable_tools else None,
            reasoning=self._reasoning_parser,
            tools=tool_dicts(request.tools),
            in_reasoning=self._opens_in_reasoning(request.effort),
            vocabulary=self._vocabulary,
        )

    def _opens_in_reasoning(self, effort: str | None) -> bool | None:
        if effort not in self._in_reasoning:
            opened = _opened(self._renderer.generation_prompt(effort))
            if len(self._in_reasoning) >= _EFFORTS:
                return opened
            self._in_reasoning[effort] = opened
        return self._in_reasoning[effort]

    def _usage(self, prompt: int, reply: EngineReply, parsed: Iterable[Parsed]) -> Usage:
        completion = sum(len(output.tokens.ids or ()) for output in reply.outputs)
        thought = None
        if self._reasoning_parser is not None:
            pairs = zip(reply.outputs, parsed, strict=True)
            thought = sum(reasoning_tokens(parts, self._vocabulary, output.tokens.ids or ()) for output, parts in pairs)
        return Usage(prompt, completion, thought, reply.cached)

    async def probe(self) -> Capabilities:
        await self._engine.check()
        return Capabilities(
            token_ids=True, logprobs=True, forced_tools=False, vision=False, context=self._engine.context
        )

    async def count(self, request: ModelRequest) -> int:
        return len(self._renderer.encode(self._renderer.text(request)))

    async def close(self) -> None:
        await self._engine.close()


def _guide(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if schema is None:
        return None
    return {"json": dict(schema)} if schema else {"json_object": True}


def _choice(output: EngineOutput, parsed: Iterable[Part]) -> Choice:
    parts = tuple(_identified(part) for part in parsed)
    finish: Finish = output.finish
    if finish == "stop" and any(isinstance(part, ToolCall) for part in parts):
        finish = "tool_calls"
    return Choice(output.index, parts, finish, output.tokens, output.stop_sequence)


def _identified(part: Part) -> Part:
    if isinstance(part, ToolCall) and not part.call_id:
        return replace(part, call_id="call_" + uuid7().replace("-", ""))
    return part


def _opened(generation_prompt: str) -> bool | None:
    """Whether the template begins the model's turn inside a reasoning block; None when it says nothing of one."""
    opened, closed = (generation_prompt.rfind(marker) for marker in _BLOCK)
    return None if opened < 0 and closed < 0 else opened > closed
