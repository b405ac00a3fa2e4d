"""Model, tools, model, until the model calls no tool: one rollout's conversation, as plain JSON.

Items are sent back to the model exactly as it gave them, in order, and nothing is added but tool results, so each
prompt begins with the one before. A tool call that cannot be made (unreadable arguments, an unknown name, an error
answer) is told to the model as the tool's output; only a server that cannot be reached ends the rollout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from nemo_gym.agent_server.environment import cookies_of
from nemo_gym.agent_server.failures import RolloutFailed, answer_of, unreachable_is
from nemo_gym.server_utils import ServerClient

_RESERVED = frozenset(
    {"verify", "seed_session", "close_session", "aggregate_metrics", "reverify_mode", "health", "docs", "openapi.json"}
)


class Turn(NamedTuple):
    """Which reply the model gave, and where its last item is in the output; None where it gave no item."""

    response_id: str | None
    last_item: int | None


class Loop:
    """One conversation.

    Args:
        model, environment: names of servers of this run; without an environment, calls are left to the caller.
        model_path: the route of the model server, with the rollout's prefix.
        cookies: the environment's session; kept up to date.
    """

    def __init__(
        self,
        client: ServerClient,
        *,
        model: str,
        model_path: str,
        environment: str | None,
        cookies: Mapping[str, str],
        max_steps: int | None,
    ) -> None:
        self.cookies = dict(cookies)
        self.output: list[dict[str, Any]] = []
        self.turns: list[Turn] = []
        self._client = client
        self._model = model
        self._model_path = model_path
        self._environment = environment
        self._max_steps = max_steps
        self._model_cookies: dict[str, str] = {}
        self._usage: dict[str, Any] | None = None

    async def run(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The last reply, with the output of all turns and the usage of all calls."""
        given = params["input"]
        history = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        step = 0
        while True:
            step += 1
            reply = await self._ask({**params, "input": history + self.output})
            calls = [item for item in reply["output"] if item.get("type") == "function_call"]
            if reply.get("incomplete_details") or not calls or self._environment is None:
                return self._whole(reply)
            for call in calls:
                text = await self._call_tool(call)
                self.output.append(
                    {"type": "function_call_output", "call_id": call.get("call_id") or "", "output": text}
                )
            if self._max_steps is not None and step >= self._max_steps:
                return self._whole(reply, ended="max_steps")

    def _whole(self, reply: dict[str, Any], ended: str | None = None) -> dict[str, Any]:
        if ended is not None:
            reply = {**reply, "metadata": {**(reply.get("metadata") or {}), "ng_termination_reason": ended}}
        return {**reply, "output": self.output, "usage": self._usage}

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with unreachable_is("model", self._model):
            response = await self._client.post(self._model, self._model_path, json=request, cookies=self._model_cookies)
        self._model_cookies.update(cookies_of(response))
        reply = await answer_of(response, "model", self._model)
        if not isinstance(reply, dict) or not _are_items(reply.get("output")):
            raise RolloutFailed("model", f"{self._model} answered with something that is no Responses object")
        self.output.extend(reply["output"])
        self.turns.append(Turn(reply.get("id"), len(self.output) - 1 if reply["output"] else None))
        self._usage = added_usage(self._usage, reply.get("usage"))
        return reply

    async def _call_tool(self, call: dict[str, Any]) -> str:
        assert self._environment is not None
        name = call.get("name")
        if not isinstance(name, str) or not name.strip(".") or "/" in name or name in _RESERVED:
            return _error(f"there is no tool named {name!r}")
        try:
            arguments = json.loads(call.get("arguments") or "{}")
        except (ValueError, TypeError, RecursionError) as error:
            return _error(f"the arguments are not JSON: {error}")
        if not isinstance(arguments, dict):
            return _error("the arguments must be a JSON object")
        with unreachable_is("infrastructure", self._environment):
            response = await self._client.post(
                self._environment, "/" + quote(name, safe=""), json=arguments, cookies=self.cookies
            )
            text = (await response.read()).decode(errors="replace")
        self.cookies.update(cookies_of(response))
        return text


def added_usage(total: dict[str, Any] | None, more: Any) -> dict[str, Any] | None:
    """Two usages as one, field by field; an unknown added to a known is unknown."""
    if not isinstance(more, dict):
        return total
    if total is None:
        return more
    result = dict(total)
    for name, value in more.items():
        before = result.get(name)
        if isinstance(value, dict):
            result[name] = added_usage(before if isinstance(before, dict) else None, value)
        elif isinstance(value, int) and isinstance(before, int):
            result[name] = before + value
        else:
            result[name] = None
    return result


def attach_tokens(output: list[Any], turns: list[Turn], calls: bytes) -> None:
    """Puts the token columns of each recorded call on the last item of its reply.

    Args:
        output: the items of the rollout, changed in place.
        calls: JSON lines, one call record each.
    """
    columns = {}
    for line in calls.splitlines():
        reply = orjson.loads(line).get("reply") or {}
        tokens = next((choice.get("tokens") for choice in reply.get("choices") or ()), None) or {}
        ids, logprobs, prompt = tokens.get("ids"), tokens.get("logprobs"), reply.get("prompt_ids")
        if ids is not None and logprobs is not None and prompt is not None:
            columns[reply.get("id")] = {
                "prompt_token_ids": prompt,
                "generation_token_ids": ids,
                "generation_log_probs": logprobs,
            }
    for turn in turns:
        found = columns.get(turn.response_id)
        if found and turn.last_item is not None and turn.last_item < len(output):
            item = output[turn.last_item]
            if isinstance(item, dict) and item.get("type") in ("message", "function_call", "reasoning"):
                item.update(found)


def _are_items(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _error(message: str) -> str:
    return json.dumps({"error": message})
