import json

import pytest

from nemo_gym.rollouts.results import Fields, ResultsError, files, read, row
from tests.rollouts import stored


def test_what_is_measured_of_a_line(tmp_path):
    items = [
        {"type": "reasoning", "summary": []},
        stored.call("add", "{}", "c1"),
        stored.call("add", "{}", "c2"),
        stored.output("4", "c1"),
        stored.output("5", "c2"),
        stored.message("Four.", generation_log_probs=[-0.5, -1.5], generation_token_ids=[1, 2]),
    ]
    cut = stored.row(3, 1, 1, items, category="sums", extracted_answer="4", mask_sample=True)
    cut["response"]["incomplete_details"] = {"reason": "max_output_tokens"}
    plain = stored.row(4, 0, 0.5, category="code")
    folder = stored.write(tmp_path / "job", [cut, plain])
    one, two = read([folder])
    assert (one.task, one.repeat, one.agent, one.rollout_id, one.reward) == (3, 1, "agent", "run-3-1", 1.0)
    assert (one.subset, one.answer, one.masked, one.cut_off) == ("sums", "4", True, True)
    assert (one.turns, one.tool_calls, one.log_prob) == (2, 2, -1.0)
    assert (one.prompt_tokens, one.output_tokens, one.seconds, one.calls) == (13, 3, 2.5, 1)
    assert (two.subset, two.answer, two.masked, two.cut_off, two.log_prob) == ("code", None, False, False, None)
    assert row(two) == plain


def test_fields_are_chosen(tmp_path):
    rows = [stored.row(0, 0, 1, expected={"tool": "add"}, said=7.0, category="x")]
    folder = stored.write(tmp_path, rows)
    (one,) = read([folder], Fields(subset="expected.tool", answer="said"))
    assert (one.subset, one.answer) == ("add", "7")
    (one,) = read([folder], Fields(subset="expected.nothing", answer=""))
    assert (one.subset, one.answer) == (None, None)


def test_lines_as_nemo_gym_writes_them(tmp_path):
    """No meta of ours, no usage, no agent; a reward that is a bool or a whole number."""
    path = tmp_path / "rollouts.jsonl"
    foreign = [{"_ng_task_index": 0, "reward": True, "response": {"output": []}}, {"_ng_task_index": 1, "reward": 2}]
    path.write_text("\n".join(map(json.dumps, foreign)) + "\n\n")
    one, two = read([path])
    assert (one.reward, one.repeat, one.agent, one.turns, one.seconds, one.output_tokens) == (1.0, 0, "", 0, None, None)
    assert two.reward == 2.0


def test_a_torn_last_line_is_left_out(tmp_path):
    folder = stored.run_of(tmp_path, {0: [1.0, 0.0]})
    with (folder / "rollouts.jsonl").open("a") as file:
        file.write('{"_ng_task_index": 1, "rew')
    assert [one.reward for one in read([folder])] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "_ng_task_index"),
        ('{"_ng_task_index": "x", "reward": 1}', "_ng_task_index: Expected `int"),
        ('{"_ng_task_index": 0, "reward": null}', "reward: is null"),
        ('{"_ng_task_index": 0, "reward": "1"}', "reward: Expected"),
        ('{"_ng_task_index": 0, "reward": 1, "response": []}', "response: Expected"),
        ("[1]", "Expected `object`"),
        ("\x00", "malformed"),
        ('{"_ng_task_index": 0, "reward": NaN}', "malformed"),
    ],
)
def test_what_is_no_rollout_is_named(tmp_path, line, said):
    folder = stored.run_of(tmp_path, {0: [1.0]})
    with (folder / "rollouts.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ResultsError, match=r"rollouts\.jsonl, at byte \d+: no rollout") as raised:
        read([folder])
    assert said in str(raised.value)


def test_folders_files_and_patterns(tmp_path):
    a, b = stored.run_of(tmp_path / "a", {0: [1.0]}), stored.run_of(tmp_path / "b", {1: [1.0]})
    both = [a / "rollouts.jsonl", b / "rollouts.jsonl"]
    assert files([a, b / "rollouts.jsonl", a]) == both
    assert files([str(tmp_path / "*")]) == both
    assert files([tmp_path / "a.jsonl"]) == both[:1]  # a job's output, named as NeMo Gym names it
    with pytest.raises(ResultsError, match="nothing matches"):
        files([str(tmp_path / "c*")])
    with pytest.raises(ResultsError, match="there is no"):
        files([tmp_path / "c"])
