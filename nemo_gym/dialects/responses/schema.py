"""What a Responses client may send. Items of a type that is not named here pass; what they mean is decided in `items`.

An item's shape is checked by its `type` (an item with a `role` and no `type` is a message), so that an error names the
field of that item and nothing else. The tags in angle brackets name branches and are left out of what a client is told.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, FiniteFloat, Tag, TypeAdapter
from typing_extensions import TypedDict


class TextPart(TypedDict):
    type: str
    text: str


class RefusalPart(TypedDict):
    type: str
    refusal: str


class OtherPart(TypedDict):
    type: str


_TEXT_TYPES = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


def _type_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None


def _part_tag(part: Any) -> str:
    kind = _type_of(part)
    return "<text>" if kind in _TEXT_TYPES else "<refusal>" if kind == "refusal" else "<part>"


Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[RefusalPart, Tag("<refusal>")] | Annotated[OtherPart, Tag("<part>")],
    Discriminator(_part_tag),
]


def _text_tag(value: Any) -> str:
    return "<string>" if isinstance(value, str) else "<list>"


Content: TypeAlias = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[Part], Tag("<list>")], Discriminator(_text_tag)
]


NonEmpty: TypeAlias = Annotated[
    Annotated[str, Field(min_length=1), Tag("<string>")] | Annotated[list[Part], Field(min_length=1), Tag("<list>")],
    Discriminator(_text_tag),
]


class MessageItem(TypedDict):
    role: Literal["user", "assistant", "system", "developer"]
    content: NonEmpty


class FunctionCall(TypedDict):
    call_id: str
    name: str
    arguments: str


class CallOutput(TypedDict):
    call_id: str
    output: Content


class CustomCall(TypedDict):
    call_id: str
    name: str
    input: str


class ReasoningItem(TypedDict):
    summary: NotRequired[list[Part] | None]
    content: NotRequired[list[Part] | None]
    encrypted_content: NotRequired[str | None]


class OtherItem(TypedDict):
    type: str


class FunctionTool(TypedDict):
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]


class CustomTool(TypedDict):
    name: str
    description: NotRequired[str | None]
    format: NotRequired[dict[str, Any] | None]


class OtherTool(TypedDict):
    type: str


def _tool_tag(tool: Any) -> str:
    kind = _type_of(tool)
    return f"<{kind}>" if kind in ("function", "custom", "namespace") else "<tool>"


_FlatTool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("<function>")]
    | Annotated[CustomTool, Tag("<custom>")]
    | Annotated[OtherTool, Tag("<tool>")]
    | Annotated[OtherTool, Tag("<namespace>")],
    Discriminator(_tool_tag),
]


class NamespaceTool(TypedDict):
    name: str
    tools: list[_FlatTool]


Tool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("<function>")]
    | Annotated[CustomTool, Tag("<custom>")]
    | Annotated[NamespaceTool, Tag("<namespace>")]
    | Annotated[OtherTool, Tag("<tool>")],
    Discriminator(_tool_tag),
]


class AdditionalTools(TypedDict):
    tools: list[Tool]


class FoundTools(TypedDict):
    tools: NotRequired[list[Tool] | None]


_ITEM_TYPES = frozenset(
    {
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
        "additional_tools",
        "tool_search_output",
    }
)


def item_type(item: Any) -> str:
    """R1: an item with a role and no type is a message."""
    kind = _type_of(item)
    if isinstance(item, dict) and item.get("type") is None and "role" in item:
        return "<message>"
    return f"<{kind}>" if kind in _ITEM_TYPES else "<item>"


Item: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCall, Tag("<function_call>")]
    | Annotated[CallOutput, Tag("<function_call_output>")]
    | Annotated[CustomCall, Tag("<custom_tool_call>")]
    | Annotated[CallOutput, Tag("<custom_tool_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[AdditionalTools, Tag("<additional_tools>")]
    | Annotated[FoundTools, Tag("<tool_search_output>")]
    | Annotated[OtherItem, Tag("<item>")],
    Discriminator(item_type),
]


Input: TypeAlias = Annotated[
    Annotated[str, Field(min_length=1), Tag("<string>")] | Annotated[list[Item], Tag("<list>")],
    Discriminator(_text_tag),
]


class NamedChoice(TypedDict):
    type: str
    name: NotRequired[str]
    mode: NotRequired[Literal["auto", "required"]]


class Format(TypedDict):
    type: Literal["text", "json_object", "json_schema"]
    name: NotRequired[str | None]
    schema: NotRequired[dict[str, Any] | None]


class TextConfig(TypedDict):
    format: NotRequired[Format | None]
    verbosity: NotRequired[str | None]


class Reasoning(TypedDict):
    effort: NotRequired[str | None]
    summary: NotRequired[str | None]


class ResponsesRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    input: Input | None = None
    instructions: str | None = None
    include: list[str] | None = None
    frequency_penalty: FiniteFloat | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    max_tool_calls: int | None = None
    metadata: dict[str, Any] | None = None
    min_p: FiniteFloat | None = None
    model: str | None = None
    parallel_tool_calls: bool | None = None
    presence_penalty: FiniteFloat | None = None
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    seed: int | None = None
    store: bool | None = None
    temperature: FiniteFloat | None = None
    text: TextConfig | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    tools: list[Tool] | None = None
    top_k: int | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    top_p: FiniteFloat | None = None


REQUEST: TypeAdapter[ResponsesRequest] = TypeAdapter(ResponsesRequest)

DELIVERY = frozenset({"stream", "stream_options", "background", "store"})
FIELDS = DELIVERY | frozenset(ResponsesRequest.model_fields)
"""The fields with a meaning of ours; all others pass unread."""
