"""The words for what went wrong with a rollout: few and stable, so that they can be grouped by.

A word says the kind and nothing else; what happened in detail is `failure_reason`. An environment may use a word of its
own as `<server>:<kind>`. A word that is neither is kept, and warned of once, so that no failure is lost over its name.
"""

from __future__ import annotations

import logging
import re
from typing import Literal

FailureStage = Literal["admission", "seed", "agent", "verification", "cleanup"]
"""Where in an episode something failed."""

TRANSPORT_UNREACHABLE = "transport_unreachable"
TRANSPORT_PEER_DROP = "transport_peer_drop"
TRANSPORT_TIMEOUT = "transport_timeout"
TRANSPORT_LOCAL_RESOURCE = "transport_local_resource"
AGENT_RUN_ERROR = "agent_run_error"
AGENT_REQUEST_FAILED = "agent_request_failed"
AGENT_TIMEOUT = "agent_timeout"
AGENT_COMMAND_NOT_ALLOWED = "agent_command_not_allowed"
JUDGE_FAILED = "judge_failed"
JUDGE_UNPARSEABLE = "judge_unparseable"
VERIFIER_ERROR = "verifier_error"
PROVIDER_UNAVAILABLE = "provider_unavailable"
PROVIDER_QUOTA_EXHAUSTED = "provider_quota_exhausted"
PROVIDER_OOM_KILLED = "provider_oom_killed"
SESSION_LOST = "session_lost"
SESSION_EXPIRED = "session_expired"
SESSION_RELEASE_FAILED = "session_release_failed"
CANCELLED = "cancelled"
KILL_SHAPED = "kill_shaped"
SHUTDOWN = "shutdown"
PERSISTENCE_FAILED = "persistence_failed"
COHORT_INCOMPLETE = "cohort_incomplete"

FAILURE_KINDS: frozenset[str] = frozenset(
    value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str)
)

_OWN = re.compile(r"[a-z][a-z0-9_]*:[a-z][a-z0-9_]*")
_warned: set[str] = set()
_log = logging.getLogger("nemo_gym")


def is_registered(name: str) -> bool:
    """Whether it is one of the shared words."""
    return name in FAILURE_KINDS


def is_namespaced(name: str) -> bool:
    """Whether it is an environment's own, `<server>:<kind>`."""
    return _OWN.fullmatch(name) is not None


def validate_failure_kind(name: str | None) -> str | None:
    """The word as it is."""
    if name is not None and not is_registered(name) and not is_namespaced(name) and name not in _warned:
        _warned.add(name)
        _log.warning("failure_kind %r is none of the shared kinds; an environment's own is '<server>:<kind>'", name)
    return name
