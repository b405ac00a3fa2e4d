"""A request of Responses as a chat backend gets it: what a data set's rows become, for whoever wants to look."""

from __future__ import annotations

from ..dialects import chat, responses
from ..dialects.chat.objects import NeMoGymChatCompletionCreateParamsNonStreaming
from ..dialects.responses.objects import NeMoGymResponseCreateParamsNonStreaming


class ResponsesConverter:
    """Args:
    return_token_id_information: kept for callers that give it; token ids are on the server, not in messages.
    """

    def __init__(self, return_token_id_information: bool = False) -> None:
        self.return_token_id_information = return_token_id_information

    def responses_to_chat_completion_create_params(
        self, responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        """Raises InvalidRequest that names what is no request."""
        asked = responses.read_request(
            responses_create_params.model_dump(mode="json", exclude_unset=True, by_alias=True)
        )
        return NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(chat.write_request(asked))
