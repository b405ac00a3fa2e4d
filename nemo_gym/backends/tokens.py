"""A backend of our own: render, generate on token ids, parse.

Token ids and log-probs are the engine's, never made from text again; an engine that gives none leaves none. The
parser sees everything that was generated, with its ids, so that a marker that is one token is never taken for the same
characters written out; `tool_choice: none` leaves call markup in the text (A10). A relayed call goes through the same
parser piece by piece.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Literal

from msgspec.structs import replace

from ..engines.engine import Engine, EngineOutput, EngineReply, EngineRequest
from ..exchange.call import Call
from ..exchange.errors import ModelError
from ..exchange.parts import Message, Part, Text, ToolCall
from ..exchange.reply import Choice, Finish, ModelReply, Usage
from ..exchange.request import ModelRequest, Sampling
from ..parsers import Parsed, Parser, output_parser
from ..parsers.catalog import REASONING
from ..parsers.output import HARMONY
from ..parsers.tokens import Vocabulary, reasoning_tokens
from ..pool.attempts import Attempts
from ..pool.pool import Pool
from ..rendering.continuation import Rendered, render
from ..rendering.conversation import tool_dicts
from ..rendering.renderer import Renderer
from . import demands
from .backend import Capabilities
from .guides import forces, guide
from .logprobs import mode_of
from .relay import Relay, identified
from .single_call import Closing, SingleCall

_BLOCK = ("<think>", "</think>")
_EFFORTS = 16
"""How many are remembered: a client may write anything there."""
_PROBE = ModelRequest((Message("user", (Text("Name a colour."),)),))


class TokensBackend:
    """Args:
    engine: what generates; several equal ones as a pool.
    renderer: the model's conversation format.
    tool_parser: the name of the format of its tool calls; None leaves them in the text.
    reasoning_parser: the name of the format of its reasoning; None leaves it in the text.
    model_name: what replies call the model.
    history: `exact` continues earlier turns on their own tokens, `template` renders all anew.
    attempts: of one call, over a pool; without them an engine's own tries are all there are.
    logprobs_mode: `processed` or `raw`; None measures it at the probe.
    adapters: LoRA adapters of the engine, asked for by their names in the place of the model's.
    prompt_logprobs: asked for with every call.
    """

    def __init__(
        self,
        engine: Engine | Pool[Engine],
        renderer: Renderer,
        tool_parser: str | None,
        reasoning_parser: str | None,
        model_name: str,
        history: Literal["exact", "template"] = "exact",
        *,
        attempts: Attempts | None = None,
        logprobs_mode: str | None = "processed",
        adapters: Collection[str] = (),
        prompt_logprobs: bool = False,
    ) -> None:
        self._pool = engine if isinstance(engine, Pool) else None
        self._engines = [replica.item for replica in engine.replicas] if isinstance(engine, Pool) else [engine]
        self._attempts = attempts
        self._renderer = renderer
        self._tool_parser = tool_parser
        self._reasoning_parser = reasoning_parser
        self._model_name = model_name
        self._exact = history == "exact" and self._engine.takes_ids
        self._logprobs_mode = logprobs_mode
        self._adapters = frozenset(adapters)
        self._prompt_logprobs = prompt_logprobs
        self._in_reasoning: dict[str | None, bool | None] = {}
        """By effort: whether a turn begins inside a reasoning block."""
        self._vocabulary = Vocabulary(renderer.added_tokens, renderer.decode)
        self._closing = Closing.of(tool_parser, renderer.added_tokens) if self._engine.takes_ids else None
        output_parser(tool_parser, reasoning_parser)  # an unknown name is refused now, not at the first call

    @property
    def _engine(self) -> Engine:
        """One of those that are equal."""
        return self._engines[0]

    async def generate(self, request: ModelRequest, call: Call) -> ModelReply:
        rendered, asked = self._asked(request, call)
        call.history, call.prefix_break = rendered.history, rendered.prefix_break
        call.sent = call.sent or time.time()
        if self._pool is None or self._attempts is None:
            reply = await self._answer(self._engine, asked, request, call, own_attempts=True)
        else:
            reply = await self._attempts.answer(
                self._pool, call, lambda engine: self._answer(engine, asked, request, call, own_attempts=False)
            )
        if any(choice.tokens is not None and choice.tokens.logprobs is not None for choice in reply.choices):
            call.logprobs_mode = self._logprobs_mode or "raw"
        return reply

    def _asked(self, request: ModelRequest, call: Call) -> tuple[Rendered, EngineRequest]:
        if HARMONY in (self._tool_parser, self._reasoning_parser):
            demands.check_harmony(request)
        if not self._engine.takes_ids:
            demands.check_text_only(request)
        rendered = render(self._renderer, request, call.prior, exact=self._exact)
        block = REASONING.get(self._reasoning_parser or "")
        form = guide(request, self._forced_format, block, self._opens_in_reasoning(request.effort))
        return rendered, EngineRequest(
            prompt_ids=rendered.ids,
            sampling=request.sampling,
            guide=form,
            ends=() if form is not None else self._ends(request),
            prompt_logprobs=demands.wants_prompt_logprobs(request) or self._prompt_logprobs,
            adapter=request.model if request.model in self._adapters else None,
            prompt_text=None if self._engine.takes_ids else self._renderer.text(request),
            affinity=call.rollout_id,
        )

    @property
    def _forced_format(self) -> str | None:
        """The format in which this engine can be made to write a call."""
        return self._tool_parser if self._engine.takes_ids and forces(self._tool_parser) else None

    async def _answer(
        self, engine: Engine, asked: EngineRequest, request: ModelRequest, call: Call, *, own_attempts: bool
    ) -> ModelReply:
        parser = self._parser(request)
        relay = Relay(parser, call) if call.relayed else None
        on_piece = None if relay is None else relay.piece
        on_attempt = call.attempts.append if own_attempts else None
        reply = await engine.generate(asked, on_piece=on_piece, on_attempt=on_attempt)
        if asked.ends and self._closing is not None:
            once = SingleCall(self._closing, asked, engine, on_piece, on_attempt)
            has_called = relay.has_called if relay is not None else lambda output: _has_called(parser, output)
            reply = replace(reply, outputs=tuple([await once.ended(output, has_called) for output in reply.outputs]))
        if relay is None:
            parsed = [parser.parse(output.text, output.tokens.ids) for output in reply.outputs]
        else:
            parsed = [relay.parsed(output.index) for output in reply.outputs]
        call.prompt_logprobs = reply.prompt_logprobs
        choices = tuple(_choice(output, parts.parts) for output, parts in zip(reply.outputs, parsed, strict=True))
        return ModelReply(
            id="chatcmpl-" + call.id.replace("-", ""),
            model=asked.adapter or self._model_name,
            created=int(call.received),
            choices=choices,
            usage=reply.usage or self._usage(len(asked.prompt_ids), reply, parsed),
            prompt_ids=asked.prompt_ids if engine.takes_ids else None,
        )

    def _ends(self, request: ModelRequest) -> tuple[int, ...]:
        once = not request.parallel_tool_calls and _may_call(request)
        return (self._closing.id,) if once and self._closing is not None else ()

    def _parser(self, request: ModelRequest) -> Parser:
        return output_parser(
            tool_calls=self._tool_parser if _may_call(request) else None,
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
        await self._checked()
        if self._logprobs_mode is None and self._engine.takes_ids:
            self._logprobs_mode = await self._measured()
        return Capabilities(
            token_ids=self._engine.takes_ids,
            logprobs=self._engine.takes_ids,
            forced_tools=self._forced_format is not None,
            single_call=self._closing is not None,
            vision=False,
            context=self._engine.context,
        )

    async def _checked(self) -> None:
        """Returns when one of the engines has given a token."""
        *others, last = self._engines
        for engine in others:
            try:
                await engine.check()
                return
            except ModelError:
                continue
        await last.check()

    async def _measured(self) -> str | None:
        tops = []
        for temperature in (1.0, 2.0):
            sampling = Sampling(temperature=temperature, max_tokens=1, logprobs=5)
            asked = EngineRequest(self._renderer.ids(_PROBE), sampling)
            tokens = (await self._engine.generate(asked)).outputs[0].tokens
            tops.append(tokens.top[0] if tokens.top else {})
        return mode_of(*tops)[0]

    async def count(self, request: ModelRequest) -> int:
        return len(self._renderer.ids(request))

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()


def _may_call(request: ModelRequest) -> bool:
    return bool(request.tools) and request.tool_choice != "none"


def _has_called(parser: Parser, output: EngineOutput) -> bool:
    return bool(parser.parse(output.text, output.tokens.ids).calls)


def _choice(output: EngineOutput, parsed: Iterable[Part]) -> Choice:
    parts = tuple(map(identified, parsed))
    finish: Finish = output.finish
    if finish == "stop" and any(isinstance(part, ToolCall) for part in parts):
        finish = "tool_calls"
    return Choice(output.index, parts, finish, output.tokens, output.stop_sequence)


def _opened(generation_prompt: str) -> bool | None:
    """Whether the template begins the model's turn inside a reasoning block; None when it says nothing of one."""
    opened, closed = (generation_prompt.rfind(marker) for marker in _BLOCK)
    return None if opened < 0 and closed < 0 else opened > closed
