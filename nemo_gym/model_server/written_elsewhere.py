"""What a model server written for NeMo Gym calls beside its own work.

Calls and their tokens are recorded around it here, so nothing of this changes what is answered or what is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict


class ModelExecutionOutcome(TypedDict):
    upstream_attempted: bool
    response_source: Literal["upstream", "local"] | None
    upstream_status_code: int | None
    local_response_reason: str | None


def start_model_execution(request: Request, *, upstream_attempted: bool) -> ModelExecutionOutcome:
    """What the server says of its own call as it goes on; it is in `request.state.nemo_gym_model_execution`."""
    outcome = ModelExecutionOutcome(
        upstream_attempted=upstream_attempted,
        response_source=None,
        upstream_status_code=None,
        local_response_reason=None,
    )
    request.state.nemo_gym_model_execution = outcome
    return outcome


def dispatch_response(content: Any) -> Any:
    """An answer as JSON at once; one that is a response already stays as it is."""
    if isinstance(content, Response):
        return content
    plain = content.model_dump(mode="json") if isinstance(content, BaseModel) else content
    return Response(json.dumps(plain, ensure_ascii=False, allow_nan=False).encode(), media_type="application/json")


# ---- the capture of tokens


class TokenIdCaptureSettings(BaseModel):
    """Never on: what a configuration says of it is passed over."""

    model_config = ConfigDict(extra="ignore")

    enabled: Literal[False] = False
    all_agents: Literal[False] = False
    external_staging: Literal[False] = False
    external_staging_backend: str = "vllm_worker"


class TokenIdCaptureConfig(BaseModel):
    token_id_capture: TokenIdCaptureSettings = TokenIdCaptureSettings()


def token_id_capture_config(global_config_dict: Mapping[str, Any] | None) -> TokenIdCaptureConfig:
    return TokenIdCaptureConfig()


def current_capture_context() -> None:
    """That of the call in hand: there is none."""


class ExternalCaptureHandler:
    """Is never made."""


def make_external_capture_handler(backend: str) -> ExternalCaptureHandler:
    """Raises ValueError."""
    raise ValueError(f"token_id_capture: {backend}: tokens are recorded by the model server itself")
