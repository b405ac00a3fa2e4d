"""What a model server imports; names only."""

from fastapi import Body

from nemo_gym.model_server.server import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel

BaseResponsesAPIModel = SimpleResponsesAPIModel

__all__ = ["BaseResponsesAPIModel", "BaseResponsesAPIModelConfig", "Body", "SimpleResponsesAPIModel"]
