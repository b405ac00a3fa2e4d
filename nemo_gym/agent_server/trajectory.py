"""What a client did, from the model server's records of its calls, never from what the client printed.

The main branch is the conversation that began with the rollout's first call; sub-agents, summaries for a compaction and
side calls are branches of their own. Its items are what the model said, in order, with the tool results that the next
request brought; the token columns of a call are on the last item of its reply that can bear them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ..capture.record import CallRecord, from_json
from ..dialects import responses
from ..dialects.responses.objects import NeMoGymResponseUsage
from ..exchange.parts import Media, ToolCall, ToolResult, plain_text
from ..exchange.reply import ModelReply
from ..exchange.request import ModelRequest
from ..web.correlation import rollout_path
from ..web.peers import ServerClient
from .failures import RolloutFailed, unreachable_is

_BEARS_TOKENS = ("message", "function_call", "reasoning")
_ASIDE = ("subagent", "side")


class Branch(Struct):
    """Calls that belong together, in order. `relation` says what set it off."""

    relation: str
    parent_call_id: str | None
    call_ids: list[str] = []


class Trajectory:
    """One rollout's calls, in the order in which they came."""

    def __init__(self, calls: Iterable[CallRecord]) -> None:
        self.calls = sorted(calls, key=lambda call: (call.times.received, call.call_id))
        self._with_tools = any(_offers_tools(call) for call in self.calls)
        self._main = Branch("first", None)
        self.branches = [self._main]
        self._of: dict[str, Branch] = {}
        for call in self.calls:
            branch = self._branch(call)
            branch.call_ids.append(call.call_id)
            self._of[call.call_id] = branch

    @classmethod
    async def asked(cls, client: ServerClient, model_server: str, rollout_id: str, admin_key: str = "") -> Trajectory:
        """Of the model server, wherever it runs. Raises RolloutFailed when it cannot say."""
        headers = {"authorization": f"Bearer {admin_key}"} if admin_key else {}
        with unreachable_is("model", model_server):
            response = await client.get(model_server, rollout_path(rollout_id, "/calls"), headers=headers)
            body = await response.read()
        if not response.ok:
            text = body.decode(errors="replace")
            raise RolloutFailed("infrastructure", f"{model_server} gave no records ({response.status}): {text}")
        try:
            return cls(from_json(msgspec.json.decode(line)) for line in body.splitlines() if line)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RolloutFailed(
                "infrastructure", f"{model_server} gave records that cannot be read: {error}"
            ) from error

    def _branch(self, call: CallRecord) -> Branch:
        """Where a call belongs: with the one that it continues, unless it was set off beside it."""
        parent = self._of.get(call.parent_call_id or "")
        if self._is_aside(call):
            self.branches.append(Branch("side" if call.relation == "first" else call.relation, call.parent_call_id))
            return self.branches[-1]
        while parent is not None and parent.relation == "compaction":  # a summary's conversation goes on after it
            parent = self._of.get(parent.parent_call_id or "")
        return parent or self._main

    def _is_aside(self, call: CallRecord) -> bool:
        if call.relation in _ASIDE:
            return True
        if _offers_tools(call) or call.received is None:
            return False
        # No tools: a summary that was asked for, or a title before the conversation began.
        return call.relation == "compaction" or (call.relation == "first" and self._with_tools)

    @property
    def main(self) -> list[CallRecord]:
        """The main branch's answered calls, each answer once: of one that was asked again, the last."""
        ids = set(self._main.call_ids)
        continued = {call.parent_call_id for call in self.calls if call.relation not in ("retry", "repeat")}
        kept: list[CallRecord] = []
        for call in self.calls:
            if call.call_id not in ids or call.status != "answered" or call.reply is None or call.relation == "repeat":
                continue
            if call.relation == "retry" and kept and kept[-1].call_id not in continued:
                kept.pop()
            kept.append(call)
        return kept

    def items(self) -> list[dict[str, Any]]:
        """The main branch as Responses items."""
        items: list[dict[str, Any]] = []
        pending: dict[str, ToolCall] = {}
        for call in self.main:
            assert call.received is not None and call.reply is not None
            items += _results(call.received, pending)
            items += _said(call.reply, call.reply.choices[0].tokens if call.reply.choices else None)
            for part in call.reply.choices[0].parts if call.reply.choices else ():
                if isinstance(part, ToolCall):
                    pending[_key(part.call_id)] = part
        return items

    def usage(self) -> dict[str, Any] | None:
        """Of every answered call, side ones too; null when one of them is not known."""
        usages = [
            responses.write_reply(call.reply, _NOTHING)["usage"]
            for call in self.calls
            if call.status == "answered" and call.reply is not None and call.relation != "repeat"
        ]
        if not usages or None in usages:
            return None
        summed = NeMoGymResponseUsage.sum_from_list(map(NeMoGymResponseUsage.model_validate, usages))
        return summed.model_dump(mode="json", exclude_unset=True)

    def response(self) -> dict[str, Any]:
        """The rollout as one Responses object. There must be a main call."""
        last = self.main[-1]
        assert last.reply is not None
        body = responses.write_reply(last.reply, _NOTHING)
        return body | {"output": self.items(), "usage": self.usage()}

    def final_message(self) -> str:
        """The text of the last answer; "" when it has none."""
        last = self.main[-1].reply if self.main else None
        return "" if last is None or not last.choices else plain_text(last.choices[0].parts)

    def failure(self) -> str | None:
        """What the last call of the main branch failed with; None when it was answered."""
        mine = [call for call in self.calls if self._of[call.call_id] is self._main]
        last = mine[-1] if mine else None
        if last is None or last.status == "answered" or last.error is None:
            return None
        return f"{last.error.kind}: {last.error.message}"


_NOTHING = ModelRequest(messages=())


def _offers_tools(call: CallRecord) -> bool:
    return call.received is not None and bool(call.received.tools)


def _said(reply: ModelReply, tokens: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = responses.write_reply(reply, _NOTHING)["output"]
    if reply.prompt_ids is None or tokens is None or tokens.ids is None or tokens.logprobs is None:
        return items
    bearer = next((item for item in reversed(items) if item["type"] in _BEARS_TOKENS), None)
    if bearer is not None:
        bearer["prompt_token_ids"] = reply.prompt_ids.tolist()
        bearer["generation_token_ids"] = tokens.ids.tolist()
        bearer["generation_log_probs"] = tokens.logprobs.tolist()
    return items


def _results(request: ModelRequest, pending: dict[str, ToolCall]) -> list[dict[str, Any]]:
    """The results that this request is the first to bring."""
    items: list[dict[str, Any]] = []
    for part in (part for message in request.messages for part in message.parts):
        if isinstance(part, ToolResult) and (call := pending.pop(_key(part.call_id), None)) is not None:
            result = {"call_id": call.call_id, "output": _output(part.parts)}
            if call.custom:  # among output items this one has an id and a status
                result |= {"type": "custom_tool_call_output", "id": f"ctco_{call.call_id}", "status": "completed"}
            else:
                result["type"] = "function_call_output"
            items.append(result)
    return items


def _output(parts: Sequence[Any]) -> str | list[dict[str, Any]]:
    if not any(isinstance(part, Media) and part.kind == "image" for part in parts):
        return plain_text(tuple(parts))
    return [
        {"type": "input_image", "image_url": part.source, "detail": "auto"}
        if isinstance(part, Media)
        else {"type": "input_text", "text": plain_text((part,))}
        for part in parts
    ]


def _key(call_id: str) -> str:
    """Some clients keep of an id only what is alphanumeric, up to 40 characters."""
    return "".join(filter(str.isalnum, call_id))[:40]
