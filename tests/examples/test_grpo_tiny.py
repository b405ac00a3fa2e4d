"""The parts of the loop by themselves: which tasks are held out, what a step does, what is imitated."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from examples.grpo_tiny import tasks

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def test_what_is_held_out_is_never_trained_on() -> None:
    trained = list(islice(tasks.training(0), 600))
    held = tasks.held_out(80)
    assert held == tasks.held_out(80) and trained[:20] == list(islice(tasks.training(0), 20))
    assert trained[:20] != list(islice(tasks.training(1), 20))

    def asked(rows: list[tasks.Task]) -> tuple[set[str], set[tuple[int, int]]]:
        cities = {row["expected"]["city"] for row in rows if row["expected"]["tool"] == "get_weather"}
        return cities, {(one["a"], one["b"]) for row in rows if (one := row["expected"])["tool"] == "calculator"}

    (cities, sums), (held_cities, held_sums) = asked(trained), asked(held)
    assert 40 < len(cities) <= 48 and len(held_cities) > 8 and len(sums) > 100 and len(held_sums) > 15
    assert not cities & held_cities and not sums & held_sums


@pytest.fixture(scope="module")
def policy() -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from examples.grpo_tiny import policy

    return policy


def some_rows(policy: Any) -> Any:
    """Rows that begin alike, each with two stretches that are trained, of unlike length."""
    ids = [[1, 5, 6, 7, 8, *[10 + row, 20, 30 + row, 40][: 3 + row % 2], 50, 51 + row] for row in range(5)]
    return policy.of_ids([(one, [0] * 5 + [1, 1] + [0] * (len(one) - 9) + [1, 1]) for one in ids])


@pytest.mark.ci
def test_log_probs_are_the_models_own(policy: Any) -> None:
    """Also where the beginning that rows share is read once, and in whatever parts."""
    import torch

    rows, learner = some_rows(policy), policy.Policy(policy.BASE, 1e-3)
    found = [one.log() for one in learner.ratios(rows)]  # captured log-probs are 0 here
    with torch.no_grad():
        logits = learner._model(rows.input_ids).logits[:, :-1].log_softmax(-1)
    expected = logits.gather(2, rows.input_ids[:, 1:, None])[:, :, 0]
    assert len(found) == 5
    # Rows are taken by length, so they are told apart by what they are.
    wanted = [expected[row][rows.trained[row, 1:]] for row in range(5)]
    for one in wanted:
        assert any(one.shape == other.shape and torch.allclose(one, other, atol=1e-4) for other in found)


@pytest.mark.ci
def test_a_step_raises_what_was_good_and_lowers_what_was_bad(policy: Any) -> None:
    import torch

    rows, learner = some_rows(policy), policy.Policy(policy.BASE, 1e-4)
    rows.logprobs = sampled(policy, learner, rows)
    assert max(abs(float(one.mean()) - 1) for one in learner.ratios(rows)) < 1e-4
    rows.advantage = torch.tensor([1.0, -1.0, 0.0, 1.0, -1.0])
    step = learner.step(rows)
    assert (step.rows, step.clipped) == (4, 0.0) and step.gradient > 0
    assert step.ratio == pytest.approx((1, 1), abs=1e-4)
    after = sampled(policy, learner, rows)
    change = (after - rows.logprobs).sum(1)
    assert bool((change * rows.advantage)[rows.advantage != 0].sum() > 0)


@pytest.mark.ci
def test_older_rows_are_weighted_and_cut(policy: Any) -> None:
    """A token that has become twice as likely counts as much as the trust region lets it, and moves nothing if good."""
    import math

    import torch

    rows, learner = some_rows(policy), policy.Policy(policy.BASE, 1e-4)
    rows.logprobs = sampled(policy, learner, rows) - math.log(2) * rows.trained
    rows.advantage = torch.ones(5)
    step = learner.step(rows)
    assert step.ratio == pytest.approx((2, 2), rel=1e-3)
    assert step.clipped == 1.0 and step.gradient == 0.0
    rows.advantage = -torch.ones(5)
    assert learner.step(rows).gradient > 0


def sampled(policy: Any, learner: Any, rows: Any) -> Any:
    """The policy's log-probs where rows are trained."""
    import torch

    with torch.no_grad():
        logits = learner._model(rows.input_ids).logits[:, :-1].log_softmax(-1)
    found = torch.zeros_like(rows.logprobs)
    found[:, 1:] = logits.gather(2, rows.input_ids[:, 1:, None])[:, :, 0]
    return found * rows.trained


@pytest.mark.ci
def test_what_the_assistant_said_is_imitated(policy: Any) -> None:
    from transformers import AutoTokenizer

    from examples.grpo_tiny.imitation import encoded

    tokenizer = AutoTokenizer.from_pretrained(policy.BASE)
    messages = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"condition": "sunny"}', "tool_call_id": "c"},
        {"role": "assistant", "content": "It is sunny."},
    ]
    row = {"messages": messages, "tools": json.dumps(TOOLS), "trained": [False, True, False, True]}
    ids, mask = encoded(row, tokenizer)
    assert len(ids) == len(mask)
    learnt = tokenizer.decode([one for one, is_learnt in zip(ids, mask, strict=True) if is_learnt])
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
    assert learnt == f"{call}It is sunny.<|im_end|>"
    whole = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False)
    assert whole.startswith(tokenizer.decode(ids))
    row["trained"] = [False, False, False, True]
    _, mask = encoded(row, tokenizer)
    assert sum(mask) == len(tokenizer("It is sunny.<|im_end|>", add_special_tokens=False)["input_ids"])


@pytest.mark.ci
def test_a_checkpoint_is_whole(policy: Any, tmp_path: Any) -> None:
    from safetensors import safe_open
    from transformers import AutoTokenizer

    folder = policy.Policy(policy.BASE, 1e-3).save(tmp_path / "weights" / "000")
    with (
        safe_open(folder / "model.safetensors", "pt") as weights,
        safe_open(policy.BASE / "model.safetensors", "pt") as base,
    ):
        assert set(weights.keys()) == set(base.keys())
    assert (
        AutoTokenizer.from_pretrained(folder).chat_template == AutoTokenizer.from_pretrained(policy.BASE).chat_template
    )
    assert [path.name for path in folder.parent.iterdir()] == ["000"]
