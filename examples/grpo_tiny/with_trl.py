"""The same by TRL's GRPOTrainer: it asks for rollouts, the product plays them, and its tokens go in as they were.

TRL's `rollout_func` gives ids, log-probs and the mask of what the policy said itself; before a batch is played, the
engine gets the trainer's weights.
"""

from __future__ import annotations

import asyncio
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from transformers import AutoModelForCausalLM, AutoTokenizer

from nemo_gym.export.exporter import Options
from nemo_gym.rollouts import journal

from . import policy, tasks
from .grpo import Plan
from .measure import Line, Say
from .policy import BASE
from .servers import Batch, Servers

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

ROWS_AT_ONCE = 32


async def learn(servers: Servers, plan: Plan, seed: int, folder: Path, say: Say) -> list[Line]:
    drawn = {question(task): task for task in islice(tasks.training(seed), plan.steps * plan.prompts * 2)}
    rollouts = Rollouts(servers, drawn, plan.samples, folder, asyncio.get_running_loop(), say)
    trainer = await asyncio.to_thread(_trainer, plan, seed, list(drawn), rollouts, folder)
    await asyncio.to_thread(trainer.train)
    await servers.load(policy.write(trainer.model, folder / "weights" / "last"))
    return []


def question(task: tasks.Task) -> str:
    """By which the task is found again: TRL hands over the prompt alone."""
    asked: str = task["responses_create_params"]["input"][0]["content"]
    return asked


class Rollouts:
    """TRL's rollout_func, called in the trainer's thread."""

    def __init__(
        self,
        servers: Servers,
        drawn: dict[str, tasks.Task],
        samples: int,
        folder: Path,
        loop: asyncio.AbstractEventLoop,
        say: Say,
    ) -> None:
        self._servers = servers
        self._tasks = drawn
        self._samples = samples
        self._folder = folder
        self._loop = loop
        self._say = say
        self._loaded = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        step = trainer.state.global_step
        if step != self._loaded:
            self._wait(self._servers.load(policy.write(trainer.model, self._folder / "weights" / f"{step:03d}")))
            self._loaded = step
        asked = [prompt[-1]["content"] for prompt in prompts]
        groups = asked[:: self._samples]
        if asked != [one for one in groups for _ in range(self._samples)]:
            raise ValueError("expected the samples of a prompt one after the other")
        rows = [self._tasks[one] for one in groups]
        batch: Batch = self._wait(self._servers.play(rows, self._samples, self._folder / f"step-{step:03d}"))
        self._say(f"step {step:3}  reward {batch.mean:.3f}  mixed {batch.mixed:.2f}")
        self._servers.export(batch, ["token_rows"], Options(shared=True, branches="main"))
        return _as_trl_has_them(batch)

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _as_trl_has_them(batch: Batch) -> dict[str, list[Any]]:
    rows = {row["rollout_id"]: row for row in pq.read_table(batch.folder / "exports" / "token_rows").to_pylist()}
    played = sorted(
        journal.read(batch.folder / "rollouts.jsonl"), key=lambda row: (row[journal.TASK], row[journal.REPEAT])
    )
    made: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "earned")
    }
    for row in [rows[one[journal.ROLLOUT]] for one in played]:
        begin = row["loss_mask"].index(1)
        made["prompt_ids"].append(row["input_ids"][:begin])
        made["completion_ids"].append(row["input_ids"][begin:])
        made["logprobs"].append(row["logprobs"][begin:])
        made["env_mask"].append(row["loss_mask"][begin:])
        made["earned"].append(row["reward"])
    return made


def earned_reward(earned: list[float], **_: Any) -> list[float]:
    """What the environment gave."""
    return earned


def _trainer(plan: Plan, seed: int, questions: list[str], rollouts: Rollouts, folder: Path) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    prompts = [{"prompt": [{"role": "user", "content": one}]} for one in questions]
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(BASE, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(BASE),
        reward_funcs=earned_reward,
        rollout_func=rollouts,
        train_dataset=Dataset.from_list(prompts),
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            use_cpu=True,
            bf16=False,
            max_steps=plan.steps,
            num_generations=plan.samples,
            per_device_train_batch_size=ROWS_AT_ONCE,
            gradient_accumulation_steps=plan.prompts * plan.samples // ROWS_AT_ONCE,
            learning_rate=plan.learning_rate,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            weight_decay=0.0,
            beta=0.0,
            seed=seed,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
    )
