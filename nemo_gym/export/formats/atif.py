"""ATIF trajectories: one a rollout, its main conversation's steps; the others are embedded and referred to.

A step is a system or user message, or one answer of the policy together with what its tools gave back.
"""

from __future__ import annotations

import math
import mimetypes
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from ..captured import CapturedCall
from ..conversations import Conversation, Dialogue
from .format import JsonLines, Rollout, floats, ints

VERSION = "ATIF-v1.8"


class Atif(JsonLines):
    name = "atif"
    card = """## atif

One trajectory a line, one line a rollout, in the Agent Trajectory Interchange Format (v1.8). Conversations besides the
main one are in `subagent_trajectories`. An answer that another trajectory of the rollout has too is marked
`is_copied_context`. Token ids and log-probs of the answers are in their `metrics` where they are known; the reward is
in `extra`.
"""

    def rows(self, rollout: Rollout, skipped: Counter[str]) -> Iterator[Mapping[str, Any]]:
        told = list(rollout.dialogues(skipped))
        if not told:
            return
        main = max(told, key=lambda one: (one[0].is_main, one[0].branch))
        others = [one for one in told if one[0] is not main[0]]
        row = _trajectory(rollout, *main)
        steps = _step_of(main, row)
        embedded = []
        for conversation, said in others:
            inner = _trajectory(rollout, conversation, said)
            embedded.append(inner)
            step = steps.get(conversation.path[0].parent_call_id or "")
            if step is not None and conversation.path[0].relation == "subagent":
                results = step.setdefault("observation", {"results": []})["results"]
                results.append({"subagent_trajectory_ref": [{"trajectory_id": inner["trajectory_id"]}]})
        if embedded:
            row["subagent_trajectories"] = embedded
        yield row


def _trajectory(rollout: Rollout, conversation: Conversation, said: Dialogue) -> dict[str, Any]:
    entry = rollout.entry
    agent: dict[str, Any] = {"name": entry.agent or "agent", "version": "unknown"}
    if conversation.last.model:
        agent["model_name"] = conversation.last.model
    if said.tools:
        agent["tool_definitions"] = said.tools
    totals = [sum(known) if (known := _known(conversation, place)) else None for place in range(3)]
    names = ("total_prompt_tokens", "total_completion_tokens", "total_cached_tokens")
    return {
        "schema_version": VERSION,
        "session_id": entry.rollout_id,
        "trajectory_id": f"{entry.rollout_id}-{conversation.branch}",
        "agent": agent,
        "steps": list(_steps(conversation, said)),
        "final_metrics": {name: total for name, total in zip(names, totals, strict=True) if total is not None},
        "extra": rollout.named() | {"began_as": conversation.path[0].relation},
    }


def _known(conversation: Conversation, place: int) -> list[int]:
    """Each of the conversation's own calls, once."""
    own = [call.usage[place] for call in conversation.path if call.call_id in conversation.trained]
    return [value for value in own if value is not None]


def _steps(conversation: Conversation, said: Dialogue) -> Iterator[dict[str, Any]]:
    answers = iter(conversation.path)
    step: dict[str, Any] | None = None
    number = 0
    for place, message in enumerate(said.messages):
        if message["role"] == "tool" and step is not None and step["source"] == "agent":
            _observe(step, message)
            continue
        if step is not None:
            yield step
        number += 1
        if message["role"] == "assistant":
            call = next(answers, None) if said.answers[place] else None
            step = {"step_id": number} | _agent_step(message, call, is_own=said.trained[place])
        else:
            source = "system" if message["role"] == "system" else "user"
            step = {"step_id": number, "source": source, "message": _content(message.get("content"))}
    if step is not None:
        yield step


def _step_of(main: tuple[Conversation, Dialogue], row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The step of each call of the main conversation."""
    answered = [step for step in row["steps"] if step["source"] == "agent" and "timestamp" in step]
    return {call.call_id: step for call, step in zip(main[0].path, answered, strict=False)}


def _agent_step(message: Mapping[str, Any], call: CapturedCall | None, *, is_own: bool) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": _content(message.get("content") or message.get("refusal"))}
    if message.get("reasoning_content"):
        step["reasoning_content"] = message["reasoning_content"]
    if message.get("tool_calls"):
        step["tool_calls"] = [_tool_call(one) for one in message["tool_calls"]]
    if call is None:
        return step | {"is_copied_context": True}
    step["timestamp"] = datetime.fromtimestamp(call.received_at, UTC).isoformat().replace("+00:00", "Z")
    if call.model:
        step["model_name"] = call.model
    step |= {"llm_call_count": 1, "metrics": _metrics(call), "extra": {"call_id": call.call_id}}
    return step if is_own else step | {"is_copied_context": True}


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    written = {"tool_call_id": call["id"], "function_name": function["name"]}
    try:
        arguments = orjson.loads(function["arguments"] or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    if isinstance(arguments, dict):
        return written | {"arguments": arguments}
    return written | {"arguments": {}, "extra": {"arguments": function["arguments"]}}  # no object: as it was said


def _observe(step: dict[str, Any], message: Mapping[str, Any]) -> None:
    result: dict[str, Any] = {"content": _content(message.get("content"))}
    if any(one["tool_call_id"] == message["tool_call_id"] for one in step.get("tool_calls", ())):
        result["source_call_id"] = message["tool_call_id"]
    step.setdefault("observation", {"results": []})["results"].append(result)


def _metrics(call: CapturedCall) -> dict[str, Any]:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    metrics: dict[str, Any] = {name: value for name, value in zip(names, call.usage, strict=True) if value is not None}
    spoken = call.choices[0] if call.choices else None
    if spoken is None or spoken.ids is None:
        return metrics
    metrics["completion_token_ids"] = ints(spoken.ids)
    if spoken.logprobs is not None:
        logprobs = floats(spoken.logprobs)
        if all(map(math.isfinite, logprobs)):
            metrics["logprobs"] = logprobs
    return metrics


def _content(content: Any) -> str | list[dict[str, Any]]:
    if not isinstance(content, list):
        return content or ""
    return [_part(part) for part in content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "image_url":
        url = part["image_url"]["url"]
        kind = url[5:].split(";", 1)[0] if url.startswith("data:") else mimetypes.guess_type(url)[0]
        if kind in ("image/jpeg", "image/png", "image/gif", "image/webp"):
            return {"type": "image", "source": {"media_type": kind, "path": url}}
    return {"type": "text", "text": orjson.dumps(part).decode()}  # the format has no such part
