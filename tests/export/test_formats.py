"""Each format read back by its consumer's own loader, where that is installed."""

import json
from array import array

import pytest
from msgspec.structs import replace
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from pydantic import TypeAdapter

from nemo_gym.dialects.responses.objects import NeMoGymResponse
from nemo_gym.exchange.parts import Media, Message, Other, Text, ToolCall
from nemo_gym.export.exporter import export
from nemo_gym.export.options import Options
from tests.export.made import ASK, TOOL, Job, read_lines, record, two_turns


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    job.rollout("good", *two_turns("good"), reward=1.0, task=0)
    job.rollout("bad", *two_turns("bad", "It is night."), reward=0.0, task=0)
    job.rollout("other", *two_turns("other", city="Rome"), reward=0.5, task=1)
    return job


# ---- TRL


def test_sft_rows_are_conversations_with_tools(job):
    rows = job.lines("sft")
    good = rows[0]
    assert [message["role"] for message in good["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert good["messages"][2]["tool_calls"][0]["function"] == {
        "name": "get_weather",
        "arguments": '{"city": "Prague"}',
    }
    assert good["messages"][4]["content"] == "It is sunny."
    assert good["trained"] == [False, False, True, False, True]
    assert json.loads(good["tools"])[0]["function"]["name"] == "get_weather"
    assert (good["reward"], good["task_id"], good["rollout_id"], good["group_id"]) == (1.0, "0", "good", "run-0")


def test_rows_with_media_are_counted_not_made(tmp_path):
    job = Job(tmp_path)
    picture = Message("user", (Text("What is it?"), Media("image", "data:image/png;base64,AAAA")))
    job.rollout("r", record("r", [1], [2], messages=[picture]))
    job.write()
    summary = export(job.folder, ["sft", "preferences", "prompts"])
    assert {name: one.skipped for name, one in summary.formats.items()} == {
        "sft": {"multimodal": 1},
        "preferences": {"multimodal": 1},
        "prompts": {"multimodal": 1},
    }
    assert summary.left_out == {"nothing_to_train": 1}


def test_text_in_several_parts_is_text(tmp_path):
    """As Codex and Claude Code send what they are told."""
    job = Job(tmp_path)
    parts = Message("user", (Text("You are in a folder."), Text("Write a note.")))
    job.rollout("r", record("r", [1], [2], messages=[parts], said=[Text("Done.")]))
    (row,) = job.lines("sft")
    assert [message["content"] for message in row["messages"]] == ["You are in a folder.\nWrite a note.", "Done."]


def test_what_only_its_provider_can_read_is_counted_not_made(tmp_path):
    job = Job(tmp_path)
    sealed = Message("assistant", (Other("responses", {"type": "compaction", "encrypted_content": "x"}),))
    job.rollout("r", record("r", [1], [2], messages=[ASK, sealed]))
    job.write()
    assert export(job.folder, ["sft"]).formats["sft"].skipped == {"provider_items": 1}


def test_rollouts_without_token_ids_are_conversations_too(tmp_path):
    job = Job(tmp_path)
    first = record("r", None, None, messages=[ASK], said=[Text("Where?")])
    more = [ASK, Message("assistant", (Text("Where?"),)), Message("user", (Text("Here."),))]
    second = record("r", None, None, messages=more, said=[Text("Fine.")], parent_call_id=first.call_id, relation="turn")
    job.rollout("r", first, second)
    (row,) = job.lines("sft")
    assert [message["content"] for message in row["messages"]] == ["Weather in Prague?", "Where?", "Here.", "Fine."]
    assert row["trained"] == [False, True, False, True]


def test_an_answer_that_two_conversations_have_is_trained_in_one(tmp_path):
    job = Job(tmp_path)
    first, second = two_turns("r")
    again = record(
        *("r", [1, 2, 3, 4, 5], [8]),
        messages=second.received.messages,
        said=[Text("Cloudy.")],
        parent_call_id=first.call_id,
        relation="retry",
    )
    job.rollout("r", first, second, again)
    rows = job.lines("sft")
    assert [row["trained"] for row in rows] == [
        [False, False, True, False, True],
        [False, False, False, False, True],
    ]
    (row,) = read_lines_of(job, "sft", branches="main")
    assert row["messages"][-1]["content"] == "Cloudy." and row["trained"] == [False, False, True, False, True]
    (row,) = read_lines_of(job, "sft", branches="last")
    assert row["trained"] == [False, False, False, False, True]
    assert len(read_lines_of(job, "sft", branches="calls")) == 3


def read_lines_of(job, name, **options):
    export(job.folder, [name], options=Options(**options))
    return read_lines(job.folder / "exports" / name)


def test_further_choices_are_counted(tmp_path):
    job = Job(tmp_path)
    one = record("r", [1], [2], messages=[ASK])
    (choice,) = one.reply.choices
    job.rollout("r", replace(one, reply=replace(one.reply, choices=(choice, replace(choice, index=1)))))
    job.write()
    formats = export(job.folder, ["sft", "token_rows"]).formats
    assert (formats["sft"].rows, formats["sft"].skipped, formats["token_rows"].rows) == (1, {"further_choices": 1}, 2)


# ---- OpenAI


def test_openai_rows_are_of_the_sdks_types(job):
    rows = job.lines("openai")
    messages = TypeAdapter(list[ChatCompletionMessageParam])
    tools = TypeAdapter(list[ChatCompletionToolUnionParam])
    for row in rows:
        assert set(row) == {"messages", "tools", "parallel_tool_calls"}
        plain = [{name: value for name, value in one.items() if name != "weight"} for one in row["messages"]]
        messages.validate_python(plain, strict=True)
        tools.validate_python(row["tools"], strict=True)
        assert [one.get("weight") for one in row["messages"]] == [None, None, 1, None, 1]
        assert "reasoning_content" not in row["messages"][2]


# ---- NeMo-RL


def message_log(row):
    """As a trainer puts a NeMo Gym rollout together: each prompt has to go on from all that was before."""
    NeMoGymResponse.model_validate(row["response"])
    seen, log = [], []
    for item in row["response"]["output"]:
        if "generation_token_ids" not in item:
            continue
        prompt = item["prompt_token_ids"]
        assert prompt[: len(seen)] == seen
        log += [(prompt[len(seen) :], None), (item["generation_token_ids"], item["generation_log_probs"])]
        seen = prompt + item["generation_token_ids"]
    return log


def test_nemo_rl_rows_are_rollouts_whose_prompts_go_on(job):
    good, *_ = rows = job.lines("nemo_rl", advantage="rloo")
    assert message_log(good) == [([1, 2], None), ([3, 4], [-0.25, -0.25]), ([5], None), ([6, 7], [-0.25, -0.25])]
    kinds = [item["type"] for item in good["response"]["output"]]
    assert kinds == ["reasoning", "function_call", "function_call_output", "message"]
    assert [row["advantage"] for row in rows] == [1.0, -1.0, 0.0]
    assert good["responses_create_params"]["tools"][0]["name"] == "get_weather"
    assert (good["reward"], good["_ng_task_index"], good["_ng_rollout_id"]) == (1.0, 0, "good")


def test_nemo_rl_rows_of_a_branch_have_the_shared_context_as_prompt(tmp_path):
    job = Job(tmp_path)
    first = record("r", [1], [2])
    turns = [
        record("r", [1, 2, 3], [said], parent_call_id=first.call_id, relation=relation)
        for said, relation in ((4, "turn"), (5, "retry"))
    ]
    job.rollout("r", first, *turns)
    rows = job.lines("nemo_rl")
    assert [[ids for ids, _ in message_log(row)] for row in rows] == [[[1], [2], [3], [4]], [[1, 2, 3], [5]]]


# ---- verl


def test_verl_rows(job):
    good, *_ = job.lines("verl", advantage="grpo")
    assert good["prompt_ids"] == [1, 2]
    assert good["response_ids"] == [3, 4, 5, 6, 7]
    assert good["response_mask"] == [1, 1, 0, 1, 1]
    assert good["response_logprobs"] == [-0.25, -0.25, 0, -0.25, -0.25]
    assert good["num_turns"] == 5 and good["reward_score"] == 1.0
    assert good["extra_fields"]["policy_version"] == [3, 3, -1, 3, 3]
    assert good["extra_fields"]["uid"] == "run-0"
    assert good["extra_fields"]["advantage"] == pytest.approx(2**-0.5, rel=1e-4)


def test_verl_reads_its_rows(job):
    agent_loop = pytest.importorskip("verl.experimental.agent_loop.agent_loop", exc_type=ImportError)
    for row in job.lines("verl"):
        output = agent_loop.AgentLoopOutput.model_validate(row).as_dict()
        assert output["responses"].tolist() == row["response_ids"]
        assert output["response_mask"].tolist() == row["response_mask"]
        assert output["rollout_log_probs"].tolist() == row["response_logprobs"]


# ---- ATIF


def trajectories(job):
    atif = pytest.importorskip("atif")
    return [atif.Trajectory.model_validate(row) for row in job.lines("atif")]


def test_atif_reads_its_trajectories(job):
    good, *_ = trajectories(job)
    assert good.schema_version == "ATIF-v1.8" and good.session_id == "good"
    assert [step.source for step in good.steps] == ["system", "user", "agent", "agent"]
    call, answer = good.steps[2:]
    assert call.tool_calls[0].function_name == "get_weather" and call.tool_calls[0].arguments == {"city": "Prague"}
    assert call.observation.results[0].content == "sun"
    assert call.observation.results[0].source_call_id == call.tool_calls[0].tool_call_id
    assert call.metrics.completion_token_ids == [3, 4] and call.metrics.logprobs == [-0.25, -0.25]
    assert answer.message == "It is sunny." and answer.model_name == "tiny"
    assert good.final_metrics.total_completion_tokens == 4
    assert good.extra["reward"] == 1.0


def test_atif_embeds_sub_agents_and_refers_to_them(tmp_path):
    job = Job(tmp_path)
    first, second = two_turns("r")
    brief = Message("user", (Text("Look outside, please."),))
    sub = record(
        "r", [8], [9], messages=[brief], said=[Text("Sun.")], parent_call_id=first.call_id, relation="subagent"
    )
    job.rollout("r", first, sub, second)
    (row,) = trajectories(job)
    (inner,) = row.subagent_trajectories
    assert [step.message for step in inner.steps] == ["Look outside, please.", "Sun."]
    assert inner.extra["began_as"] == "subagent"
    references = [one.subagent_trajectory_ref for one in row.steps[2].observation.results]
    assert references[1][0].trajectory_id == inner.trajectory_id
    assert len(row.steps) == 4


def test_atif_marks_what_another_trajectory_has(tmp_path):
    job = Job(tmp_path)
    first, second = two_turns("r")
    fields = {"messages": second.received.messages, "parent_call_id": first.call_id, "relation": "retry"}
    job.rollout("r", first, second, record("r", [1, 2, 3, 4, 5], [8], said=[Text("Cloudy.")], **fields))
    (row,) = trajectories(job)
    steps = {step.step_id: step for step in row.steps}
    assert steps[3].is_copied_context and not steps[4].is_copied_context
    (earlier,) = row.subagent_trajectories
    assert [bool(step.is_copied_context) for step in earlier.steps] == [False] * 4


def test_atif_takes_arguments_that_are_no_object_and_log_probs_that_are_not_finite(tmp_path):
    job = Job(tmp_path)
    call = ToolCall("shell", "ls -l", "call_1", custom=True)
    broken = ToolCall("get_weather", '{"city": ', "call_2")
    one = record("r", [1], [2, 3], messages=[ASK], said=[call, broken], tools=[TOOL])
    one.reply.choices[0].tokens.logprobs[0] = float("-inf")
    job.rollout("r", one)
    (row,) = trajectories(job)
    first, second = row.steps[1].tool_calls
    assert first.arguments == {"input": "ls -l"}
    assert second.arguments == {} and second.extra == {"arguments": '{"city": '}
    assert row.steps[1].metrics.logprobs is None and row.steps[1].metrics.completion_token_ids == [2, 3]


def test_numbers_are_the_engines(tmp_path):
    """A float32 is written so that it reads back as the same float32."""
    job = Job(tmp_path)
    one = record("r", [1], [2, 3])
    one.reply.choices[0].tokens.logprobs[:] = array("f", [-0.1, -1e-30])
    job.rollout("r", one)
    (row,) = job.lines("verl")
    assert array("f", row["response_logprobs"]) == one.reply.choices[0].tokens.logprobs
