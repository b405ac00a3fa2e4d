"""Rollout rows as NeMo-RL and verl have them: one a training sequence.

Both take what comes before the first token that is trained as the prompt. So a branch's row trains only what is its
own, as in `token_rows`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ...capture.record import CallRecord
from ...dialects import responses
from ...exchange.request import ModelRequest
from ..forest import WIDTH, Generation, prefix
from ..sequences import Sequence as Tokens
from .format import JsonLines, Rollout, floats, ints


class NemoRl(JsonLines):
    name = "nemo_rl"
    needs_tokens = True
    card = """## nemo_rl

One row a training sequence, in the shape of a NeMo Gym rollout: `responses_create_params`, `response`, `reward`. The
last output item of each answer that is trained carries `prompt_token_ids`, `generation_token_ids` and
`generation_log_probs`; each prompt begins with the one before it and its answer, id by id. `advantage` is null unless
it was asked for.
"""

    def rows(self, rollout: Rollout, skipped: Counter[str]) -> Iterator[Mapping[str, Any]]:
        for sequence in rollout.sequences:
            try:
                yield _nemo_gym(rollout, sequence)
            except KeyError:
                skipped["unreadable"] += 1  # contents that are no longer in the captures


def _nemo_gym(rollout: Rollout, sequence: Tokens) -> dict[str, Any]:
    entry = rollout.entry
    records = [one.call.record() for one in sequence.trained]
    output: list[dict[str, Any]] = []
    for number, (one, record) in enumerate(zip(sequence.trained, records, strict=True)):
        if number:
            output += _observed(sequence.trained[number - 1], record)
        output += _answer(one, record)
    first, last = _request(records[0]), records[-1]
    assert last.reply is not None
    return {
        "responses_create_params": responses.write_request(replace(first, origin=None)),
        "response": responses.write_reply(last.reply, _request(last)) | {"output": output},
        "reward": entry.reward,
        "advantage": entry.advantage,
        "_ng_task_index": entry.task,
        "_ng_rollout_id": entry.rollout_id,
        "agent_ref": {"type": "responses_api_agents", "name": entry.agent},
        "task_id": entry.task_id,
        "group_id": rollout.group_id,
        "run_id": rollout.run_id,
        "branch": sequence.branch,
    }


def _request(record: CallRecord) -> ModelRequest:
    return record.received or record.sent or ModelRequest(())


def _answer(one: Generation, record: CallRecord) -> list[dict[str, Any]]:
    assert record.reply is not None
    choice = next(choice for choice in record.reply.choices if choice.index == one.spoken.index)
    items: list[dict[str, Any]] = responses.write_reply(replace(record.reply, choices=(choice,)), _request(record))[
        "output"
    ]
    if not items:  # it said nothing but its end token
        items = [{"type": "message", "role": "assistant", "status": "completed", "content": []}]
    items[-1] |= {
        "prompt_token_ids": ints(prefix(one, one.start)),
        "generation_token_ids": ints(one.ids),
        "generation_log_probs": floats(one.logprobs or b""),
    }
    return items


def _observed(before: Generation, record: CallRecord) -> list[dict[str, Any]]:
    """What came between two answers: tool results, the user's next words."""
    request = _request(record)
    new = [one for one in request.messages[before.call.messages :] if one.role != "assistant"]
    written: list[dict[str, Any]] = responses.write_request(ModelRequest(tuple(new), request.tools))["input"]
    return written


class Verl(JsonLines):
    name = "verl"
    needs_tokens = True
    card = """## verl

One row a training sequence, with the fields of verl's `AgentLoopOutput`: `prompt_ids`, `response_ids`, `response_mask`,
`response_logprobs`, `reward_score`, `num_turns`, `metrics`, `extra_fields` (`uid`, which is the group; `policy_version`
of each response token, -1 where there is none; `advantage`, null unless it was asked for; the names).
"""

    def rows(self, rollout: Rollout, skipped: Counter[str]) -> Iterator[Mapping[str, Any]]:
        for sequence in rollout.sequences:
            start = sequence.trained[0].start
            at = start * WIDTH
            yield {
                "prompt_ids": ints(sequence.input_ids[:at]),
                "response_ids": ints(sequence.input_ids[at:]),
                "response_mask": list(sequence.loss_mask[start:]),
                "response_logprobs": floats(sequence.logprobs[at:]),
                "reward_score": rollout.entry.reward,
                "num_turns": sequence.generations[-1].call.messages + 1,
                "metrics": {},
                "extra_fields": {
                    "uid": rollout.group_id,
                    "policy_version": ints(sequence.policy_version[at:]),
                    "advantage": rollout.entry.advantage,
                    "branch": sequence.branch,
                    **rollout.named(),
                },
            }
