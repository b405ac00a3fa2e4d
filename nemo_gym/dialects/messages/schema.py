"""What a Messages client may send. Blocks and tools of a type that is not named here pass unread.

A block's shape is checked by its `type`, so that an error names the field of that block and nothing else. The tags in
angle brackets name branches and are left out of what a client is told.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, FiniteFloat, Tag, TypeAdapter
from typing_extensions import TypedDict


def _type_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None


def _text_tag(value: Any) -> str:
    return "<string>" if isinstance(value, str) else "<list>"


class Other(TypedDict):
    type: str


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class Base64Source(TypedDict):
    media_type: str
    data: str


class UrlSource(TypedDict):
    url: str


class TextSource(TypedDict):
    data: str


class ContentSource(TypedDict):
    content: Content


_SOURCES = {"base64": "<base64>", "url": "<url>", "text": "<text>", "content": "<content>"}


def _source_tag(source: Any) -> str:
    return _SOURCES.get(_type_of(source) or "", "<source>")


Source: TypeAlias = Annotated[
    Annotated[Base64Source, Tag("<base64>")]
    | Annotated[UrlSource, Tag("<url>")]
    | Annotated[TextSource, Tag("<text>")]
    | Annotated["ContentSource", Tag("<content>")]
    | Annotated[Other, Tag("<source>")],
    Discriminator(_source_tag),
]


class ImageBlock(TypedDict):
    source: Source


class DocumentBlock(TypedDict):
    source: Source
    title: NotRequired[str | None]
    context: NotRequired[str | None]


class SearchResult(TypedDict):
    title: str
    source: str
    content: list[TextBlock]


class ToolUse(TypedDict):
    id: Annotated[str, Field(min_length=1)]
    name: str
    input: dict[str, Any]


class ToolResult(TypedDict):
    tool_use_id: str
    content: NotRequired[Content | None]
    is_error: NotRequired[bool | None]


class ToolReference(TypedDict):
    tool_name: str


class Thinking(TypedDict):
    thinking: str
    signature: NotRequired[str | None]


class RedactedThinking(TypedDict):
    data: str


_BLOCKS = frozenset(
    {
        "text",
        "image",
        "document",
        "search_result",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
    }
)


def _block_tag(block: Any) -> str:
    kind = _type_of(block)
    return f"<{kind}>" if kind in _BLOCKS else "<block>"


Block: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[SearchResult, Tag("<search_result>")]
    | Annotated[ToolUse, Tag("<tool_use>")]
    | Annotated["ToolResult", Tag("<tool_result>")]
    | Annotated[ToolReference, Tag("<tool_reference>")]
    | Annotated[Thinking, Tag("<thinking>")]
    | Annotated[RedactedThinking, Tag("<redacted_thinking>")]
    | Annotated[Other, Tag("<block>")],
    Discriminator(_block_tag),
]
Content: TypeAlias = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[Block], Tag("<list>")], Discriminator(_text_tag)
]
System: TypeAlias = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[TextBlock], Tag("<list>")], Discriminator(_text_tag)
]


class Message(TypedDict):
    role: Literal["user", "assistant", "system"]
    content: Content


class FunctionTool(TypedDict):
    name: Annotated[str, Field(min_length=1)]
    description: NotRequired[str | None]
    input_schema: dict[str, Any]
    defer_loading: NotRequired[bool | None]


class HostedTool(TypedDict):
    type: str
    name: NotRequired[str | None]
    defer_loading: NotRequired[bool | None]


def _tool_tag(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return "<function>" if kind is None or kind == "custom" else "<tool>"


Tool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("<function>")] | Annotated[HostedTool, Tag("<tool>")], Discriminator(_tool_tag)
]


class Choice(TypedDict):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: NotRequired[bool | None]


class NamedChoice(TypedDict):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: NotRequired[bool | None]


class ThinkingConfig(TypedDict):
    type: str
    budget_tokens: NotRequired[int | None]


class Format(TypedDict):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(TypedDict):
    effort: NotRequired[str | None]
    format: NotRequired[Format | None]


class CountRequest(BaseModel):
    """What `count_tokens` takes, and every request has."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    messages: Annotated[list[Message], Field(min_length=1)]
    model: str | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    system: System | None = None
    thinking: ThinkingConfig | None = None
    tool_choice: Annotated[Choice | NamedChoice, Discriminator("type")] | None = None
    tools: list[Tool] | None = None


class MessagesRequest(CountRequest):
    max_tokens: int = Field(ge=0)
    metadata: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    temperature: FiniteFloat | None = None
    top_k: int | None = None
    top_p: FiniteFloat | None = None


REQUEST: TypeAdapter[MessagesRequest] = TypeAdapter(MessagesRequest)
COUNT: TypeAdapter[CountRequest] = TypeAdapter(CountRequest)

FIELDS = frozenset({"stream", "cache_control"}) | frozenset(MessagesRequest.model_fields)
"""The fields with a meaning of ours; all others pass unread."""
