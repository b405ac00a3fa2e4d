"""Supervised steps on the exported messages of the rollouts that were rewarded: the policy imitates its better self.

Messages become ids by the model's chat template. What is learnt is what the assistant said, its end token included.
"""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from transformers import AutoTokenizer

from nemo_gym.export.exporter import Options

from . import policy, tasks
from .measure import Line, Say
from .policy import BASE, Policy, Rows
from .servers import Servers

END = "<|im_end|>"


class Plan(Struct, frozen=True):
    prompts: int = 96
    samples: int = 4
    epochs: int = 3
    rows: int = 32
    """Of a step."""
    learning_rate: float = 5e-4


async def learn(servers: Servers, plan: Plan, seed: int, folder: Path, say: Say) -> list[Line]:
    """No curve comes of it: nothing is played in between."""
    batch = await servers.play(islice(tasks.training(seed), plan.prompts), plan.samples, folder / "played")
    servers.export(batch, ["sft"], Options(shared=True, min_reward=1.0))
    rows = read(batch.folder / "exports" / "sft")
    say(f"{len(rows)} good rollouts of {plan.prompts * plan.samples}")
    learner = await asyncio.to_thread(_trained, plan, rows, say)
    await servers.load(learner.save(folder / "weights"))
    return []


def _trained(plan: Plan, rows: Rows, say: Say) -> Policy:
    learner = Policy(BASE, plan.learning_rate)
    for epoch in range(plan.epochs):
        losses = [learner.imitate(rows[places]) for places in torch.randperm(len(rows)).split(plan.rows)]
        say(f"epoch {epoch}  loss {sum(losses) / len(losses):.3f}  {len(losses)} steps")
    return learner


def read(folder: Path) -> Rows:
    """The `sft` rows of an export."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    return policy.of_ids([encoded(json.loads(line), tokenizer) for line in lines])


def encoded(row: dict[str, Any], tokenizer: Any) -> tuple[list[int], list[int]]:
    """A conversation's ids, and 1 where one is to be learnt."""
    messages, tools = row["messages"], json.loads(row["tools"]) if row["tools"] else None
    ids: list[int] = []
    mask: list[int] = []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asked = _ids(tokenizer, messages[:place], tools, is_asked=True)
        said = _ids(tokenizer, messages[: place + 1], tools, is_asked=False)
        if said[: len(asked)] != asked or asked[: len(ids)] != ids:
            raise ValueError("the chat template does not only append, so it cannot be told what was said")
        end = len(said) - said[::-1].index(tokenizer.convert_tokens_to_ids(END))
        mask += [0] * (len(asked) - len(ids)) + [int(row["trained"][place])] * (end - len(asked))
        ids = said[:end]
    return ids, mask


def _ids(tokenizer: Any, messages: list[dict[str, Any]], tools: Any, *, is_asked: bool) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=is_asked)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
