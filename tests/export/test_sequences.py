"""Forests, sequences and accounts of made-up rollouts, random ones included."""

import random
from array import array
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.export.account import Account
from nemo_gym.export.forest import Generation, forest
from nemo_gym.export.sequences import NO_VERSION, sequences


def generation(prompt, ids, *, call="c", choice=0, discarded=None, versions=((0, 7),)):
    record = SimpleNamespace(call_id=call, run_id="run")
    logprobs = array("f", [-float(token) for token in ids])
    return Generation(record, choice, array("i", prompt), array("i", ids), logprobs, versions, discarded, "m")


def accounted(generations):
    rows = list(sequences(forest(generations)))
    account = Account()
    account.rollout(generations, rows)
    assert account.adds_up
    assert sum(sum(row.loss_mask) for row in rows) == account.trained
    return rows, account


def test_two_turns_are_one_sequence():
    turns = [generation([1, 2], [3, 4], call="a"), generation([1, 2, 3, 4, 5, 6], [7], call="b", versions=((0, 8),))]
    (row,), account = accounted(turns)
    assert row.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert row.loss_mask.tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert row.logprobs.tolist() == [0, 0, -3, -4, 0, 0, -7]
    assert row.policy_version.tolist() == [-1, -1, 7, 7, -1, -1, 8]
    assert (account.captured, account.trained, account.context) == (7, 3, 4)


def test_a_history_that_changed_is_a_sequence_of_its_own():
    rows, account = accounted([generation([1, 2], [3], call="a"), generation([1, 9, 3], [4], call="b")])
    assert [row.loss_mask.tolist() for row in rows] == [[0, 0, 1], [0, 0, 0, 1]]
    assert [row.branch for row in rows] == [0, 1]
    assert account.captured == 7


def test_a_branch_trains_only_what_is_its_own():
    first = generation([1], [2], call="a")
    rows, account = accounted(
        [
            first,
            generation([1, 2, 3], [4], call="b"),
            generation([1, 2, 5], [6], call="c"),
            generation([1, 2, 3, 4], [8], call="d"),
        ]
    )
    assert [row.input_ids.tolist() for row in rows] == [[1, 2, 3, 4, 8], [1, 2, 5, 6]]
    assert [row.loss_mask.tolist() for row in rows] == [[0, 1, 0, 1, 1], [0, 0, 0, 1]]
    assert (account.trained, account.context) == (4, 3)


def test_choices_of_one_call_share_their_prompt():
    rows, account = accounted([generation([1, 2], [3], choice=0), generation([1, 2], [4], choice=1)])
    assert [row.input_ids.tolist() for row in rows] == [[1, 2, 3], [1, 2, 4]]
    assert (account.captured, account.context) == (4, 2)


def test_what_is_not_trained_is_context_or_nothing():
    judged = generation([1], [2], call="a", discarded="not_trainable")
    last = generation([1, 2, 3, 4, 5], [6], call="c", discarded="disconnected")
    (row,), account = accounted([judged, generation([1, 2, 3], [4], call="b"), last])
    assert row.input_ids.tolist() == [1, 2, 3, 4]
    assert row.loss_mask.tolist() == [0, 0, 0, 1]
    assert account.discarded == {"not_trainable": 1, "disconnected": 2}
    assert (account.captured, account.trained, account.context) == (6, 1, 2)


def test_a_repeat_of_a_sample_does_not_take_its_place():
    same = [generation([1], [2], call="a", discarded="repeat"), generation([1], [2], call="b")]
    (row,), account = accounted([*same, generation([1, 2, 3], [4], call="c")])
    assert row.loss_mask.tolist() == [0, 1, 0, 1]
    assert account.discarded == {"repeat": 2}


def test_versions_may_change_within_a_call():
    (row,), _ = accounted([generation([1], [2, 3, 4], versions=((0, 1), (2, 5)))])
    assert row.policy_version.tolist() == [NO_VERSION, 1, 1, 5]
    (row,), _ = accounted([generation([1], [2], versions=())])
    assert row.policy_version.tolist() == [NO_VERSION, NO_VERSION]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_generated_token_is_in_exactly_one_place(seed):
    draw = random.Random(seed)
    generations, fresh = [], iter(range(10_000))
    for number in range(draw.randint(1, 12)):
        base = list(draw.choice(generations).full) if generations and draw.random() < 0.8 else []
        if base and draw.random() < 0.2:
            base = base[: draw.randrange(len(base))]  # a history that was rewritten
        prompt = base + [next(fresh) for _ in range(draw.randint(0 if base else 1, 3))]
        said = [next(fresh) for _ in range(draw.randint(0, 4))]
        reason = draw.choice([None, None, None, "not_trainable", "failed"])
        generations.append(generation(prompt, said, call=str(number), discarded=reason))
    rows, account = accounted(generations)
    trained = [token for row in rows for token, mask in zip(row.input_ids, row.loss_mask, strict=True) if mask]
    wanted = [token for one in generations if one.discarded is None for token in one.ids]
    assert sorted(trained) == sorted(wanted)  # all ids that were said are different ones
    for row in rows:
        assert any(row.input_ids == one.full for one in generations)
        for token, mask, logprob in zip(row.input_ids, row.loss_mask, row.logprobs, strict=True):
            assert logprob == (-token if mask else 0)
    assert account.discarded.total() + account.trained + account.context == account.captured
