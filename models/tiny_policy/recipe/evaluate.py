"""Measures the embedded model with transformers alone: tasks with tools at temperature 1, and questions without.

usage: evaluate.py FOLDER [--tasks N] [--repeats N] [--seed N] [--threads N]

A task pays 1 when the right tool was called with the right arguments and the answer after it states all that the tool
returned, else 0. Reinforcement needs tasks whose repeats differ in reward: `mixed` is the share of such tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import data
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TOOLS = [data.WEATHER_TOOL, data.CALCULATOR_TOOL]
TOOL_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
BATCH = 32

Messages = list[dict[str, Any]]


class Task(NamedTuple):
    """A question, the call that it takes, what the tool returns, and the words that a right answer contains."""

    question: str
    call: dict[str, Any]
    result: dict[str, Any]
    facts: set[str]


class Outcome(NamedTuple):
    called: bool
    called_right: bool
    stated: bool

    @property
    def reward(self) -> bool:
        return self.called_right and self.stated


class Policy:
    """The model in a folder, sampled at temperature 1 without truncation."""

    def __init__(self, folder: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def reply(self, conversations: list[Messages], tools: list[data.Tool] | None) -> list[str]:
        replies: list[str] = []
        for start in range(0, len(conversations), BATCH):
            replies += self._reply(conversations[start : start + BATCH], tools)
        return replies

    def _reply(self, conversations: list[Messages], tools: list[data.Tool] | None) -> list[str]:
        prompts = [
            self._tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
            for messages in conversations
        ]
        inputs = self._tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            # top_k=0: transformers would keep the best 50 tokens otherwise.
            ids = self._model.generate(**inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=64)
        return self._tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def make_task(kind: str, rng: Random) -> Task:
    if kind == "weather":
        city, condition = rng.choice(data.CITIES), rng.choice(data.CONDITIONS)
        temperature = rng.choice(data.TEMPERATURES)
        return Task(
            rng.choice(data.WEATHER_QUESTIONS).format(city=city),
            {"name": "get_weather", "arguments": {"city": city}},
            {"city": city, "temperature": temperature, "condition": condition},
            {condition, str(temperature)},
        )
    a, b = (data.small_addends if kind == "small sum" else data.large_addends)(rng)
    question = rng.choice(data.SUM_QUESTIONS).format(a=a, b=b)
    call = {"name": "calculator", "arguments": {"a": a, "b": b}}
    return Task(question, call, {"result": a + b}, {str(a + b)})


def play(policy: Policy, tasks: list[Task]) -> list[Outcome]:
    """Every task once: a question, the tool's result if the right call comes, an answer."""
    questions: list[Messages] = [[{"role": "user", "content": task.question}] for task in tasks]
    calls = [read_call(text) for text in policy.reply(questions, TOOLS)]
    right = [index for index, task in enumerate(tasks) if calls[index] == task.call]
    continued = [questions[index] + exchange(tasks[index]) for index in right]
    answers = dict(zip(right, policy.reply(continued, TOOLS), strict=True))
    return [
        Outcome(calls[index] is not None, index in answers, task.facts <= words(answers.get(index, "")))
        for index, task in enumerate(tasks)
    ]


def exchange(task: Task) -> Messages:
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": task.call}]}
    return [call, {"role": "tool", "content": json.dumps(task.result, separators=(",", ":"))}]


def read_call(text: str) -> dict[str, Any] | None:
    """The one tool call in a reply; one that is no JSON is {}, none is None."""
    found = TOOL_CALL.search(text)
    if found is None:
        return None
    try:
        return json.loads(found[1])
    except ValueError:
        return {}


def words(text: str) -> set[str]:
    return set(re.findall(r"-?\w+", text))


def share(values: list[bool]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0


def with_tools(policy: Policy, kinds: list[str], tasks: int, repeats: int, rng: Random) -> dict[str, float]:
    """Rates over `tasks` tasks of these kinds, turn and turn about, each played `repeats` times."""
    drawn = [make_task(kinds[index % len(kinds)], rng) for index in range(tasks)]
    outcomes = play(policy, [task for task in drawn for _ in range(repeats)])
    groups = [outcomes[start : start + repeats] for start in range(0, len(outcomes), repeats)]
    return {
        "called": share([outcome.called for outcome in outcomes]),
        "called right": share([outcome.called_right for outcome in outcomes]),
        "stated after a right call": share([outcome.stated for outcome in outcomes if outcome.called_right]),
        "reward": share([outcome.reward for outcome in outcomes]),
        "mixed": share([len({outcome.reward for outcome in group}) > 1 for group in groups]),
    }


def without_tools(policy: Policy, count: int, rng: Random) -> dict[str, float]:
    """How often plain questions get the answer that the model was taught."""
    rates = {}
    for name, ask in PLAIN.items():
        asked = [ask(rng) for _ in range(count)]
        replies = policy.reply([[{"role": "user", "content": question}] for question, _ in asked], None)
        rates[name] = share([reply == answer for reply, (_, answer) in zip(replies, asked, strict=True)])
    return rates


def ask_small_sum(rng: Random) -> tuple[str, str]:
    a, b = data.small_addends(rng)
    return rng.choice(data.SUM_QUESTIONS).format(a=a, b=b), f"The answer is {a + b}."


def ask_small_talk(rng: Random) -> tuple[str, str]:
    answer, openings = rng.choice(list(data.SMALL_TALK.items()))
    return rng.choice(openings), answer


PLAIN: dict[str, Callable[[Random], tuple[str, str]]] = {"small sum": ask_small_sum, "small talk": ask_small_talk}


def evaluate(folder: str, tasks: int = 40, repeats: int = 4, seed: int = 1) -> dict[str, dict[str, float]]:
    torch.manual_seed(seed)
    policy, rng = Policy(folder), Random(seed)
    mixtures = {
        "weather": ["weather"],
        "small sums": ["small sum"],
        "large sums": ["large sum"],
        "half weather, half sums": ["weather", "small sum", "weather", "large sum"],
    }
    report = {name: with_tools(policy, kinds, tasks, repeats, rng) for name, kinds in mixtures.items()}
    return {**report, "without tools": without_tools(policy, tasks, rng)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the embedded model.")
    parser.add_argument("folder")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name, rates in evaluate(args.folder, args.tasks, args.repeats, args.seed).items():
        print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in rates.items()))


if __name__ == "__main__":
    main()
