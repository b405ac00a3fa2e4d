"""Forests, sequences, breaks and accounts of made-up rollouts, random ones included."""

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.export.account import exported, left_out
from nemo_gym.export.breaks import beginning, shared
from nemo_gym.export.forest import Forest
from nemo_gym.export.options import BRANCHES
from nemo_gym.export.sequences import NO_VERSION, choose, sequences
from tests.export.made import captured, spoken


def ints(data):
    return array("i", data).tolist()


def floats(data):
    return array("f", data).tolist()


def accounted(calls, branches="all"):
    forest = Forest(calls)
    choose(forest, branches)
    rows = list(sequences(forest, branches))
    account = exported(forest, rows)
    assert account.adds_up
    assert sum(sum(row.loss_mask) for row in rows) == account.trained
    return rows, account


def ids_of(rows):
    return [ints(row.input_ids) for row in rows]


def masks_of(rows):
    return [list(row.loss_mask) for row in rows]


def began(calls):
    forest = Forest(calls)
    return [beginning(row, forest) for row in sequences(forest)]


def test_two_turns_are_one_sequence():
    turns = [
        captured([1, 2], [3, 4], call="a"),
        captured([5, 6], spoken([7], versions=((0, 8),)), parent="a", shared=4, relation="turn"),
    ]
    (row,), account = accounted(turns)
    assert ints(row.input_ids) == [1, 2, 3, 4, 5, 6, 7]
    assert list(row.loss_mask) == [0, 0, 1, 1, 0, 0, 1]
    assert floats(row.logprobs) == [0, 0, -3, -4, 0, 0, -7]
    assert ints(row.policy_version) == [-1, -1, 7, 7, -1, -1, 8]
    assert (account.captured, account.trained, account.context) == (7, 3, 4)


def test_a_turn_is_found_by_its_tokens_when_no_parent_is_recorded():
    (row,), account = accounted([captured([1, 2], [3, 4]), captured([1, 2, 3, 4, 5], [7])])
    assert list(row.loss_mask) == [0, 0, 1, 1, 0, 1]
    assert account.captured == 6


def test_the_longest_beginning_wins_over_the_recorded_parent():
    calls = [
        captured([1], [2], call="a"),
        captured([3], [4], call="b", parent="a", shared=2, relation="turn"),
        captured([3, 4, 5], [6], call="c", parent="a", shared=2, relation="turn"),
    ]
    rows, _ = accounted(calls)
    assert ids_of(rows) == [[1, 2, 3, 4, 5, 6]]


def test_a_history_that_changed_is_a_sequence_of_its_own():
    calls = [captured([1, 2], [3], call="a"), captured([9, 3], [4], parent="a", shared=1, relation="turn")]
    rows, account = accounted(calls)
    assert ids_of(rows) == [[1, 2, 3], [1, 9, 3, 4]]
    assert masks_of(rows) == [[0, 0, 1], [0, 0, 0, 1]]
    assert [row.branch for row in rows] == [0, 1]
    assert account.captured == 7


def test_a_branch_trains_only_what_is_its_own():
    calls = [
        captured([1], [2], call="a"),
        captured([3], [4], call="b", parent="a", shared=2, relation="turn"),
        captured([5], [6], call="c", parent="a", shared=2, relation="turn"),
        captured([], [8], call="d", parent="b", shared=4, relation="turn"),
    ]
    rows, account = accounted(calls)
    assert ids_of(rows) == [[1, 2, 3, 4, 8], [1, 2, 5, 6]]
    assert masks_of(rows) == [[0, 1, 0, 1, 1], [0, 0, 0, 1]]
    assert (account.trained, account.context) == (4, 3)
    assert [one.cause for one in began(calls)] == ["first", "fork"]


def test_choices_of_one_call_share_their_prompt():
    calls = [captured([1, 2], [3], [4], call="a"), captured([5], [6], parent="a", shared=3, choice=1, relation="turn")]
    rows, account = accounted(calls)
    assert ids_of(rows) == [[1, 2, 3], [1, 2, 4, 5, 6]]
    assert (account.captured, account.context) == (6, 3)
    assert [one.cause for one in began(calls)] == ["first", "choice"]


def test_what_is_not_trained_is_context_or_nothing():
    calls = [
        captured([1], [2], call="a", trainable=False),
        captured([3], [4], call="b", parent="a", shared=2, relation="turn"),
        captured([5], [6], parent="b", shared=4, relation="turn", status="disconnected"),
    ]
    (row,), account = accounted(calls)
    assert ints(row.input_ids) == [1, 2, 3, 4]
    assert list(row.loss_mask) == [0, 0, 0, 1]
    assert account.discarded == {"not_trainable": 1, "disconnected": 2}
    assert (account.captured, account.trained, account.context) == (6, 1, 2)


def test_a_repeat_of_a_sample_does_not_take_its_place():
    calls = [captured([1], [2], relation="repeat"), captured([1], [2]), captured([1, 2, 3], [4])]
    (row,), account = accounted(calls)
    assert list(row.loss_mask) == [0, 1, 0, 1]
    assert account.discarded == {"repeat": 2}


def test_versions_may_change_within_a_call():
    (row,), _ = accounted([captured([1], spoken([2, 3, 4], versions=((0, 1), (2, 5))))])
    assert ints(row.policy_version) == [NO_VERSION, 1, 1, 5]
    (row,), _ = accounted([captured([1], spoken([2], versions=()))])
    assert ints(row.policy_version) == [NO_VERSION, NO_VERSION]


def test_a_call_whose_parent_is_gone_is_discarded_with_its_own_tokens():
    rows, account = accounted([captured([1], [2]), captured([3], [4, 5], parent="lost", shared=9, relation="turn")])
    assert ids_of(rows) == [[1, 2]]
    assert account.discarded == {"parent_missing": 3}


def test_a_call_that_said_nothing_is_no_sequence():
    rows, account = accounted([captured([1], [2], call="a"), captured([3], [], parent="a", shared=2, relation="turn")])
    assert ids_of(rows) == [[1, 2]]
    assert account.discarded == {"empty": 1}


AGENT = [
    captured([1], [2], call="first"),
    captured([5], [6], call="sub", parent="first", relation="subagent"),
    captured([7], [8], call="sub2", parent="sub", shared=2, relation="turn"),
    captured([3], [4], call="turn", parent="first", shared=2, relation="turn"),
    captured([3], [9], call="again", parent="first", shared=2, relation="retry"),
    captured([10], [11], call="aside", relation="side"),
    captured([12], [13], call="summary", parent="again", relation="compaction"),
    captured([14], [15], call="last", parent="summary", shared=2, relation="turn"),
]


def test_branches_of_a_rollout_with_everything():
    rows, _ = accounted(AGENT)
    assert ids_of(rows) == [[1, 2, 3, 4], [1, 2, 3, 9], [5, 6, 7, 8], [10, 11], [12, 13, 14, 15]]
    assert [one.cause for one in began(AGENT)] == ["first", "retry", "subagent", "side", "compaction"]
    assert [one.is_break for one in began(AGENT)] == [False, True, False, False, True]


def test_the_main_line_leaves_out_sub_agents_and_answers_that_were_asked_for_anew():
    rows, account = accounted(AGENT, "main")
    assert ids_of(rows) == [[1, 2, 3, 9], [12, 13, 14, 15]]
    assert sum(account.discarded.values()) == 8 and set(account.discarded) == {"off_main_line"}


def test_the_last_call_alone():
    (row,), account = accounted(AGENT, "last")
    assert ints(row.input_ids) == [12, 13, 14, 15] and list(row.loss_mask) == [0, 0, 0, 1]
    assert account.trained == 1 and set(account.discarded) == {"not_last_call"}


def test_one_sequence_a_call():
    rows, account = accounted(AGENT, "calls")
    assert len(rows) == len(AGENT) and all(sum(row.loss_mask) == 1 for row in rows)
    assert account.trained == 8 and account.discarded == {}


def test_a_break_has_the_cause_that_the_capture_has():
    calls = [
        captured([1, 2], [3], call="a"),
        captured([9], [4], parent="a", shared=2, relation="turn", prefix_break=(2, "reasoning_dropped")),
        captured([5], [6]),
    ]
    first, broken, foreign = began(calls)
    assert (first.cause, first.is_break) == ("first", False)
    assert (broken.cause, broken.position, broken.before, broken.is_break) == ("reasoning_dropped", 2, "a", True)
    assert (foreign.cause, foreign.is_break) == ("foreign_history", True)


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_what_two_sequences_share(first, second):
    alike = next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    assert shared(array("i", first).tobytes(), array("i", second).tobytes()) == alike


def drawn(draw):
    """A random rollout as (calls, each call's whole prompt); all ids that are said are different ones."""
    calls, wholes, prompts, fresh = [], [], [], iter(range(10_000))
    for number in range(draw.randint(1, 12)):
        known = draw.random() < 0.8 and wholes
        base, whole = draw.choice(wholes) if known else (None, [])
        kept = len(whole)
        if whole and draw.random() < 0.25:
            kept = draw.randrange(len(whole))  # a history that was rewritten
        new = [next(fresh) for _ in range(draw.randint(0 if kept else 1, 3))]
        said = [[next(fresh) for _ in range(draw.randint(0, 4))] for _ in range(draw.choice([1, 1, 1, 2, 3]))]
        linked = known and draw.random() < 0.8  # a server that was started anew knows no parent
        relation = draw.choice(["turn", "turn", "retry", "subagent", "compaction"]) if linked else "first"
        fields = {"trainable": draw.random() < 0.9, "status": draw.choice(["answered"] * 5 + ["failed"])}
        fields |= {"late": draw.random() < 0.05, "relation": relation if draw.random() < 0.95 else "repeat"}
        if linked:
            call, choice = base
            fields |= {"parent": call, "shared": kept, "choice": choice}
            prompt = new
        else:
            prompt = whole[:kept] + new
        calls.append(captured(prompt, *said, call=str(number), **fields))
        prompts.append(whole[:kept] + new)
        wholes += [((str(number), index), whole[:kept] + new + ids) for index, ids in enumerate(said)]
    return calls, prompts


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(BRANCHES))
def test_every_generated_token_is_in_exactly_one_place(seed, branches):
    calls, prompts = drawn(random.Random(seed))
    forest = Forest(calls)
    choose(forest, branches)
    rows = list(sequences(forest, branches))
    account = exported(forest, rows)
    trained = [token for row in rows for token, mask in zip(ints(row.input_ids), row.loss_mask, strict=True) if mask]
    discarded = [token for one in forest.generations if one.discarded is not None for token in ints(one.ids)]
    said = [token for call in calls for one in call.choices for token in ints(one.ids)]
    assert sorted(trained + discarded) == sorted(said)
    assert account.adds_up and account.trained == len(trained)
    assert left_out(calls, "any").captured == account.captured
    known = [prompt + ints(one.ids) for call, prompt in zip(calls, prompts, strict=True) for one in call.choices]
    for row in rows:
        assert ints(row.input_ids) in known  # copied, never re-made
        columns = zip(ints(row.input_ids), row.loss_mask, floats(row.logprobs), ints(row.policy_version), strict=True)
        for token, mask, logprob, version in columns:
            assert (logprob, version) == ((-token, 7) if mask else (0, NO_VERSION))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_generation_hangs_below_the_longest_that_its_prompt_begins_with(seed):
    calls, prompts = drawn(random.Random(seed))
    forest = Forest(calls)
    before = []
    for call, prompt in zip(calls, prompts, strict=True):
        made = forest.of_call(call.call_id)
        lengths = [len(whole) for whole in before if prompt[: len(whole)] == whole]
        assert [0 if one.parent is None else one.parent.end for one in made] == [max(lengths, default=0)] * len(made)
        before += [prompt + ints(one.ids) for one in call.choices]


@pytest.mark.parametrize("branches", BRANCHES)
def test_a_long_rollout_takes_the_memory_of_what_is_new(branches):
    calls = [captured([0, 1], [2, 3], call="0")]
    for number in range(1, 400):
        calls.append(
            captured([4], [5], call=str(number), parent=str(number - 1), shared=2 + 2 * number, relation="turn")
        )
    forest = Forest(calls)
    assert sum(len(one.added) + len(one.ids) for one in forest.generations) == 4 * (4 + 2 * 399)
    rows, account = accounted(calls, branches)
    assert account.captured == 802 and len(rows) == (400 if branches == "calls" else 1)
