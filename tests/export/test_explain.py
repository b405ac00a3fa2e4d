"""How a rollout's sequences came about, and the command that tells it; breaks whose cause no capture has."""

import json

import pytest

from nemo_gym.cli.export import main
from nemo_gym.exchange.parts import Message, Reasoning, Text, ToolCall, ToolResult
from nemo_gym.export.explain import explain, lines
from nemo_gym.export.exporter import export
from nemo_gym.export.options import ExportError
from tests.export.made import ASK, TOOL, Job, record

CALL = ToolCall("get_weather", '{"city": "Prague"}', "call_1")
RESULT = Message("tool", (ToolResult("call_1", (Text("sun"),)),))


def turns(second_prompt, said, returned, **more):
    """A turn and the next one, whose history has `returned` for what was said."""
    first = record("r", [1, 2], [3, 4], messages=[ASK], said=said, tools=[TOOL])
    history = [ASK, *([Message("assistant", tuple(returned))] if returned else []), RESULT]
    fields = {"messages": history, "tools": [TOOL], "parent_call_id": first.call_id, "relation": "turn"}
    return first, record("r", second_prompt, [7, 8], **(fields | more))


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def explained(job, *records):
    job.rollout("r", *records)
    job.write()
    return explain(job.folder, "r")


@pytest.mark.parametrize(
    ("said", "returned", "cause"),
    [
        ([Reasoning("hm"), CALL], [CALL], "reasoning_dropped"),
        ([CALL], [ToolCall("get_weather", '{"city":"Prague"}', "call_1")], "arguments_reserialised"),
        ([CALL], [CALL], "template_boundary"),
        ([CALL], [], "foreign_history"),
    ],
)
def test_a_break_that_the_capture_does_not_name_gets_its_cause(job, said, returned, cause):
    told = explained(job, *turns([1, 2, 3, 5, 6], said, returned))
    first, second = told.sequences
    assert (first.beginning.cause, first.difference) == ("first", None)
    assert (second.beginning.cause, second.beginning.position) == (cause, 3)
    assert (second.difference.before, second.difference.were, second.difference.are) == ([1, 2, 3], [4], [5, 6])
    assert second.difference.of == 4
    assert export(job.folder, ["token_rows"]).sequences == {"first": 1, cause: 1}


def test_the_capture_has_the_last_word(job):
    told = explained(job, *turns([1, 9], [CALL], [CALL], prefix_break=(1, "neighbouring_tokens")))
    second = told.sequences[1]
    assert (second.beginning.cause, second.beginning.position) == ("neighbouring_tokens", 1)
    assert (second.difference.were, second.difference.are) == ([2, 3, 4], [9])


def test_it_is_told_in_words(job):
    told = explained(job, *turns([1, 2, 3, 5, 6], [Reasoning("hm"), CALL], [CALL]))
    words = list(lines(told))
    assert words[0] == "rollout r: 2 calls, 2 sequences"
    assert "policy_model  turn of call 1  5 prompt + 2 generated" in words[2]
    text = "\n".join(words)
    assert "sequence 1: 7 tokens, 2 trained; broke: reasoning_dropped after call 1" in text
    assert "the prompt leaves that call's 4 tokens at 3, after … 1 2 3\n    they were 4\n    they are  5 6" in text
    assert words[-1] == "tokens: 11 captured = 4 trained + 7 context"


def test_what_is_not_trained_says_why(job):
    judge = record("r", [9], [10], trainable=False, server="judge_model")
    blind = record("r", None, None)
    text = "\n".join(lines(explained(job, record("r", [1], [2]), judge, blind)))
    assert "1 prompt + 1 generated   not trained: not_trainable" in text
    assert "no token ids   not trained: no_token_ids" in text
    assert "4 captured = 1 trained + 1 context + 2 discarded (not_trainable)" in text


def test_a_rollout_that_is_left_out_is_explained_too(job):
    job.rollout("r", record("r", [1], [2]), incomplete="deadline")
    job.record(record("killed", [1], [2]))
    job.write()
    assert len(explain(job.folder, "killed").sequences) == 1
    assert len(explain(job.folder, "r", branches="last").sequences) == 1
    with pytest.raises(ExportError, match="no call of a rollout 'nowhere'"):
        explain(job.folder, "nowhere")
    with pytest.raises(ExportError, match="no captures"):
        explain(job.folder / "nowhere", "r")


def test_the_command_explains(job, capsys):
    explained(job, *turns([1, 2, 3, 5, 6], [CALL], [CALL]))
    assert main([str(job.folder), "--explain", "r"]) == 0
    assert "broke: template_boundary after call 1" in capsys.readouterr().out
    assert main([str(job.folder), "--explain", "r", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["account"] == {"captured": 11, "trained": 4, "context": 7, "discarded": {}, "calls": {}}
    assert told["sequences"][1]["beginning"]["cause"] == "template_boundary"
    assert not (job.folder / "exports").exists()
    assert main([str(job.folder), "--explain", "nowhere"]) == 2
    assert "no call of a rollout 'nowhere'" in capsys.readouterr().err


def test_the_commands_options_reach_the_export(job, tmp_path, capsys):
    for number in range(4):
        job.rollout(f"r-{number}", record(f"r-{number}", [1], [2, number]), reward=number / 4, task=number)
    job.write()
    target = tmp_path / "elsewhere"
    options = ["--min-reward", "0.25", "--where", "task < 3", "--split", "train=0.5,test=0.5", "--advantage", "plain"]
    assert main([str(job.folder), "-f", "token_rows", "-f", "sft", *options, "--to", str(target)]) == 0
    said = capsys.readouterr().out
    assert "left out: 1 rollouts (filter_reward)" in said and "left out: 1 rollouts (filter_where)" in said
    assert "sequences by their beginning: 2 first" in said
    assert {path.name for path in target.iterdir()} >= {"token_rows", "sft", "manifest.json", "README.md"}
    assert main([str(job.folder), "--where", "nonsense("]) == 2
    assert "ng_export: where:" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(job.folder), "--split", "train"])
    assert "'train' is not NAME=SHARE" in capsys.readouterr().err
