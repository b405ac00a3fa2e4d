"""What a Chat Completions client may send. The 422 comes from here and nowhere else.

The root is a BaseModel, so that its errors are FastAPI's for a typed `Body()`; below it TypedDicts, which are several
times faster. What is not named here is let through unread: unknown fields never fail a request.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, FiniteFloat, TypeAdapter
from typing_extensions import TypedDict


class TextPart(TypedDict):
    type: Literal["text"]
    text: str


class RefusalPart(TypedDict):
    type: Literal["refusal"]
    refusal: str


class ImageUrl(TypedDict):
    url: str


class ImagePart(TypedDict):
    type: Literal["image_url"]
    image_url: ImageUrl


class InputAudio(TypedDict):
    data: str
    format: str


class AudioPart(TypedDict):
    type: Literal["input_audio"]
    input_audio: InputAudio


class FilePart(TypedDict):
    type: Literal["file"]
    file: dict[str, Any]


class VideoPart(TypedDict):
    type: Literal["video_url"]
    video_url: str | dict[str, Any]


class AudioUrlPart(TypedDict):
    type: Literal["audio_url"]
    audio_url: str | dict[str, Any]


Part: TypeAlias = Annotated[
    TextPart | RefusalPart | ImagePart | AudioPart | FilePart | VideoPart | AudioUrlPart, Discriminator("type")
]
Content: TypeAlias = str | list[Part]


class Function(TypedDict):
    name: str
    arguments: str


class FunctionCall(TypedDict):
    type: NotRequired[Literal["function"]]
    id: str
    function: Function


class CustomInput(TypedDict):
    name: str
    input: str


class CustomCall(TypedDict):
    type: Literal["custom"]
    id: str
    custom: CustomInput


class SystemMessage(TypedDict):
    role: Literal["system"]
    content: Content


class DeveloperMessage(TypedDict):
    role: Literal["developer"]
    content: Content


class UserMessage(TypedDict):
    role: Literal["user"]
    content: Content


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: NotRequired[Content | None]
    refusal: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    reasoning: NotRequired[str | None]
    tool_calls: NotRequired[list[FunctionCall | CustomCall] | None]


class ToolMessage(TypedDict):
    role: Literal["tool"]
    tool_call_id: str
    content: Content


Message: TypeAlias = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Discriminator("role")
]


class FunctionDefinition(TypedDict):
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]
    strict: NotRequired[bool | None]


class FunctionTool(TypedDict):
    type: Literal["function"]
    function: FunctionDefinition


class CustomDefinition(TypedDict):
    name: str
    description: NotRequired[str | None]
    format: NotRequired[dict[str, Any] | None]


class CustomTool(TypedDict):
    type: Literal["custom"]
    custom: CustomDefinition


Tool: TypeAlias = Annotated[FunctionTool | CustomTool, Discriminator("type")]


class Named(TypedDict):
    name: str


class NamedFunction(TypedDict):
    type: Literal["function"]
    function: Named


class NamedCustom(TypedDict):
    type: Literal["custom"]
    custom: Named


class Allowed(TypedDict):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class AllowedTools(TypedDict):
    type: Literal["allowed_tools"]
    allowed_tools: Allowed


ToolChoice: TypeAlias = (
    Literal["auto", "none", "required"] | Annotated[NamedFunction | NamedCustom | AllowedTools, Discriminator("type")]
)


class JsonSchema(TypedDict):
    name: str
    schema: NotRequired[dict[str, Any] | None]


class JsonSchemaFormat(TypedDict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class PlainFormat(TypedDict):
    type: Literal["text", "json_object"]


class StructuralTag(TypedDict):
    type: Literal["structural_tag"]


ResponseFormat: TypeAlias = Annotated[JsonSchemaFormat | PlainFormat | StructuralTag, Discriminator("type")]


class ChatRequest(BaseModel):
    """The body without `stream` and `stream_options`, which say how the reply is delivered."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    messages: list[Message]
    model: str | None = None
    frequency_penalty: FiniteFloat | None = None
    logit_bias: dict[str, FiniteFloat] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    min_p: FiniteFloat | None = None
    n: int | None = Field(default=None, ge=1)
    parallel_tool_calls: bool | None = None
    presence_penalty: FiniteFloat | None = None
    reasoning_effort: str | None = None
    response_format: ResponseFormat | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    temperature: FiniteFloat | None = None
    tool_choice: ToolChoice | None = None
    tools: list[Tool] | None = None
    top_k: int | None = None
    top_logprobs: int | None = Field(default=None, ge=0)
    top_p: FiniteFloat | None = None


class StreamOptions(TypedDict):
    include_usage: NotRequired[bool | None]


REQUEST: TypeAdapter[ChatRequest] = TypeAdapter(ChatRequest)
STREAM_OPTIONS: TypeAdapter[StreamOptions | None] = TypeAdapter(StreamOptions | None)

DELIVERY = frozenset({"stream", "stream_options"})
FIELDS = DELIVERY | frozenset(ChatRequest.model_fields)
"""The fields with a meaning of ours; all others pass unread."""
