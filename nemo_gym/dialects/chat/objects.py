"""The Chat Completions objects that environments handle: the SDK's models under NeMo Gym's names.

The SDK's request types hold `Iterable`s, which pydantic leaves unread; here they are lists, so everything is checked.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required, TypeAlias

from openai.types import chat as sdk
from openai.types.chat import completion_create_params as params
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_assistant_message_param import ContentArrayOfContentPart
from openai.types.chat.chat_completion_content_part_param import File
from openai.types.chat.chat_completion_custom_tool_param import ChatCompletionCustomToolParam
from openai.types.chat.chat_completion_message_custom_tool_call import ChatCompletionMessageCustomToolCall
from openai.types.chat.chat_completion_message_custom_tool_call_param import ChatCompletionMessageCustomToolCallParam
from openai.types.chat.chat_completion_message_function_tool_call import ChatCompletionMessageFunctionToolCall, Function
from openai.types.chat.chat_completion_message_function_tool_call_param import (
    ChatCompletionMessageFunctionToolCallParam,
)
from openai.types.chat.chat_completion_message_function_tool_call_param import (
    Function as FunctionParam,
)
from openai.types.shared_params import FunctionDefinition
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from ..training import TokenIDLogProbMixin, TokenIDLogProbTypedDictMixin, check_token_metadata

# ---- replies


class NeMoGymFunction(Function):
    pass


class NeMoGymChatCompletionMessageToolCall(ChatCompletionMessageFunctionToolCall):
    function: NeMoGymFunction


class NeMoGymChatCompletionMessageCustomToolCall(ChatCompletionMessageCustomToolCall):
    pass


NeMoGymChatCompletionMessageToolCallUnion: TypeAlias = Annotated[
    NeMoGymChatCompletionMessageToolCall | NeMoGymChatCompletionMessageCustomToolCall, Field(discriminator="type")
]


class NeMoGymChatCompletionMessage(sdk.ChatCompletionMessage):
    tool_calls: list[NeMoGymChatCompletionMessageToolCallUnion] | None = None  # type: ignore[assignment]


class NeMoGymChatCompletionMessageForTraining(NeMoGymChatCompletionMessage, TokenIDLogProbMixin):
    pass


class NeMoGymChoice(Choice):
    message: Annotated[
        NeMoGymChatCompletionMessage | NeMoGymChatCompletionMessageForTraining, BeforeValidator(check_token_metadata)
    ]


class NeMoGymChatCompletion(sdk.ChatCompletion):
    choices: list[NeMoGymChoice]  # type: ignore[assignment]


# ---- requests


class NeMoGymFunctionDefinition(FunctionDefinition):
    pass


class NeMoGymChatCompletionToolParam(TypedDict, total=False):
    type: Required[Literal["function"]]
    function: Required[NeMoGymFunctionDefinition]


class NeMoGymChatCompletionCustomToolParam(ChatCompletionCustomToolParam):
    pass


NeMoGymChatCompletionToolUnionParam: TypeAlias = Annotated[
    NeMoGymChatCompletionToolParam | NeMoGymChatCompletionCustomToolParam, Field(discriminator="type")
]


class NeMoGymChatCompletionContentPartTextParam(sdk.ChatCompletionContentPartTextParam):
    pass


class NeMoGymChatCompletionContentPartImageParam(sdk.ChatCompletionContentPartImageParam):
    pass


class NeMoGymInputAudio(TypedDict):
    """`format` is open: self-hosted models take more than the provider's two."""

    data: str
    format: str


class NeMoGymChatCompletionContentPartInputAudioParam(TypedDict):
    type: Literal["input_audio"]
    input_audio: NeMoGymInputAudio


class NeMoGymChatCompletionContentPartFileParam(File):
    pass


class NeMoGymChatCompletionContentPartVideoUrlParam(TypedDict):
    type: Literal["video_url"]
    video_url: str | dict[str, Any]


NeMoGymChatCompletionContentPartParam: TypeAlias = (
    NeMoGymChatCompletionContentPartTextParam
    | NeMoGymChatCompletionContentPartImageParam
    | NeMoGymChatCompletionContentPartInputAudioParam
    | NeMoGymChatCompletionContentPartFileParam
    | NeMoGymChatCompletionContentPartVideoUrlParam
)


class NeMoGymChatCompletionUserMessageParam(TypedDict, total=False):
    role: Required[Literal["user"]]
    content: Required[str | list[NeMoGymChatCompletionContentPartParam]]
    name: str


class NeMoGymChatCompletionSystemMessageParam(TypedDict, total=False):
    role: Required[Literal["system"]]
    content: Required[str | list[NeMoGymChatCompletionContentPartTextParam]]
    name: str


class NeMoGymChatCompletionDeveloperMessageParam(TypedDict, total=False):
    role: Required[Literal["developer"]]
    content: Required[str | list[NeMoGymChatCompletionContentPartTextParam]]
    name: str


class NeMoGymChatCompletionToolMessageParam(TypedDict, total=False):
    role: Required[Literal["tool"]]
    content: Required[str | list[NeMoGymChatCompletionContentPartTextParam]]
    tool_call_id: Required[str]


class NeMoGymChatCompletionMessageToolCallFunctionParam(FunctionParam):
    pass


class NeMoGymChatCompletionMessageToolCallParam(ChatCompletionMessageFunctionToolCallParam):
    pass


class NeMoGymChatCompletionMessageCustomToolCallParam(ChatCompletionMessageCustomToolCallParam):
    pass


NeMoGymChatCompletionMessageToolCallUnionParam: TypeAlias = Annotated[
    NeMoGymChatCompletionMessageToolCallParam | NeMoGymChatCompletionMessageCustomToolCallParam,
    Field(discriminator="type"),
]


def _without_outer_names(calls: Any) -> Any:
    """Some harnesses repeat a call's name beside its `function`; that one is dropped."""
    if not isinstance(calls, list):
        return calls
    return [
        {key: value for key, value in call.items() if key != "name"} if isinstance(call, dict) else call
        for call in calls
    ]


class NeMoGymChatCompletionAssistantMessageParam(TypedDict, total=False):
    role: Required[Literal["assistant"]]
    content: str | list[ContentArrayOfContentPart] | None
    name: str
    refusal: str | None
    audio: dict[str, Any] | None
    function_call: dict[str, Any] | None
    reasoning_content: str | None
    tool_calls: (
        Annotated[list[NeMoGymChatCompletionMessageToolCallUnionParam], BeforeValidator(_without_outer_names)] | None
    )


class NeMoGymChatCompletionAssistantMessageForTrainingParam(
    NeMoGymChatCompletionAssistantMessageParam, TokenIDLogProbTypedDictMixin
):
    pass


NeMoGymChatCompletionMessageParam: TypeAlias = Annotated[
    NeMoGymChatCompletionDeveloperMessageParam
    | NeMoGymChatCompletionSystemMessageParam
    | NeMoGymChatCompletionUserMessageParam
    | NeMoGymChatCompletionAssistantMessageParam
    | NeMoGymChatCompletionToolMessageParam
    | NeMoGymChatCompletionAssistantMessageForTrainingParam,
    BeforeValidator(check_token_metadata),
]

CHAT_REQUEST_PROVIDER_EXTENSION_FIELDS = frozenset({"chat_template_kwargs", "thinking", "output_config"})
"""Fields beyond the SDK's own that servers behind the API are known to take."""


class NeMoGymChatCompletionCreateParamsNonStreaming(BaseModel):
    """A Chat Completions request, checked: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")

    messages: list[NeMoGymChatCompletionMessageParam]
    model: str | None = None
    audio: params.ChatCompletionAudioParam | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, int] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    metadata: params.Metadata | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    moderation: dict[str, Any] | None = None
    n: int | None = None
    output_config: dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    prediction: params.ChatCompletionPredictionContentParam | None = None
    presence_penalty: float | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    reasoning_effort: params.ReasoningEffort | None = None
    response_format: params.ResponseFormat | None = None
    safety_identifier: str | None = None
    seed: int | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    stop: str | list[str] | None = None
    store: bool | None = None
    stream: Literal[False] | None = None
    stream_options: params.ChatCompletionStreamOptionsParam | None = None
    temperature: float | None = None
    thinking: dict[str, Any] | None = None
    tool_choice: params.ChatCompletionToolChoiceOptionParam | None = None
    tools: list[NeMoGymChatCompletionToolUnionParam] | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    user: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    web_search_options: params.WebSearchOptions | None = None
