"""Families of models that the `renderers` package knows: the next turn as a bridge from the tokens of this one.

Which family a folder's model is of is asked, not assumed: a family counts as the model's when it gives the very ids of
the folder's chat template for some conversations. The whole prompt then stays the template's; only the bridge, which
knows how the family's turns end, is the package's. A family that is named in the configuration renders all.
"""

from __future__ import annotations

import importlib.util
import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from ..exchange.call import Prior
from ..exchange.errors import InvalidRequest
from ..exchange.parts import Message, Reasoning, Text, ToolCall, ToolResult
from ..exchange.request import ModelRequest
from ..exchange.tools import Tool
from .conversation import message_dicts, tool_dicts
from .roles import Roles
from .template import ChatTemplate, thinking
from .tokenizer import Tokenizer, read_json

logger = logging.getLogger(__name__)

PACKAGE = "renderers"
_NO_FAMILIES = ("auto", "custom", "default")
_CANDIDATES = {
    "qwen3": ("qwen3",),
    "qwen3_moe": ("qwen3",),
    "qwen3_next": ("qwen3",),
    "qwen3_5": ("qwen3.5", "qwen3.6", "qwen3.8"),
    "qwen3_5_moe": ("qwen3.5", "qwen3.6", "qwen3.8"),
    "glm4_moe": ("glm-4.5", "glm-5"),
    "glm4_moe_lite": ("glm-5",),
    "glm_moe_dsa": ("glm-5", "glm-5.1", "glm-5.3"),
    "gpt_oss": ("gpt-oss",),
    "deepseek_v3": ("deepseek-v3", "deepseek-r1"),
    "kimi_k2": ("kimi-k2",),
    "minimax_m2": ("minimax-m2",),
    "nemotron_h": ("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"),
    "llama": ("llama-3",),
}
"""By the folder's `model_type`."""
_BEGINS = {"gpt-oss": "<|start|>assistant"}
"""Where a family's prompt says more than the model's own: it would choose the channel for the model."""
_EFFORTS = 16


class Family:
    """Args:
    name: as the package calls it.
    tokenizer: the model's.
    template: its chat template; None lets the family render whole prompts.
    kwargs: of the template, as `chat_template_kwargs` gives them.
    """

    def __init__(
        self, name: str, tokenizer: Tokenizer, template: ChatTemplate | None, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        check_name(name)
        self.name = name
        self.end_ids = tokenizer.end_ids
        self.added_tokens: Mapping[str, int] = tokenizer.added
        self._tokenizer = tokenizer
        self._template = template
        self._kwargs = dict(kwargs or {})
        self._made: dict[str | None, Any] = {}
        """By effort."""
        self._config = _config(name)
        self._roles = template.roles if template is not None else Roles(self._shown)
        self._of(None)  # a tokenizer of another family is refused now

    # ---- as a renderer

    def ids(self, request: ModelRequest) -> array:
        if self._template is not None:
            return self.encode(self._template.render(request))
        return self.rendered(request)

    def text(self, request: ModelRequest) -> str:
        return self._template.render(request) if self._template is not None else self.decode(self.rendered(request))

    def generation_prompt(self, effort: str | None = None) -> str:
        if self._template is not None:
            return self._template.generation_prompt(effort)
        asked = [{"role": "user", "content": "a"}]
        before = self._of(effort).render_ids(asked, add_generation_prompt=False)
        return self.decode(self._cut(self._of(effort).render_ids(asked, add_generation_prompt=True))[len(before) :])

    def encode(self, text: str) -> array:
        return self._tokenizer.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(ids)

    def bridge(self, request: ModelRequest, prior: Prior) -> array | None:
        """The prompt that goes on from the earlier tokens; None where the family cannot tell how."""
        later = len(request.messages) - prior.messages
        if later <= 0 or not 0 < prior.prompt <= len(prior.tokens):
            return None
        messages = self._roles.fitted(request.messages)[-later:]
        bridged = self._of(request.effort).bridge_to_next_turn(
            prior.tokens[: prior.prompt].tolist(),
            prior.tokens[prior.prompt :].tolist(),
            message_dicts(messages, string_arguments=False),
            tools=tool_dicts(request.tools) or None,
        )
        if bridged is None:
            return None
        ids = array("i", self._cut(bridged.token_ids))
        return ids if ids[: len(prior.tokens)] == prior.tokens else None

    # ---- the package's own

    def rendered(self, request: ModelRequest) -> array:
        """The whole prompt, by the family. Raises InvalidRequest when it cannot be rendered."""
        messages = message_dicts(self._roles.fitted(request.messages), string_arguments=False)
        try:
            ids = self._of(request.effort).render_ids(
                messages, tools=tool_dicts(request.tools) or None, add_generation_prompt=True
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            kind = type(error).__name__
            raise InvalidRequest(f"the model's renderer cannot render these messages ({kind})") from error
        return array("i", self._cut(ids))

    def _shown(self, messages: tuple[Message, ...], tools: Sequence[dict[str, Any]]) -> str:
        entries = message_dicts(messages, string_arguments=False)
        return self.decode(self._of(None).render_ids(entries, tools=list(tools) or None, add_generation_prompt=True))

    def _cut(self, ids: list[int]) -> list[int]:
        """Without what the family says beyond the beginning of the model's turn."""
        begin = self._tokenizer.encode(_BEGINS[self.name]).tolist() if self.name in _BEGINS else []
        for at in range(len(ids) - len(begin), 0, -1) if begin else ():
            if ids[at : at + len(begin)] == begin:
                return ids[: at + len(begin)]
        return ids

    def _of(self, effort: str | None) -> Any:
        if effort in self._made:
            return self._made[effort]
        from renderers import create_renderer, merge_chat_template_kwargs

        told = {**thinking(effort), **self._kwargs}
        known = type(self._config).template_field_names()
        told = {name: value for name, value in told.items() if name in known}
        made = create_renderer(_Adapter(self._tokenizer), merge_chat_template_kwargs(self._config, told))
        if len(self._made) < _EFFORTS:
            self._made[effort] = made
        return made


def of_folder(
    folder: Path, tokenizer: Tokenizer, template: ChatTemplate, kwargs: Mapping[str, Any] | None
) -> Family | None:
    """The family that renders as the folder's template does; None where there is none, or no package."""
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    for name in _CANDIDATES.get(str(read_json(folder / "config.json").get("model_type")), ()):
        try:
            family = Family(name, tokenizer, template, kwargs)
            if _alike(family):
                return family
        except (AssertionError, ValueError, KeyError, TypeError):
            continue
    return None


def named(name: str, folder: Path, tokenizer: Tokenizer, kwargs: Mapping[str, Any] | None) -> Family:
    """The family of this name, for a folder that may say otherwise. Raises ValueError for a wrong one."""
    try:
        template = ChatTemplate.load(folder, tokenizer, kwargs)
    except ValueError:
        template = None
    try:
        if template is not None and not _alike(Family(name, tokenizer, template, kwargs)):
            logger.warning("renderer: %s renders otherwise than the chat template in %s", name, folder)
        return Family(name, tokenizer, None, kwargs)
    except AssertionError as error:
        raise ValueError(f"renderer: the tokenizer in {folder} is not one of {name}: {error}") from None


def _alike(family: Family) -> bool:
    """Whether it renders as its folder's template does."""
    try:
        return all(family.rendered(probe) == family.ids(probe) for probe in _PROBES)
    except InvalidRequest:
        return False


def check_name(name: str) -> None:
    """Raises ValueError that says which families there are."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise ValueError(f"renderer: {name!r} needs the package {PACKAGE}: install nemo-gym[renderers]")
    known = known_families()
    if name not in known:
        words = f"renderer: no family is named {name!r}; expected auto, template, or one of {', '.join(known)}"
        raise ValueError(words)


def _config(name: str) -> Any:
    from renderers import config_from_name

    config = config_from_name(name)
    assert config is not None
    # The reasoning of earlier turns is a part of their tokens, and they are kept.
    return (
        type(config)(**{"thinking_retention": "all"}) if "thinking_retention" in type(config).model_fields else config
    )


def known_families() -> list[str]:
    """By their names in the package."""
    from renderers import RendererConfig

    kinds, *_ = get_args(RendererConfig)
    names = (kind.model_fields["name"].default for kind in get_args(kinds))
    return sorted(name for name in names if name not in _NO_FAMILIES)


class _Adapter:
    """A tokenizer as the package wants it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.added
        self.name_or_path = ""
        self.unk_token_id = None
        self.eos_token_id = next(iter(tokenizer.end_ids), None)

    def encode(self, text: str, **_: Any) -> list[int]:
        return self._tokenizer.encode(text).tolist()

    def decode(self, token_ids: Any, **_: Any) -> str:
        return self._tokenizer.decode(token_ids)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        return self._added.get(tokens)


_TOOL = Tool("probe", "p", {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]})
_ASKED = Message("user", (Text("a"),))
_CALLED = Message("assistant", (Reasoning("b"), Text("c"), ToolCall("probe", '{"value": "d"}', "call_1")))
_TOLD = Message("tool", (ToolResult("call_1", (Text("e"),)),))
_PROBES = (
    ModelRequest((_ASKED,)),
    ModelRequest((Message("system", (Text("s"),)), _ASKED), tools=(_TOOL,)),
    ModelRequest((_ASKED, _CALLED, _TOLD), tools=(_TOOL,)),
    ModelRequest((_ASKED, Message("assistant", (Text("f"),)), _ASKED)),
)
