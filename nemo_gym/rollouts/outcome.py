"""How a rollout ended. A failure is never a reward: what failed has no result, and is counted by its kind."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

FailureKind = Literal["agent", "model", "verifier", "timeout", "infrastructure", "cancelled", "row"]
"""Whose failure it is; `row`: the dataset's row cannot be run."""

INCOMPLETE: dict[FailureKind, str | None] = {
    "agent": "agent_error",
    "model": "backend_error",
    "verifier": None,  # the conversation is whole; only its reward is missing
    "timeout": "deadline",
    "infrastructure": "agent_error",
    "cancelled": "cancelled",
    "row": "agent_error",
}
"""What the record of the rollout's calls is sealed with."""

_SAID = ("agent", "model", "verifier", "timeout", "infrastructure")
_WORDS = 2000
_LARGEST_REWARD = 3.4e38


class Failure(Struct, frozen=True):
    kind: FailureKind
    message: str
    status: int | None = None
    """The HTTP status of the agent's answer, where there was one."""


class Ticket(Struct, frozen=True):
    """One rollout to be made: which row, which repeat, under which id."""

    task: int
    repeat: int
    rollout_id: str
    agent: str
    row: dict[str, Any]
    attempt: int = 0
    """How often it failed before, in this start."""


class Outcome(Struct, frozen=True):
    """What became of a ticket: a result, or a failure. `calls` and `incomplete` are the model servers' own word."""

    ticket: Ticket
    started: float
    seconds: float
    result: dict[str, Any] | None = None
    failure: Failure | None = None
    calls: int | None = None
    """None where no model server could say (capture is off, or the seal failed)."""
    incomplete: str | None = None
    """Why the rollout's record is not whole."""
    retried: bool = False
    """It failed, and is made anew: not the last word on its ticket."""


def shortened(text: str) -> str:
    return text if len(text) <= _WORDS else text[:_WORDS] + "…"


def from_status(status: int, body: Any, text: str) -> Failure:
    """The failure that an agent's error answer means; an agent that does not say is at fault itself."""
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    kind: FailureKind = error["kind"] if error.get("kind") in _SAID else "agent"
    said = error.get("message")
    return Failure(kind, shortened(said if isinstance(said, str) and said else text or f"HTTP {status}"), status)


def unfit(body: Any, status: int) -> Failure | None:
    """Why an answer is no result: one has a reward that is a number; anything else is a failure, not a zero.

    A trainer takes rewards as 32-bit floats, so one that is beyond them is none.

    A reward of true or false becomes a number in `body`.
    """
    if not isinstance(body, dict):
        return Failure("agent", f"its answer is {type(body).__name__}, not an object", status)
    if said := body.get("_ng_failure_class"):  # its reward is a stand-in: the judge could not be asked
        reason = f"{said}: {body.get('failure_reason') or 'no reason given'}"
        return Failure("verifier", shortened(reason), status)
    reward = body.get("reward")
    if isinstance(reward, bool):
        body["reward"] = float(reward)
    elif not isinstance(reward, int | float) or not abs(reward) <= _LARGEST_REWARD:
        return Failure("verifier", f"the reward is {shortened(repr(reward))}, not a finite number", status)
    return None
