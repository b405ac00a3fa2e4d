"""What a backend can do, asked and not assumed: each ability by a request that shows it.

Works on every kind of backend through the one method that all of them have. Nothing is concluded from a name or a
version; what could not be told stays None, with the reason. A handful of calls of a few tokens each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from ..exchange.call import Call
from ..exchange.errors import ModelError
from ..exchange.parts import Media, Message, Part, Text, ToolCall
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest, Sampling
from ..exchange.tools import Tool
from .abilities import PICTURE
from .backend import Capabilities
from .logprobs import mode_of

CALL_S = 120.0
"""For one question."""
_FEW, _MORE = 16, 512
"""Tokens: for what shows at once, and for what a model may think about first."""
_WEATHER = Tool(
    "get_weather",
    "The weather in a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
_TIME = Tool(
    "get_time",
    "The time in a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


class Finding(Struct, frozen=True):
    name: str
    able: bool | None
    """None: could not be told."""
    detail: str = ""


class Asked(Protocol):
    """A backend, as far as it is asked here."""

    async def generate(self, request: ModelRequest, call: Call) -> ModelReply: ...

    async def probe(self) -> Capabilities: ...


async def examine(backend: Asked) -> list[Finding]:
    """Every ability in a fixed order. Raises ModelError when the backend answers no call at all."""
    known = await backend.probe()
    examined = _Examination(backend, known)
    reply = await examined.ask(_said("Say hello."), Sampling(max_tokens=_FEW))
    found = [examined.token_ids(reply)]
    checks: list[tuple[str, Callable[[], Awaitable[Finding]]]] = [
        ("log-probs", examined.logprobs),
        ("log-prob mode", examined.logprobs_mode),
        ("tool calls", examined.tool_calls),
        ("required tool", examined.required_tool),
        ("named tool", examined.named_tool),
        ("output schema", examined.output_schema),
        ("images", examined.images),
        ("streaming", examined.streaming),
    ]
    for name, check in checks:
        try:
            found.append(await check())
        except ModelError as error:
            refused = error.status in (400, 404, 405, 413, 415, 422, 501)
            found.append(Finding(name, False if refused else None, f"{error.status}: {error.message}"))
    usage = reply.usage
    counted = usage.prompt is not None and usage.completion is not None
    found.append(Finding("usage", counted, f"{usage.prompt} in, {usage.completion} out" if counted else ""))
    found.append(Finding("context", None if known.context is None else True, _tokens(known.context)))
    return [*found, _roles(known)]


class _Examination:
    def __init__(self, backend: Asked, known: Capabilities) -> None:
        self._backend = backend
        self._known = known
        self._mode: str | None = None
        """What the backend says of its log-probs where it is our own."""

    async def ask(
        self, message: Message, sampling: Sampling, *, relay: Callable[[Any], None] | None = None, **fields: Any
    ) -> ModelReply:
        request = ModelRequest(messages=(message,), sampling=sampling, **fields)
        call = Call(request, relay=relay)
        try:
            async with asyncio.timeout(CALL_S):
                reply = await self._backend.generate(request, call)
        except TimeoutError:
            raise ModelError(504, "timeout", f"no answer within {CALL_S:g} s") from None
        self._mode = call.logprobs_mode
        if not reply.choices:
            raise ModelError(502, "backend", "the reply has no choices")
        return reply

    def token_ids(self, reply: ModelReply) -> Finding:
        tokens = reply.choices[0].tokens
        sampled = tokens is not None and bool(tokens.ids)
        if sampled and reply.prompt_ids:
            return Finding("token ids", True, f"{len(reply.prompt_ids)} of the prompt, {len(tokens.ids)} sampled")  # type: ignore[union-attr,arg-type]
        missing = "of the prompt" if sampled else "of the reply" if reply.prompt_ids else ""
        return Finding("token ids", False, f"those {missing} are missing" if missing else "")

    async def logprobs(self) -> Finding:
        tokens = (await self._sampled(1.0)).choices[0].tokens
        given = tokens is not None and bool(tokens.logprobs)
        tops = given and bool(tokens.top)  # type: ignore[union-attr]
        return Finding(
            "log-probs", given, "with alternatives" if tops else "of the sampled tokens only" if given else ""
        )

    async def logprobs_mode(self) -> Finding:
        once, twice = [_first_top(await self._sampled(temperature)) for temperature in (1.0, 2.0)]
        mode, detail = mode_of(once, twice)
        if mode is None and self._mode == "processed":
            mode = detail = "processed"  # said by an engine of ours, that gives no alternatives
        return Finding("log-prob mode", None if mode is None else mode == "processed", detail)

    async def _sampled(self, temperature: float) -> ModelReply:
        sampling = Sampling(max_tokens=_FEW, temperature=temperature, logprobs=5)
        return await self.ask(_said("Name a colour."), sampling)

    async def tool_calls(self) -> Finding:
        words = "What is the weather in Rome? Use the tool."
        reply = await self.ask(_said(words), Sampling(max_tokens=_MORE), tools=(_WEATHER, _TIME))
        call = _call(reply)
        if call is None:
            written = any(_WEATHER.name in part.text for part in reply.choices[0].parts if isinstance(part, Text))
            said = (
                "a call came as text: no parser reads it" if written else "asked to use a tool, the model called none"
            )
            return Finding("tool calls", False if written else None, said)
        return Finding("tool calls", *_well_formed(call))

    async def required_tool(self) -> Finding:
        reply = await self.ask(_said("Hello."), Sampling(max_tokens=_MORE), tools=(_WEATHER,), tool_choice="required")
        return Finding("required tool", _call(reply) is not None)

    async def named_tool(self) -> Finding:
        words = _said("What is the weather in Rome?")
        reply = await self.ask(words, Sampling(max_tokens=_MORE), tools=(_WEATHER, _TIME), tool_choice=_TIME)
        call = _call(reply)
        return Finding("named tool", call is not None and call.name == _TIME.name)

    async def output_schema(self) -> Finding:
        reply = await self.ask(_said("Is water wet?"), Sampling(max_tokens=_MORE), output_schema=_SCHEMA)
        if reply.choices[0].finish == "length":
            return Finding("output schema", None, f"not finished after {_MORE} tokens")
        try:
            value = json.loads(_text(reply))
        except ValueError:
            return Finding("output schema", False, "the text is not JSON")
        held = isinstance(value, dict) and list(value) == ["answer"] and value["answer"] in ("yes", "no")
        return Finding("output schema", held, "" if held else "the JSON is not of the schema")

    async def images(self) -> Finding:
        if self._known.vision is False:
            return Finding("images", False)
        words = Text("Which colour is this?")
        without = await self.ask(Message("user", (words,)), Sampling(max_tokens=_FEW))
        given = await self.ask(Message("user", (words, Media("image", PICTURE))), Sampling(max_tokens=_FEW))
        if without.usage.prompt is None or given.usage.prompt is None:
            return Finding("images", None, "accepted; without usage there is no telling whether it was looked at")
        more = given.usage.prompt - without.usage.prompt
        return Finding("images", more > 0, f"{more} tokens" if more > 0 else "accepted, and left out of the prompt")

    async def streaming(self) -> Finding:
        pieces: list[Any] = []
        reply = await self.ask(_said("Count to ten."), Sampling(max_tokens=_FEW * 2), relay=pieces.append)
        tokens = reply.choices[0].tokens
        ids = "with token ids" if tokens is not None and tokens.ids else "without token ids"
        usage = "" if reply.usage.prompt is not None else ", without usage"
        if len(pieces) < 2:
            return Finding("streaming", False, "the reply came whole")
        return Finding("streaming", True, f"{len(pieces)} pieces, {ids}{usage}")


def _said(text: str) -> Message:
    return Message("user", (Text(text),))


def _text(reply: ModelReply) -> str:
    return "".join(part.text for part in reply.choices[0].parts if isinstance(part, Text))


def _call(reply: ModelReply) -> ToolCall | None:
    parts: tuple[Part, ...] = reply.choices[0].parts
    return next((part for part in parts if isinstance(part, ToolCall)), None)


def _well_formed(call: ToolCall) -> tuple[bool, str]:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return False, "the arguments are not JSON"
    good = call.name == _WEATHER.name and isinstance(arguments, dict) and "city" in arguments
    return good, f"{call.name}({call.arguments})"[:80]


def _first_top(reply: ModelReply) -> Mapping[str, float]:
    tokens = reply.choices[0].tokens
    tops = tokens.top if tokens is not None else None
    return tops[0] if tops else {}


def _tokens(count: int | None) -> str:
    return "" if count is None else f"{count:,} tokens"


def _roles(known: Capabilities) -> Finding:
    held = {
        "developer": known.developer,
        "several system messages": known.several_systems,
        "later system messages": known.late_system,
    }
    told = {name: able for name, able in held.items() if able is not None}
    if not told:
        return Finding("system messages", None, "no route tells how the prompt is rendered")
    lost = [name for name, able in told.items() if not able]
    return Finding("system messages", not lost, f"not rendered: {', '.join(lost)}" if lost else "all rendered")
