"""The model's own chat template, rendered as transformers renders it.

What a template does with arguments is asked of it by rendering a probe, never read from its source; the answer is kept
for the template's life.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..exchange.errors import InvalidRequest
from ..exchange.parts import Message, Text, ToolCall, ToolResult
from ..exchange.request import ModelRequest
from .conversation import message_dicts, tool_dicts
from .roles import PROBE, Roles
from .tokenizer import Tokenizer


class ChatTemplate:
    """Args:
    source: the template's text.
    special: special tokens by their names (`bos_token`, ...).
    kwargs: further variables, as `chat_template_kwargs` gives them; they win over what a request asks for.
    """

    def __init__(self, source: str, special: Mapping[str, str], kwargs: Mapping[str, Any] | None = None) -> None:
        self._template = _environment().from_string(source)
        self._variables = {"documents": None} | dict(special)
        self._kwargs = dict(kwargs or {})
        self.roles = Roles(lambda messages, tools: self._text(messages, list(tools)))

    @classmethod
    def load(cls, folder: str | Path, tokenizer: Tokenizer, kwargs: Mapping[str, Any] | None = None) -> ChatTemplate:
        """The folder's template. Raises ValueError when it has none."""
        path = Path(folder) / "chat_template.jinja"
        source = path.read_text(encoding="utf-8") if path.is_file() else tokenizer.config.get("chat_template")
        if isinstance(source, list):
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("tool_use") or named.get("default")
        if not isinstance(source, str):
            raise ValueError(f"the model folder {folder} has no chat template")
        return cls(source, tokenizer.special, kwargs)

    def render(self, request: ModelRequest) -> str:
        """The prompt's text. Raises InvalidRequest when the template refuses the conversation."""
        messages = self.roles.fitted(request.messages)
        try:
            return self._text(messages, tool_dicts(request.tools), effort=request.effort)
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the model's chat template refuses these messages: {error.message}") from None
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            kind = type(error).__name__
            raise InvalidRequest(f"the model's chat template cannot render these messages ({kind})") from error

    def _text(
        self,
        messages: tuple[Message, ...],
        tools: list[dict[str, Any]],
        generation_prompt: bool = True,
        string_arguments: bool | None = None,
        effort: str | None = None,
    ) -> str:
        as_string = self.string_arguments if string_arguments is None else string_arguments
        return self._template.render(
            messages=message_dicts(messages, string_arguments=as_string),
            tools=tools or None,
            add_generation_prompt=generation_prompt,
            **self._variables | thinking(effort) | self._kwargs,
        )

    @cached_property
    def string_arguments(self) -> bool:
        """Whether a call's arguments may be passed as the string that the model wrote."""
        written = f'{{"{PROBE}":  1}}'
        asked = Message("user", (Text("a"),))
        called = Message("assistant", (ToolCall("f", written, "c1"),))
        result = Message("tool", (ToolResult("c1", (Text("b"),)),))
        try:
            return written in self._text((asked, called, result), [], string_arguments=True)
        except Exception:
            return False

    def generation_prompt(self, effort: str | None = None) -> str:
        """What the template adds to begin the model's turn; it may depend on the effort that is asked for."""
        messages = (Message("user", (Text("a"),)),)
        try:
            before = self._text(messages, [], generation_prompt=False, effort=effort)
            return self._text(messages, [], effort=effort).removeprefix(before)
        except Exception:
            return ""


def thinking(effort: str | None) -> dict[str, Any]:
    """The variables that templates read it from, as vLLM sets them."""
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _environment() -> ImmutableSandboxedEnvironment:
    """What transformers gives a template."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote, for trainers; here its content stands as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)
