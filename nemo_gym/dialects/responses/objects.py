"""The Responses objects that agents and environments handle: the SDK's models under NeMo Gym's names.

Requests are closed (an unknown field is an error); items and replies are read by their `type`, so one wrong field
gives one error and never an item of another kind. Items that carry token columns become their `ForTraining` class.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Required, TypeAlias, get_args

from openai.types import responses as sdk
from openai.types.responses import response_create_params as params
from openai.types.responses import response_input_item as inputs
from openai.types.responses import response_output_item as outputs
from openai.types.responses.response_conversation_param_param import ResponseConversationParamParam
from openai.types.responses.response_function_call_output_item_list_param import (
    ResponseFunctionCallOutputItemListParam,
)
from openai.types.responses.response_input_content_param import ResponseInputContentParam
from openai.types.responses.response_output_text_param import Annotation, Logprob
from openai.types.responses.response_reasoning_item import Content as ReasoningContent
from openai.types.responses.response_reasoning_item import Summary
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails, ResponseUsage
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_serializer,
    model_validator,
)
from pydantic.functional_serializers import SerializerFunctionWrapHandler
from typing_extensions import TypedDict

from ..training import REQUIRED_TOKEN_METADATA_FIELDS, TokenIDLogProbMixin, check_token_metadata

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]
Phase: TypeAlias = Literal["commentary", "final_answer"]


class NeMoGymSummary(Summary):
    pass


class NeMoGymResponseReasoningItem(BaseModel):
    """Without `status`: providers send null for it and refuse it when it is sent back."""

    id: str
    summary: list[NeMoGymSummary]
    type: Literal["reasoning"] = "reasoning"
    encrypted_content: str | None = None
    content: list[ReasoningContent] | None = None


class NeMoGymResponseOutputText(BaseModel):
    annotations: list[Annotation]
    text: str
    type: Literal["output_text"] = "output_text"
    logprobs: list[Logprob] | None = None


class NeMoGymResponseOutputRefusal(BaseModel):
    refusal: str
    type: Literal["refusal"] = "refusal"


NeMoGymContent: TypeAlias = NeMoGymResponseOutputText | NeMoGymResponseOutputRefusal


class NeMoGymResponseOutputMessage(BaseModel):
    id: str
    content: list[NeMoGymContent]
    role: Literal["assistant"] = "assistant"
    status: Status = "completed"
    type: Literal["message"] = "message"
    phase: Phase | None = None


class NeMoGymResponseInputText(sdk.ResponseInputTextParam):
    pass


class NeMoGymInputVideoPart(TypedDict, total=False):
    type: Required[Literal["input_video"]]
    video_url: str | dict[str, Any]
    video: str | dict[str, Any]


NeMoGymResponseInputContentPart: TypeAlias = ResponseInputContentParam | NeMoGymInputVideoPart
NeMoGymResponseInputContentList: TypeAlias = list[NeMoGymResponseInputContentPart]


class NeMoGymEasyInputMessage(BaseModel):
    content: str | NeMoGymResponseInputContentList
    role: Literal["user", "assistant", "system", "developer"]
    type: Literal["message"] = "message"
    phase: Phase | None = None


class NeMoGymMessage(BaseModel):
    content: NeMoGymResponseInputContentList
    role: Literal["user", "system", "developer"]
    status: Status = "completed"
    type: Literal["message"] = "message"


class NeMoGymFunctionCallOutput(BaseModel):
    call_id: str
    output: str | ResponseFunctionCallOutputItemListParam
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: Status | None = None


class NeMoGymResponseFunctionToolCall(BaseModel):
    arguments: str
    call_id: str
    name: str
    type: Literal["function_call"] = "function_call"
    id: str | None = None
    status: Status | None = None
    namespace: str | None = None


class NeMoGymResponseCustomToolCall(sdk.ResponseCustomToolCall):
    pass


class NeMoGymResponseCustomToolCallOutput(sdk.ResponseCustomToolCallOutput):
    pass


class NeMoGymResponseMcpCall(outputs.McpCall):
    """An MCP call that the provider ran itself; some providers leave out what the SDK's model requires."""

    type: Literal["mcp_call"] = "mcp_call"
    id: str | None = None  # type: ignore[assignment]
    server_label: str | None = None  # type: ignore[assignment]
    status: str | None = None  # type: ignore[assignment]


class NeMoGymResponseFunctionCallOutput(sdk.ResponseFunctionToolCallOutputItem):
    """A function's result in a provider's output."""


class NeMoGymEasyInputMessageForTraining(NeMoGymEasyInputMessage, TokenIDLogProbMixin):
    pass


class NeMoGymMessageForTraining(NeMoGymMessage, TokenIDLogProbMixin):
    pass


class NeMoGymResponseOutputMessageForTraining(NeMoGymResponseOutputMessage, TokenIDLogProbMixin):
    pass


class NeMoGymResponseFunctionToolCallForTraining(NeMoGymResponseFunctionToolCall, TokenIDLogProbMixin):
    pass


class NeMoGymResponseReasoningItemForTraining(NeMoGymResponseReasoningItem, TokenIDLogProbMixin):
    pass


RESPONSES_TO_TRAIN: dict[type[BaseModel], type[BaseModel]] = {
    NeMoGymEasyInputMessage: NeMoGymEasyInputMessageForTraining,
    NeMoGymMessage: NeMoGymMessageForTraining,
    NeMoGymResponseOutputMessage: NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseFunctionToolCall: NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseReasoningItem: NeMoGymResponseReasoningItemForTraining,
}


def training_variant_of(item_class: type) -> type:
    """The class that holds the item's token columns; NotImplementedError where there is none."""
    try:
        return RESPONSES_TO_TRAIN[item_class]
    except KeyError:
        raise NotImplementedError(f"{item_class.__name__} has no variant with token columns") from None


# ---- which class an item is of

_TRAINED = "__training"
_TRAINABLE = frozenset({"easy_message", "input_message", "output_message", "function_call", "reasoning"})
_STATUSES = frozenset(get_args(Status))


def _message_tag(item: dict[str, Any]) -> str:
    content = item.get("content")
    if not isinstance(content, list):
        return "easy_message"
    if item.get("role", "assistant") != "assistant":
        return "input_message" if item.get("status") in _STATUSES else "easy_message"
    if not content:
        return "output_message" if isinstance(item.get("id"), str) else "easy_message"
    first = content[0]
    kind = first.get("type") if isinstance(first, dict) else getattr(first, "type", None)
    return "output_message" if kind in ("output_text", "refusal") else "easy_message"


def _untyped_tag(item: dict[str, Any]) -> str | None:
    if "role" in item:
        return _message_tag(item)
    if "arguments" in item and "name" in item:
        return "function_call"
    if "call_id" in item and "output" in item:
        return "function_call_output"
    if isinstance(item.get("summary"), list):
        return "reasoning"
    if isinstance(item.get("id"), str) and isinstance(item.get("content"), list):
        return "output_message"
    return None


def _instance_tag(item: Any) -> str | None:
    for base in type(item).__mro__:
        if base in _TAGS:
            return _TAGS[base]
    kind = getattr(item, "type", None)
    return kind if isinstance(kind, str) else None


def _input_tag(item: Any) -> str | None:
    if not isinstance(item, dict):
        return _instance_tag(item)
    kind = item.get("type")
    tag = _message_tag(item) if kind == "message" else _untyped_tag(item) if kind is None else kind
    if tag in _TRAINABLE and REQUIRED_TOKEN_METADATA_FIELDS.issubset(item):
        return tag + _TRAINED
    return tag if isinstance(tag, str) else None


def _output_tag(item: Any) -> str | None:
    if isinstance(item, dict):
        if item.get("type") is None:
            return None  # an output item always says what it is
        if item["type"] == "function_call_output" and isinstance(item.get("id"), str) and item.get("status"):
            return "function_call_output_item"
    return _input_tag(item)


_TAGS: dict[type, str] = {
    NeMoGymEasyInputMessageForTraining: "easy_message" + _TRAINED,
    NeMoGymMessageForTraining: "input_message" + _TRAINED,
    NeMoGymResponseOutputMessageForTraining: "output_message" + _TRAINED,
    NeMoGymResponseFunctionToolCallForTraining: "function_call" + _TRAINED,
    NeMoGymResponseReasoningItemForTraining: "reasoning" + _TRAINED,
    NeMoGymEasyInputMessage: "easy_message",
    NeMoGymMessage: "input_message",
    NeMoGymResponseOutputMessage: "output_message",
    NeMoGymResponseFunctionCallOutput: "function_call_output_item",
    NeMoGymFunctionCallOutput: "function_call_output",
    NeMoGymResponseFunctionToolCall: "function_call",
    NeMoGymResponseReasoningItem: "reasoning",
}

# The members that the two directions share; what agents replay as input was output before.
_Ours: TypeAlias = (
    Annotated[NeMoGymEasyInputMessage, Tag("easy_message")]
    | Annotated[NeMoGymMessage, Tag("input_message")]
    | Annotated[NeMoGymResponseOutputMessage, Tag("output_message")]
    | Annotated[NeMoGymResponseFunctionToolCall, Tag("function_call")]
    | Annotated[NeMoGymFunctionCallOutput, Tag("function_call_output")]
    | Annotated[NeMoGymResponseReasoningItem, Tag("reasoning")]
    | Annotated[NeMoGymEasyInputMessageForTraining, Tag("easy_message__training")]
    | Annotated[NeMoGymMessageForTraining, Tag("input_message__training")]
    | Annotated[NeMoGymResponseOutputMessageForTraining, Tag("output_message__training")]
    | Annotated[NeMoGymResponseFunctionToolCallForTraining, Tag("function_call__training")]
    | Annotated[NeMoGymResponseReasoningItemForTraining, Tag("reasoning__training")]
)
_Hosted: TypeAlias = (
    Annotated[NeMoGymResponseMcpCall, Tag("mcp_call")]
    | Annotated[outputs.McpListTools, Tag("mcp_list_tools")]
    | Annotated[outputs.McpApprovalRequest, Tag("mcp_approval_request")]
    | Annotated[sdk.ResponseFileSearchToolCall, Tag("file_search_call")]
    | Annotated[sdk.ResponseFunctionWebSearch, Tag("web_search_call")]
    | Annotated[sdk.ResponseComputerToolCall, Tag("computer_call")]
    | Annotated[outputs.ImageGenerationCall, Tag("image_generation_call")]
    | Annotated[sdk.ResponseCodeInterpreterToolCall, Tag("code_interpreter_call")]
    | Annotated[outputs.LocalShellCall, Tag("local_shell_call")]
    | Annotated[NeMoGymResponseCustomToolCall, Tag("custom_tool_call")]
    | Annotated[sdk.ResponseApplyPatchToolCall, Tag("apply_patch_call")]
    | Annotated[sdk.ResponseApplyPatchToolCallOutput, Tag("apply_patch_call_output")]
    | Annotated[sdk.ResponseCompactionItem, Tag("compaction")]
    | Annotated[sdk.ResponseFunctionShellToolCall, Tag("shell_call")]
    | Annotated[sdk.ResponseFunctionShellToolCallOutput, Tag("shell_call_output")]
    | Annotated[sdk.ResponseToolSearchCall, Tag("tool_search_call")]
    | Annotated[sdk.ResponseToolSearchOutputItem, Tag("tool_search_output")]
)

NeMoGymResponseInputItem: TypeAlias = Annotated[
    _Ours
    | _Hosted
    | Annotated[NeMoGymResponseCustomToolCallOutput, Tag("custom_tool_call_output")]
    | Annotated[inputs.ComputerCallOutput, Tag("computer_call_output")]
    | Annotated[inputs.LocalShellCallOutput, Tag("local_shell_call_output")]
    | Annotated[inputs.McpApprovalResponse, Tag("mcp_approval_response")]
    | Annotated[inputs.CompactionTrigger, Tag("compaction_trigger")]
    | Annotated[inputs.AdditionalTools, Tag("additional_tools")],
    Discriminator(_input_tag),
    BeforeValidator(check_token_metadata),
]
NeMoGymResponseInput: TypeAlias = list[NeMoGymResponseInputItem]

NeMoGymResponseOutputItem: TypeAlias = Annotated[
    _Ours
    | _Hosted
    | Annotated[NeMoGymResponseFunctionCallOutput, Tag("function_call_output_item")]
    | Annotated[sdk.ResponseCustomToolCallOutputItem, Tag("custom_tool_call_output")]
    | Annotated[sdk.ResponseComputerToolCallOutputItem, Tag("computer_call_output")]
    | Annotated[outputs.LocalShellCallOutput, Tag("local_shell_call_output")]
    | Annotated[outputs.McpApprovalResponse, Tag("mcp_approval_response")]
    | Annotated[outputs.AdditionalTools, Tag("additional_tools")],
    Discriminator(_output_tag),
    BeforeValidator(check_token_metadata),
]


# ---- requests


def _replayed(item: Any) -> Any:
    """An output item as input: the few fields that differ between the two."""
    if isinstance(item, BaseModel):
        if any(base in _TAGS for base in type(item).__mro__):
            return item
        item = item.model_dump(exclude_unset=True) | {"type": getattr(item, "type", None)}
    if not isinstance(item, dict):
        return item
    if item.get("type") == "additional_tools" and item.get("role") != "developer":
        return item | {"role": "developer"}
    if item.get("type") == "computer_call_output" and item.get("status") == "failed":
        return {key: value for key, value in item.items() if key != "status"}
    return item


def _replayed_tool(tool: Any) -> Any:
    if isinstance(tool, BaseModel):
        tool = tool.model_dump()
    if isinstance(tool, dict) and "defer_loading" in tool and tool["defer_loading"] is None:
        return tool | {"defer_loading": False}
    return tool


class NeMoGymResponseCreateParamsNonStreaming(BaseModel):
    """A Responses request, checked: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")

    background: bool | None = None
    context_management: list[params.ContextManagement] | None = None
    conversation: str | ResponseConversationParamParam | None = None
    include: list[params.ResponseIncludable] | None = None
    input: str | NeMoGymResponseInput
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: params.Metadata | None = None
    model: params.ResponsesModel | None = None
    moderation: params.Moderation | None = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt: params.ResponsePromptParam | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    reasoning: params.Reasoning | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    store: bool | None = None
    stream: Literal[False] | None = None
    stream_options: params.StreamOptions | None = None
    temperature: float | None = None
    text: params.ResponseTextConfigParam | None = None
    tool_choice: params.ToolChoice = "auto"
    tools: list[params.ToolParam] = Field(default_factory=list)
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_replayed(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if isinstance(value.get("input"), list):
            value["input"] = [_replayed(item) for item in value["input"]]
        if isinstance(value.get("tools"), list):
            value["tools"] = [_replayed_tool(tool) for tool in value["tools"]]
        return value


# ---- replies


class NeMoGymResponseInputTokensDetails(InputTokensDetails):
    cached_tokens: int | None  # type: ignore[assignment]
    cache_write_tokens: int | None = None  # type: ignore[assignment]

    @model_serializer(mode="wrap")
    def _without_what_nobody_said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Rows do not grow by what later SDKs know of."""
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if value is not None or name == "cached_tokens"}


class NeMoGymResponseOutputTokensDetails(OutputTokensDetails):
    reasoning_tokens: int | None  # type: ignore[assignment]


class NeMoGymResponseUsage(ResponseUsage):
    input_tokens_details: NeMoGymResponseInputTokensDetails
    output_tokens_details: NeMoGymResponseOutputTokensDetails

    @classmethod
    def sum_from_list(cls, usages: Iterable[NeMoGymResponseUsage]) -> NeMoGymResponseUsage:
        total = cls(
            input_tokens=0,
            input_tokens_details=NeMoGymResponseInputTokensDetails(cached_tokens=0),
            output_tokens=0,
            output_tokens_details=NeMoGymResponseOutputTokensDetails(reasoning_tokens=0),
            total_tokens=0,
        )
        for usage in usages:
            total = accumulate_response_usage(total, usage) or total
        return total


def _sum(first: int | None, second: int | None) -> int | None:
    """A sum with an unknown is unknown."""
    return None if first is None or second is None else first + second


def accumulate_response_usage(
    total: NeMoGymResponseUsage | None, additional: NeMoGymResponseUsage | None
) -> NeMoGymResponseUsage | None:
    if additional is None:
        return total
    if total is None:
        return additional.model_copy(deep=True)
    result = total.model_copy(deep=True)
    result.input_tokens += additional.input_tokens
    result.output_tokens += additional.output_tokens
    result.total_tokens += additional.total_tokens
    read, more_read = result.input_tokens_details, additional.input_tokens_details
    read.cached_tokens = _sum(read.cached_tokens, more_read.cached_tokens)
    written, more_written = result.output_tokens_details, additional.output_tokens_details
    written.reasoning_tokens = _sum(written.reasoning_tokens, more_written.reasoning_tokens)
    return result


_WIRE_NAMES = {"async_": "async", "schema_": "schema"}
"""Fields of the SDK's models whose names are not the wire's: `model_dump()` writes them as Python has them."""


def _wire_named(value: Any) -> Any:
    if not isinstance(value, dict) or not value.keys() & _WIRE_NAMES.keys():
        return value
    return {_WIRE_NAMES.get(name, name): one for name, one in value.items()}


class NeMoGymResponse(sdk.Response):
    model_config = ConfigDict(defer_build=False)
    output: list[NeMoGymResponseOutputItem]  # type: ignore[assignment]
    usage: NeMoGymResponseUsage | None = None

    @model_validator(mode="before")
    @classmethod
    def _dumped_by_name(cls, data: Any) -> Any:
        """What `model_dump()` made is read as what it was: verifiers answer with `**body.model_dump()`."""
        if not isinstance(data, dict):
            return data
        told: dict[str, Any] = {}
        if isinstance(tools := data.get("tools"), list):
            told["tools"] = [_wire_named(tool) for tool in tools]
        if isinstance(text := data.get("text"), dict) and "format" in text:
            told["text"] = {**text, "format": _wire_named(text["format"])}
        return {**data, **told}
