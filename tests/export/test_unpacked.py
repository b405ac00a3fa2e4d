"""Calls out of a batch's columns are what the records say, whichever rows are asked for and whatever they lack."""

from array import array

import pytest
from msgspec.structs import replace

from nemo_gym.capture import CaptureStore
from nemo_gym.exchange.reply import Choice, TokenTrace
from nemo_gym.export.calls import calls_of, one_rollout
from tests.export.made import Job, record, two_turns


def choice(index, ids, logprobs, versions):
    return Choice(index, (), "stop", TokenTrace(None if ids is None else array("i", ids), logprobs, versions))


def varied():
    """Several choices, of which one has no ids; versions that change; no reply, no prompt ids; an empty answer."""
    many = record("a", [1, 2], [3])
    choices = (
        choice(0, [4, 5, 6], array("f", [-1.0, -2.0, -3.0]), ((0, 7), (2, 8))),
        choice(1, None, None, ()),
        choice(2, [], array("f"), ()),
        choice(3, [9], None, ((0, 8),)),
    )
    many = replace(many, reply=replace(many.reply, choices=choices))
    failed = replace(record("b", None, None), reply=None, status="failed", session_id="s")
    broken = record("b", [5], [6], prefix_break=(3, "template_boundary"), attempt=2)
    return [many, failed, record("b", None, [8]), broken, *two_turns("c"), record("a", [], [2])]


@pytest.fixture
def shard(tmp_path):
    job = Job(tmp_path)
    job.record(*varied())
    job.write()
    (one,) = CaptureStore(str(tmp_path / "captures")).shards()
    return one


def bytes_of(values):
    return None if values is None else values.tobytes()


@pytest.mark.parametrize("wanted", [["a", "b", "c"], ["b"], ["a", "c"], []])
def test_calls_are_what_was_recorded(shard, wanted):
    calls = list(calls_of(shard, lambda one: one in wanted))
    records = [one for one in shard.records() if one.rollout_id in wanted]
    assert [call.call_id for call in calls] == [one.call_id for one in records]
    for call, one in zip(calls, records, strict=True):
        assert (call.rollout_id, call.status, call.relation) == (one.rollout_id, one.status, one.relation)
        assert (call.parent_call_id, call.session_id) == (one.parent_call_id, one.session_id)
        assert call.received_at == one.times.received
        assert call.prefix_break == one.prefix_break and call.messages == len(one.received.messages)
        choices = () if one.reply is None else one.reply.choices
        assert [spoken.index for spoken in call.choices] == [made.index for made in choices]
        for spoken, made in zip(call.choices, choices, strict=True):
            tokens = made.tokens or TokenTrace()
            assert spoken.ids == bytes_of(tokens.ids) and spoken.logprobs == bytes_of(tokens.logprobs)
            assert spoken.versions == tuple(tokens.versions)
            assert bool(spoken.parts) == (tokens.ids is None)
        prompt = None if one.reply is None else bytes_of(one.reply.prompt_ids)
        assert call.new_prompt == (prompt if prompt is None or not call.shared else prompt[4 * call.shared :])
        assert call.has_ids == (prompt is not None and any(spoken.ids is not None for spoken in call.choices))


def test_one_rollouts_calls_are_found_by_the_index(shard, tmp_path):
    store = CaptureStore(str(tmp_path / "captures"))
    for rollout_id in ("a", "b", "c"):
        found = [replace(call, shard=None, rows=None) for call in one_rollout(store, rollout_id).calls]
        read = [replace(call, shard=None, rows=None) for call in calls_of(shard, rollout_id.__eq__)]
        names = [name for name in type(found[0]).__struct_fields__ if name != "late"]
        assert [[getattr(one, name) for name in names] for one in sorted(found, key=lambda one: one.call_id)] == [
            [getattr(one, name) for name in names] for one in sorted(read, key=lambda one: one.call_id)
        ]
