"""Which fields of a request are known, which reach any backend, and which change no output (A6).

`CARRIED`: what a ModelRequest says, so that every backend gets it. `KNOWN`: the fields of the published API, which a
backend of the same dialect always gets.
"""

from __future__ import annotations

from ..dialects.chat import schema as chat
from ..dialects.messages import schema as messages
from ..dialects.responses import schema as responses

_CHAT = """audio chat_template_kwargs function_call functions metadata modalities moderation output_config prediction
prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier store thinking user
verbosity web_search_options"""
_RESPONSES = """access_programs background_options client_metadata context_management conversation image moderation
prompt prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier truncation user"""
_MESSAGES = "container diagnostics inference_geo service_tier speed user_profile_id workspace_id"
_HARMLESS = """access_programs background_options client_metadata diagnostics inference_geo metadata moderation
prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier speed store user
user_profile_id workspace_id"""

CARRIED: dict[str, frozenset[str]] = {
    "chat": chat.FIELDS,
    "responses": responses.FIELDS,
    "messages": messages.FIELDS,
}
KNOWN: dict[str, frozenset[str]] = {
    "chat": chat.FIELDS | frozenset(_CHAT.split()),
    "responses": responses.FIELDS | frozenset(_RESPONSES.split()),
    "messages": messages.FIELDS | frozenset(_MESSAGES.split()),
}
HARMLESS = frozenset(_HARMLESS.split())
"""Dropping these changes no output."""
