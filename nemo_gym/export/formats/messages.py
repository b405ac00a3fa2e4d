"""Conversations as messages: TRL's SFT rows and GRPO prompts, OpenAI's fine-tuning rows.

Tool arguments stay the model's own string, and tools are one JSON string where HF `datasets` reads them: as objects,
rows with different keys would fill each other up with nulls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from ..conversations import Dialogue
from ..ledger import Entry
from ..options import Options
from .format import JsonLines, Made, Rollout


class Sft(JsonLines):
    name = "sft"
    card = """## sft

One row a conversation, for TRL's `SFTTrainer`: `messages`, `tools` (a JSON string, null without tools), and `reward`,
`task_id`, `group_id`, `rollout_id`, `run_id`, `agent`, `branch`. With `--branches all` a conversation that forks comes
once for each end, its beginning each time; `trained` says of each message whether this row is the one to train it.
"""

    def rows(self, rollout: Rollout, skipped: Counter[str]) -> Iterator[Mapping[str, Any]]:
        for conversation, said in rollout.dialogues(skipped):
            if is_multimodal(said.messages):
                skipped["multimodal"] += 1
                continue
            yield {
                "messages": said.messages,
                "tools": tools_string(said),
                "trained": said.trained,
                **rollout.named(),
                "branch": conversation.branch,
            }


class Prompts(JsonLines):
    name = "prompts"
    card = """## prompts

One row a task, for TRL's `GRPOTrainer`: `prompt` (the messages before the policy's first answer), `tools` (a JSON
string, null without tools), `task_id`, `agent`. Rewards are the environment's to give.
"""

    def __init__(self, folder: Path, options: Options) -> None:
        super().__init__(folder, options)
        self._seen = bytearray()
        """One bit a task."""

    def rows(self, rollout: Rollout, skipped: Counter[str]) -> Iterator[Mapping[str, Any]]:
        for conversation, said in rollout.dialogues(skipped):
            if conversation.path[0] is not rollout.calls[0]:
                continue
            prompt = said.messages[: said.prompt]
            if not prompt or is_multimodal(prompt):
                skipped["multimodal" if prompt else "no_prompt"] += 1
                continue
            yield {
                "prompt": prompt,
                "tools": tools_string(said),
                "task_id": rollout.entry.task_id,
                "agent": rollout.entry.agent,
            }
            return

    def wants(self, entry: Entry) -> bool:
        return entry.task is not None and not self._was_seen(entry.task)

    def take(self, made: Made, entry: Entry) -> int:
        if entry.task is None or not self.wants(entry):
            return 0
        if made.rows:
            self._seen[entry.task // 8] |= 1 << entry.task % 8
        return super().take(made, entry)

    def _was_seen(self, task: int) -> bool:
        self._seen.extend(bytes(max(0, task // 8 + 1 - len(self._seen))))
        return bool(self._seen[task // 8] & 1 << task % 8)


class OpenAIMessages(JsonLines):
    name = "openai"
    card = """## openai

One row a conversation, for OpenAI's fine-tuning: `messages`, `tools`, `parallel_tool_calls`. An answer that another
row trains, or that the policy did not give, has `weight` 0. Reasoning is no part of that format.
"""

    def rows(self, rollout: Rollout, skipped: Counter[str]) -> Iterator[Mapping[str, Any]]:
        for _, said in rollout.dialogues(skipped):
            row: dict[str, Any] = {
                "messages": [_weighted(*one) for one in zip(said.messages, said.trained, strict=True)]
            }
            if said.tools:
                row |= {"tools": said.tools, "parallel_tool_calls": _parallel(said)}
            yield row


def _weighted(message: dict[str, Any], trained: bool) -> dict[str, Any]:
    if message["role"] != "assistant":
        return message
    kept = {name: value for name, value in message.items() if name != "reasoning_content"}
    return kept | {"weight": int(trained)}


def _parallel(said: Dialogue) -> bool:
    request = said.record.received or said.record.sent
    return request is None or request.parallel_tool_calls


def tools_string(said: Dialogue) -> str | None:
    return orjson.dumps(said.tools).decode() if said.tools else None


def is_multimodal(messages: list[dict[str, Any]]) -> bool:
    return any(isinstance(message.get("content"), list) for message in messages)
