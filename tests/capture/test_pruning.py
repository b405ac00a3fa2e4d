"""Single rollouts taken out of sealed shards: what remains is as it was, and stands alone."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from records import chat_request, conversation, record

from nemo_gym.capture import CaptureStore, Receipt, ShardWriter
from nemo_gym.capture.pruning import old_rollouts, prune_rollouts
from nemo_gym.capture.upkeep import repair
from nemo_gym.exchange.parts import Origin
from nemo_gym.exchange.tools import Tool


def write(directory, made, *, seal=True, close=True, **options) -> ShardWriter:
    writer = None

    async def run() -> None:
        nonlocal writer
        writer = ShardWriter(str(directory), "policy", options.pop("run_id", "run"), "flush", **options)
        for one in made:
            await writer.commit(one)
            writer.receipt(Receipt(one.call_id, True, 1.0))
        for rollout_id in dict.fromkeys(one.rollout_id for one in made if one.rollout_id) if seal else ():
            await writer.seal(rollout_id)
        if close:
            writer.close()

    asyncio.run(run())
    assert writer is not None
    return writer


def interleaved(count: int, turns: int, seed: int = 3) -> list:
    """Several rollouts that share their system prompt, their calls in any order."""
    made = [conversation(turns, rollout_id=f"r{number}") for number in range(count)]
    chance, found = random.Random(seed), []
    while any(made):
        found.append(chance.choice([one for one in made if one]).pop(0))
    return found


def test_tools_are_handed_on(tmp_path):
    declared = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    messages = [{"role": "user", "content": "hello"}]
    tool = Tool("f", parameters={"type": "object"}, origin=Origin("chat", declared))
    received = replace(chat_request(messages, tools=[declared]), tools=(tool,))
    sent = replace(received, tools=(Tool("g", "a tool of the server's own"),), origin=None)
    made = [record(rollout_id=one, received=received, sent=sent) for one in ("gone", "stays")]
    write(tmp_path, made)
    store = CaptureStore(tmp_path)
    list(prune_rollouts(store, {"gone"}))
    assert list(store.calls()) == made[1:]
    assert store.verify().problems == []


def test_what_remains_is_as_it_was(tmp_path):
    made = [*interleaved(4, 3), record(rollout_id=None)]
    write(tmp_path, made, max_shard_bytes=30_000)
    store = CaptureStore(tmp_path)
    assert len(store.paths()) > 2
    before = {one.call_id: one for one in store.calls()}
    would = list(prune_rollouts(store, {"r0", "r2"}, dry_run=True))
    assert {one.call_id for one in store.calls()} == set(before)
    done = list(prune_rollouts(store, {"r0", "r2"}))
    assert [one.path for one in done] == [one.path for one in would]
    assert sum(one.bytes for one in done) > 0
    left = {one.call_id: one for one in store.calls()}
    assert left == {key: one for key, one in before.items() if one.rollout_id not in ("r0", "r2")}
    assert set(store.rollouts()) == {"r1", "r3"}
    assert set(store.receipts()) == set(left)
    report = store.verify()
    assert (report.problems, report.torn, report.unsealed) == ([], [], [])
    for rollout_id in ("r0", "r1"):
        expected = [one for one in made if one.rollout_id == rollout_id and rollout_id != "r0"]
        assert list(store.calls(rollout_id)) == expected
    assert list(prune_rollouts(store, {"r0", "r2"})) == []
    assert list(repair(store)) == []


def test_a_shard_without_any_other_call_is_removed(tmp_path):
    write(tmp_path, conversation(2, rollout_id="only"))
    (one,) = prune_rollouts(CaptureStore(tmp_path), {"only"})
    assert one.shards == 1
    assert list(tmp_path.rglob("*.*")) == []


def test_an_open_shard_is_refused_by_name(tmp_path):
    writer = write(tmp_path, conversation(2, rollout_id="r1"), close=False)
    store = CaptureStore(tmp_path)
    assert old_rollouts(store, 0) == set()
    with pytest.raises(ValueError, match=r"rollout r1 has calls in .* which is not sealed"):
        list(prune_rollouts(store, {"r1"}))
    writer.close()
    assert len(list(prune_rollouts(store, {"r1"}))) == 1


def test_how_old_a_rollout_is(tmp_path):
    old = conversation(2, rollout_id="old")
    old = [
        msgspec.structs.replace(one, times=msgspec.structs.replace(one.times, received=1.0, replied=2.0)) for one in old
    ]
    write(tmp_path, [*old, *conversation(2, rollout_id="new")], seal=False)
    assert old_rollouts(CaptureStore(tmp_path), 3600) == {"old"}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.integers(0, 1000),
    gone=st.sets(st.sampled_from(["r0", "r1", "r2", "r3", "absent"])),
    size=st.sampled_from([20_000, 60_000, 1 << 28]),
)
def test_any_rollouts_out_of_any_shards(tmp_path_factory, order, gone, size):
    """Whatever is taken out, in whatever order it was written: the rest reads back equal, and verifies."""
    folder = tmp_path_factory.mktemp("pruned")
    made = interleaved(4, 3, seed=order)
    write(folder, made, max_shard_bytes=size)
    store = CaptureStore(folder)
    list(prune_rollouts(store, gone))
    left = {one.call_id: one for one in store.calls()}
    assert left == {one.call_id: one for one in made if one.rollout_id not in gone}
    assert store.verify().problems == []
