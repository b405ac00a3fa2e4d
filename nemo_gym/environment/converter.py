"""Chat Completions and Responses made of one another, by the dialects that the model server speaks.

For whoever keeps a conversation in one of them and has to tell it in the other: harnesses that log chat messages, data
preparation that wants to see a row as a chat backend gets it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter

from ..dialects import chat, responses
from ..dialects.chat.objects import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChoice,
)
from ..dialects.responses.objects import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputItem,
)
from ..dialects.training import TOKEN_METADATA_FIELDS

_THINK = re.compile(r"<think>(.*?)</think>", re.S)
_OUTPUT: TypeAdapter[Any] = TypeAdapter(NeMoGymResponseOutputItem)
_MADE_BY_MODEL = frozenset(
    f"{kind}_call"
    for kind in (
        *("function", "custom_tool", "mcp", "web_search", "file_search", "code_interpreter", "image_generation"),
        *("computer", "local_shell", "shell", "apply_patch", "tool_search"),
    )
) | {"reasoning", "mcp_list_tools", "mcp_approval_request"}


class ResponsesConverter:
    """Args:
    return_token_id_information: token columns of a chat message are put on the last item that is made of it.
    uses_reasoning_parser: what stands in `<think>` tags in a chat message is reasoning.
    """

    def __init__(self, return_token_id_information: bool = False, uses_reasoning_parser: bool = True) -> None:
        self.return_token_id_information = return_token_id_information
        self.uses_reasoning_parser = uses_reasoning_parser

    # ---- requests; each raises InvalidRequest that names what is no request

    def responses_to_chat_completion_create_params(
        self, responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        asked = responses.read_request(_said(responses_create_params))
        return NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(chat.write_request(asked))

    def chat_completion_to_responses_create_params(
        self, chat_completion_create_params: NeMoGymChatCompletionCreateParamsNonStreaming
    ) -> NeMoGymResponseCreateParamsNonStreaming:
        asked = chat.read_request(_said(chat_completion_create_params))
        return NeMoGymResponseCreateParamsNonStreaming.model_validate(responses.write_request(asked))

    # ---- replies and conversations

    def chat_completion_to_response(
        self,
        responses_create_params: NeMoGymResponseCreateParamsNonStreaming,
        chat_completion: NeMoGymChatCompletion,
        *,
        preserve_envelope_id: bool = False,
    ) -> NeMoGymResponse:
        """Args:
        preserve_envelope_id: the response has the completion's id, and none of its own.
        """
        reply = chat.read_reply(chat_completion.model_dump(mode="json", exclude_none=True))
        body = responses.write_reply(reply, responses.read_request(_said(responses_create_params)))
        body["output"] = self.postprocess_chat_response(chat_completion.choices[0])
        body["id"] = chat_completion.id if preserve_envelope_id else f"resp_{uuid4().hex}"
        return NeMoGymResponse.model_validate(body)

    def postprocess_chat_response(self, choice: NeMoGymChoice) -> list[NeMoGymResponseOutputItem]:
        return self.postprocess_assistant_message_dict(choice.message.model_dump(mode="json", exclude_none=True))

    def postprocess_assistant_message_dict(self, message_dict: Mapping[str, Any]) -> list[NeMoGymResponseOutputItem]:
        """The output items of one assistant message; one without anything is an empty message."""
        message = dict(message_dict)
        thoughts: list[str] = []
        if self.uses_reasoning_parser and isinstance(message.get("content"), str):
            thoughts = _THINK.findall(message["content"])
            message["content"] = _THINK.sub("", message["content"])
        reply = chat.read_reply(
            {
                "id": f"chatcmpl-{uuid4().hex}",
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            }
        )
        items = responses.write_reply(reply, responses.read_request({"input": "-"}))["output"]
        for item in items:
            for part in item.get("content") or () if item["type"] == "message" else ():
                if not part.get("logprobs", True):
                    del part["logprobs"]  # of nothing sampled
            own = f"{item['id'].partition('_')[0]}_{uuid4().hex}"
            item["id"] = item["call_id"] if item["type"] == "function_call" else own
        if thoughts:
            summary = [{"type": "summary_text", "text": thought} for thought in thoughts]
            items.insert(0, {"type": "reasoning", "id": f"rs_{uuid4().hex}", "summary": summary})
        if not items:
            content = [{"type": "output_text", "text": "", "annotations": []}]
            items = [{"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant", "content": content}]
            items[0]["status"] = "completed"
        if self.return_token_id_information:
            items[-1] |= {name: message[name] for name in TOKEN_METADATA_FIELDS if message.get(name) is not None}
        return [_OUTPUT.validate_python(item) for item in items]

    def chat_completions_messages_to_responses_items(
        self, messages: Iterable[Mapping[str, Any]]
    ) -> list[NeMoGymResponseInputItem]:
        """A logged conversation. Raises NotImplementedError for a role that is none."""
        return [item for message in messages for item in self._items(message)]

    def _items(self, message: Mapping[str, Any]) -> list[Any]:
        role, content = message["role"], message.get("content") or ""
        if role == "assistant":
            return self.postprocess_assistant_message_dict(message)
        if isinstance(content, list):
            content = [_input_part(part) for part in content]
        if role == "tool":
            return [NeMoGymFunctionCallOutput(call_id=message["tool_call_id"], output=content, status="completed")]
        if role in ("user", "system", "developer"):
            return [NeMoGymEasyInputMessage.model_validate({"role": role, "content": content})]
        raise NotImplementedError(f"a message's role is user, system, developer, assistant or tool, not {role!r}")


def _said(params: Any) -> dict[str, Any]:
    said: dict[str, Any] = params.model_dump(mode="json", exclude_unset=True, by_alias=True)
    return said


def _input_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """A chat message's part as Responses has it; what is that already stays as it is."""
    if part.get("type") == "text":
        return {"type": "input_text", "text": part["text"]}
    if part.get("type") == "image_url":
        image = part["image_url"]
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto")}
    return dict(part)


def split_responses_input_output_items(items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The items before the first that a model made, and all from that one on."""
    place = next((place for place, item in enumerate(items) if _by_model(item)), len(items))
    return list(items[:place]), list(items[place:])


def _by_model(item: Any) -> bool:
    kind = getattr(item, "type", None)
    return kind in _MADE_BY_MODEL or (kind == "message" and getattr(item, "role", None) == "assistant")


VLLMConverter = ResponsesConverter
"""The name that harnesses know it by."""
VLLMConverterResponsesToChatCompletionsState = dict
"""Imported beside it, and used by nobody."""


def _usage_detail(usage: Any, group: str, name: str, *others: str) -> int | None:
    """A number of tokens that a provider tells within `group`, else under one of the other names."""
    inner = _of(usage, group)
    found = [_of(inner, name), *(_of(usage, other) for other in others)]
    return next((one for one in found if isinstance(one, int) and not isinstance(one, bool) and one >= 0), None)


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
