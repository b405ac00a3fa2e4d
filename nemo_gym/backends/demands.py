"""What a request wants of an engine, and what this engine cannot give: refused under the name that the client used."""

from __future__ import annotations

from ..exchange.errors import InvalidRequest
from ..exchange.request import ModelRequest

PROMPT_LOGPROBS = "prompt_logprobs"
_FORMAT = {"chat": "response_format", "responses": "text.format", "messages": "output_config.format"}
_TEXT_ONLY = "this endpoint takes and gives text alone, without vLLM's extensions"


def wants_prompt_logprobs(request: ModelRequest) -> bool:
    """The field of vLLM's own API, in any dialect. Raises InvalidRequest for what is neither 0 nor a boolean."""
    value = None if request.origin is None else request.origin.body.get(PROMPT_LOGPROBS)
    if value is None or value is False:
        return False
    if value is True or value == 0:
        return True
    raise InvalidRequest(
        f"{PROMPT_LOGPROBS}: expected 0 or true: the prompt's own tokens are given, no alternatives",
        param=PROMPT_LOGPROBS,
    )


def check_text_only(request: ModelRequest) -> None:
    """For an engine that has no more than the published API. Raises InvalidRequest."""
    for name in ("top_k", "min_p"):
        if getattr(request.sampling, name) is not None:
            raise InvalidRequest(f"{name}: {_TEXT_ONLY}", param=name)
    if request.output_schema is not None:
        _refuse_format(request, _TEXT_ONLY)
    if wants_prompt_logprobs(request):
        raise InvalidRequest(f"{PROMPT_LOGPROBS}: {_TEXT_ONLY}", param=PROMPT_LOGPROBS)


def check_harmony(request: ModelRequest) -> None:
    """Raises InvalidRequest."""
    if request.output_schema is not None:
        _refuse_format(request, "the output of a model that writes harmony cannot be guided here")


def _refuse_format(request: ModelRequest, why: str) -> None:
    field = _FORMAT.get("" if request.origin is None else request.origin.dialect, "output_schema")
    raise InvalidRequest(f"{field}: {why}", param=field)
