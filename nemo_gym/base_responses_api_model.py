"""What a model server imports; names only."""

from fastapi import Body

from nemo_gym.model_server.server import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.model_server.written_elsewhere import ModelExecutionOutcome, start_model_execution
from nemo_gym.model_server.written_elsewhere import dispatch_response as _orjson_dispatch_response

BaseResponsesAPIModel = SimpleResponsesAPIModel

__all__ = [
    "BaseResponsesAPIModel",
    "BaseResponsesAPIModelConfig",
    "Body",
    "ModelExecutionOutcome",
    "SimpleResponsesAPIModel",
    "_orjson_dispatch_response",
    "start_model_execution",
]
