"""Model, tools, model, until the model calls no tool: one rollout's conversation, as plain JSON.

Items are sent back to the model exactly as it gave them, in order, and nothing is added but tool results, so each
prompt begins with the one before. Results stand in the order of their calls, however the calls overlapped. A tool call
that cannot be made (unreadable arguments, an unknown name), fails or takes too long is told to the model as the tool's
output. Each limit that ends the conversation early is named in the last reply's metadata.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, Field

from nemo_gym.agent_server.environment import cookies_of
from nemo_gym.agent_server.failures import RolloutFailed, answer_of, unreachable_is
from nemo_gym.server_utils import ServerClient
from responses_api_agents.simple_agent.tools import Shown, Tools, error


class Limits(BaseModel):
    max_steps: int | None = Field(default=None, ge=1)
    """Model calls in one rollout."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the model generates in one rollout; each call may take what is left."""
    tool_timeout_s: float = Field(default=600.0, gt=0)
    """Of one tool call; the model is told of a call that takes longer."""
    parallel_tools: int = Field(default=1, ge=1)
    """Tool calls of one turn that run at once. With 1, each sees what those before it did."""


class Turn(NamedTuple):
    """Which reply the model gave, and where its last item is in the output; None where it gave no item."""

    response_id: str | None
    last_item: int | None


class Loop:
    """One conversation.

    Args:
        model: name of a server of this run.
        model_path: the route of the model server, with the rollout's prefix.
        tools: without them, calls are left to the caller.
    """

    def __init__(
        self, client: ServerClient, *, model: str, model_path: str, tools: Tools | None, limits: Limits
    ) -> None:
        self.output: list[dict[str, Any]] = []
        self.turns: list[Turn] = []
        self._client = client
        self._model = model
        self._model_path = model_path
        self._tools = tools
        self._limits = limits
        self._model_cookies: dict[str, str] = {}
        self._usage: dict[str, Any] | None = None
        self._spent = 0

    async def run(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The last reply, with the output of all turns and the usage of all calls."""
        params = self._with_tools(params)
        given = params["input"]
        history = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        while True:
            reply = await self._ask(self._limited({**params, "input": history + self.output}))
            calls = [item for item in reply["output"] if item.get("type") == "function_call"]
            if reply.get("incomplete_details"):
                return self._whole(reply, "max_tokens" if self._left() == 0 else None)
            if not calls:
                return self._whole(_judged(reply))
            if self._tools is None:
                return self._whole(reply)
            self.output += await self._results(calls, self._tools)
            if self._limits.max_steps is not None and len(self.turns) >= self._limits.max_steps:
                return self._whole(reply, "max_steps")
            if self._left() == 0:
                return self._whole(reply, "max_tokens")

    def _with_tools(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row's own declaration of a tool stands before the environment's."""
        own = params.get("tools") or []
        names = {tool.get("name") for tool in own}
        more = [tool for tool in (self._tools.declared if self._tools else ()) if tool["name"] not in names]
        return {**params, "tools": [*own, *more]} if more else params

    def _limited(self, request: dict[str, Any]) -> dict[str, Any]:
        left = self._left()
        if left is None:
            return request
        own = request.get("max_output_tokens")
        return {**request, "max_output_tokens": left if own is None else min(own, left)}

    def _left(self) -> int | None:
        """Tokens that may still be generated; None without a limit."""
        limit = self._limits.max_tokens
        return None if limit is None else max(0, limit - self._spent)

    def _whole(self, reply: dict[str, Any], ended: str | None = None) -> dict[str, Any]:
        if ended is not None:
            reply = _ended(reply, ended)
        return {**reply, "output": self.output, "usage": self._usage}

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with unreachable_is("model", self._model):
            response = await self._client.post(self._model, self._model_path, json=request, cookies=self._model_cookies)
        self._model_cookies.update(cookies_of(response))
        reply = await answer_of(response, "model", self._model)
        if not isinstance(reply, dict) or not _are_items(reply.get("output")):
            raise RolloutFailed("model", f"{self._model} answered with something that is no Responses object")
        self._usage = added_usage(self._usage, reply.get("usage"))
        self._spent += self._generated(reply)
        self.output.extend(reply["output"])
        self.turns.append(Turn(reply.get("id"), len(self.output) - 1 if reply["output"] else None))
        return reply

    def _generated(self, reply: Mapping[str, Any]) -> int:
        said = (reply.get("usage") or {}).get("output_tokens")
        if isinstance(said, int):
            return said
        if self._limits.max_tokens is not None:
            raise RolloutFailed("model", f"max_tokens cannot be kept: {self._model} does not say what it generated")
        return 0

    async def _results(self, calls: list[dict[str, Any]], tools: Tools) -> list[dict[str, Any]]:
        """The results of one turn's calls, in their order. Raises RolloutFailed as the first of them does."""
        slots = asyncio.Semaphore(self._limits.parallel_tools)

        async def result(call: dict[str, Any]) -> dict[str, Any]:
            async with slots:
                shown = await self._shown(call, tools)
            return {"type": "function_call_output", "call_id": call.get("call_id") or "", "output": shown}

        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(result(call)) for call in calls]
        except BaseExceptionGroup as failures:  # one alone: the others were cancelled by it
            raise failures.exceptions[0] from None
        return [task.result() for task in running]

    async def _shown(self, call: dict[str, Any], tools: Tools) -> Shown:
        try:
            arguments = json.loads(call.get("arguments") or "{}")
        except (ValueError, TypeError, RecursionError) as unreadable:
            return error(f"the arguments are not JSON: {unreadable}")
        if not isinstance(arguments, dict):
            return error("the arguments must be a JSON object")
        limit = self._limits.tool_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await tools.call(call.get("name"), arguments)
        except TimeoutError:
            return error(f"the tool did not answer within {limit:g} s")


def _judged(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without a tool call; one without a message either has not answered."""
    output = reply["output"]
    if any(item.get("type") == "message" and item.get("role") == "assistant" for item in output):
        return reply
    return _ended({**reply, "status": "incomplete"}, "incomplete_reasoning" if output else "empty_output")


def _ended(reply: dict[str, Any], reason: str) -> dict[str, Any]:
    return {**reply, "metadata": {**(reply.get("metadata") or {}), "ng_termination_reason": reason}}


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
