"""What one dialect says and the backend's cannot: refused by name, put into words, or left out with a warning.

Only for requests whose dialect is not the backend's; within one dialect everything goes through as it is.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..dialects.messages import tools as declared
from ..exchange.errors import InvalidRequest
from ..exchange.parts import Message, Part, Text, ToolResult
from ..exchange.request import ModelRequest, Sampling
from ..exchange.tools import Tool

ERROR_MARK = "[error]\n"
"""Before a result that is an error, for backends that have no flag for it."""
_SEARCH = "tool_search_tool"
_UNSAID: dict[str, tuple[str, ...]] = {
    "messages": ("min_p", "seed", "n", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs"),
    "responses": ("stop", "n", "logit_bias"),
}
"""Fields of Sampling that requests of these dialects cannot say."""
_NOTHING = Sampling()


def check_messages(request: ModelRequest, web_search: str) -> list[str]:
    """R8 for the tools that a provider of Messages runs. Raises InvalidRequest, or gives what is left out."""
    if request.sampling.max_tokens == 0:
        raise InvalidRequest(
            "max_tokens: 0 only fills a provider's cache, and this backend has none", param="max_tokens"
        )
    left_out = []
    for place, tool in enumerate(request.tools):
        if tool.kind != "provider" or declared.is_held_back(tool):
            continue
        kind = str((tool.body or {}).get("type"))
        if web_search == "refuse":
            claude_code = " (Claude Code: --disallowedTools WebSearch)" if kind.startswith("web_search") else ""
            raise InvalidRequest(
                f"tools[{place}]: {kind} is run by a provider, and this backend has none; leave it out in the client"
                f"{claude_code}, or set web_search: ignore on this server",
                param="tools",
            )
        left_out.append(f"the tool {kind} is left out: this backend has no provider that runs it")
    return left_out


def messages_tools(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Where the search that would load them is left out, all tools are there from the beginning."""
    searched = any(str((tool.body or {}).get("type")).startswith(_SEARCH) for tool in tools)
    return declared.loaded(tools) if searched else tools


def marked_errors(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Results that are errors say so in their text."""
    if True not in [part.is_error for message in messages for part in message.parts if type(part) is ToolResult]:
        return messages
    return tuple(
        replace(message, parts=tuple(_marked(part) for part in message.parts), origin=None)
        if any(_is_error(part) for part in message.parts)
        else message
        for message in messages
    )


def _is_error(part: Part) -> bool:
    return isinstance(part, ToolResult) and part.is_error


def _marked(part: Part) -> Part:
    if not isinstance(part, ToolResult) or not part.is_error:
        return part
    first, *rest = part.parts or (Text(""),)
    if isinstance(first, Text):
        return replace(part, parts=(replace(first, text=ERROR_MARK + first.text, origin=None), *rest), origin=None)
    return replace(part, parts=(Text(ERROR_MARK), first, *rest), origin=None)


def unsaid(request: ModelRequest, dialect: str) -> list[str]:
    """The fields of the request that the backend's dialect cannot say."""
    sampling = request.sampling
    return [name for name in _UNSAID.get(dialect, ()) if getattr(sampling, name) not in (None, getattr(_NOTHING, name))]
