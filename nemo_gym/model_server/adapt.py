"""What is sent differs from what was received only here: the server's overrides, and what this backend cannot take.

The request that came in is never changed; a changed one is a new value, and the record holds both. Nothing is dropped
in silence: what a reader of the log should know is said once per process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ..backends.backend import Capabilities
from ..exchange.errors import InvalidRequest
from ..exchange.parts import Media, Message, Origin, Part, Text, ToolResult
from ..exchange.request import ModelRequest, Sampling
from . import foreign, methods, translatable
from .fields import CARRIED, HARMLESS, KNOWN
from .said import say_once

if TYPE_CHECKING:
    from .server import SimpleResponsesAPIModel

SAMPLING_FIELDS = frozenset(Sampling.__struct_fields__)
NO_IMAGE = "[image left out: this model takes none]"
_SYSTEM_MARK = "[system]\n"


def check_overrides(overrides: Mapping[str, Any]) -> Sampling:
    """The overrides as Sampling. Raises ValueError that names the field."""
    for name in overrides:
        if name not in SAMPLING_FIELDS:
            known = ", ".join(sorted(SAMPLING_FIELDS))
            raise ValueError(f"sampling_overrides.{name}: unknown; expected one of {known}")
    try:
        return msgspec.convert(dict(overrides), Sampling)
    except msgspec.ValidationError as error:
        raise ValueError(f"sampling_overrides: {error}") from None


class Adapter:
    """Requests as one server's backend takes them."""

    def __init__(self, server: SimpleResponsesAPIModel) -> None:
        config = server.config
        forced = check_overrides(config.sampling_overrides)
        self._forced = {name: getattr(forced, name) for name in config.sampling_overrides}
        self._server = server
        self._answered_in: dict[str, str | None] = {}
        self._strict = config.strict
        self._forward_unknown = config.forward_unknown
        self._vision = config.vision

    def check(self, request: ModelRequest) -> None:
        """A6: unknown fields are bad input where the server says so. Raises InvalidRequest that names them."""
        if request.origin is not None and request.origin.dialect == "responses":
            self._check_responses(request, request.origin.body)
        elif (
            request.origin is not None
            and request.origin.dialect == "messages"
            and self._spoken("messages") != "messages"
        ):
            for words in foreign.check_messages(request, self._server.config.web_search):
                say_once(words)
            if self._spoken("messages") == "chat":
                for message in request.messages:
                    translatable.check_sources(message, "messages")
        if not self._strict or request.origin is None:
            return
        body, dialect = request.origin.body, request.origin.dialect
        unknown = [name for name in body if name not in KNOWN.get(dialect, body)]
        if unknown:
            said = {"type": "extra_forbidden", "msg": "Extra inputs are not permitted"}
            raise InvalidRequest(
                f"{unknown[0]}: unknown field (this server is strict)",
                errors=[{**said, "loc": (name,), "input": body[name]} for name in unknown],
                param=unknown[0],
                status=422 if dialect == "chat" else 400,
            )

    def check_prefill(self, request: ModelRequest, capabilities: Capabilities | None) -> None:
        """A Messages reply that the client began is gone on with or refused: begun anew, it would read wrong."""
        if request.origin is None or request.origin.dialect != "messages":
            return
        spoken = self._spoken("messages")
        # Whoever gives token ids (vLLM, SGLang) knows `continue_final_message`.
        continued = spoken == "chat" and capabilities is not None and capabilities.token_ids is True
        if spoken != "messages" and not continued and request.messages and request.messages[-1].role == "assistant":
            raise InvalidRequest(
                "messages: the last one is the assistant's, and this backend cannot continue it; "
                "end with a user message",
                param="messages",
            )

    def _check_responses(self, request: ModelRequest, body: Mapping[str, Any]) -> None:
        if body.get("background") is True:
            say_once("background: responses are made in the foreground here")
        if self._spoken("responses") != "responses":
            translatable.check(request, body, self._server.config.web_search)

    def adapt(self, request: ModelRequest, capabilities: Capabilities | None) -> ModelRequest:
        """The request that the backend gets; the same object when nothing is changed."""
        changes: dict[str, Any] = {}
        if self._forced:
            sampling = replace(request.sampling, **self._forced)
            if sampling != request.sampling:
                changes["sampling"] = sampling
        known = capabilities or Capabilities()
        messages = self._messages(request.messages, known)
        if request.origin is not None and (spoken := self._spoken(request.origin.dialect)) != request.origin.dialect:
            if request.origin.dialect == "messages":
                messages = foreign.marked_errors(messages)
                tools = foreign.messages_tools(request.tools)
                if tools is not request.tools:
                    changes["tools"] = tools
            else:
                changes |= translatable.offered(request, request.origin.body)
            for name in foreign.unsaid(request, spoken or ""):
                say_once(f"{name} is not passed on: requests of {spoken} cannot say it")
        if messages is not request.messages:
            changes["messages"] = messages
        origin = self._origin(request.origin)
        if origin is not request.origin:
            changes["origin"] = origin
        if request.origin is not None:
            _warn_of_force(request, request.origin.body, known)
        # The origin stays: a writer of its dialect takes from it only what no field of ours says.
        return replace(request, **changes) if changes else request

    def _messages(self, messages: tuple[Message, ...], known: Capabilities) -> tuple[Message, ...]:
        if self._developer_as_system(known) and "developer" in [message.role for message in messages]:
            messages = tuple(_as(message, "system") if message.role == "developer" else message for message in messages)
        if known.several_systems is False:
            messages = _merged(messages)
        if known.late_system is False:
            messages = _marked(messages)
        vision = known.vision if self._vision is None else self._vision
        if vision is False and any(_has_image(message.parts) for message in messages):
            messages = tuple(
                replace(message, parts=_without_images(message.parts), origin=None)
                if _has_image(message.parts)
                else message
                for message in messages
            )
        return messages

    def _developer_as_system(self, known: Capabilities) -> bool:
        role = self._server.config.developer_role
        return role == "system" or (role == "auto" and self._server.developer_role_unknown and not known.developer)

    def _spoken(self, dialect: str) -> str | None:
        """The dialect in which a client's request of this one is answered; always the same."""
        if dialect not in self._answered_in:
            method = methods.overridden(self._server, dialect)
            spoken = self._server.asked_in(dialect) if method is None else methods.DIALECTS[method].name
            self._answered_in[dialect] = spoken
        return self._answered_in[dialect]

    def _origin(self, origin: Origin | None) -> Origin | None:
        """Without the fields that this backend is not to get; what they would have done is said (A6)."""
        if origin is None:
            return None
        dialect = origin.dialect
        method = methods.overridden(self._server, dialect)
        same = dialect == self._spoken(dialect)
        if same and self._forward_unknown and method is None:
            return origin
        dropped = origin.body.keys() - (KNOWN if same else CARRIED).get(dialect, origin.body.keys())
        if not dropped:
            return origin
        for name in sorted(dropped - HARMLESS):
            if origin.body[name] is not None:
                say_once(f"the field {name!r} of {dialect} requests is not passed on to this backend")
        if not same:
            return origin  # a writer of another dialect takes nothing from it
        return Origin(dialect, {name: value for name, value in origin.body.items() if name not in dropped})


def _warn_of_force(request: ModelRequest, body: Mapping[str, Any], known: Capabilities) -> None:
    """A10: the reply is not altered; but a client that asked for more than the backend enforces is told of."""
    forced = request.tool_choice not in ("auto", "none") and body.get("tool_choice") is not None
    if forced and known.forced_tools is False:
        say_once("tool_choice: this backend cannot force a tool call; replies may come without one")
    if not request.parallel_tool_calls and known.single_call is False and not (forced and known.forced_tools):
        field = "parallel_tool_calls" if "parallel_tool_calls" in body else "tool_choice.disable_parallel_tool_use"
        say_once(f"{field}: this backend cannot keep replies to one tool call; several may come")


# ---- system messages (A17)


def _as(message: Message, role: Any) -> Message:
    return replace(message, role=role, origin=None)


def _merged(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The leading system messages as one."""
    lead = 0
    while lead < len(messages) and messages[lead].role == "system":
        lead += 1
    if lead < 2:
        return messages
    parts: list[Part] = []
    for message in messages[:lead]:
        parts += [Text("\n\n"), *message.parts] if parts else message.parts
    if all(isinstance(part, Text) for part in parts):
        parts = [Text("".join(part.text for part in parts if isinstance(part, Text)))]
    return (Message("system", tuple(parts)), *messages[lead:])


def _marked(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Later system messages as user messages that say what they are."""
    leading = True
    found = []
    for message in messages:
        leading = leading and message.role == "system"
        if message.role == "system" and not leading:
            text = [part.text for part in message.parts if isinstance(part, Text)]
            whole = len(text) == len(message.parts)
            parts = (Text(_SYSTEM_MARK + "".join(text)),) if whole else (Text(_SYSTEM_MARK), *message.parts)
            message = Message("user", parts)
        found.append(message)
    return messages if all(a is b for a, b in zip(found, messages, strict=True)) else tuple(found)


# ---- images (A11)


def _has_image(parts: Iterable[Part]) -> bool:
    return any(
        (isinstance(part, Media) and part.kind == "image") or (isinstance(part, ToolResult) and _has_image(part.parts))
        for part in parts
    )


def _without_images(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    changed: list[Part] = []
    for part in parts:
        if isinstance(part, Media) and part.kind == "image":
            part = Text(NO_IMAGE)
        elif isinstance(part, ToolResult) and _has_image(part.parts):
            part = replace(part, parts=_without_images(part.parts), origin=None)
        changed.append(part)
    return tuple(changed)
