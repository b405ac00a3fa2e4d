"""Whatever is written reads back as what was written."""

from __future__ import annotations

import asyncio
import json
import tempfile
from math import log

import msgspec
import pytest
from drawn import records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records import chat_request, conversation, record, reply

from nemo_gym.capture import CaptureStore, ShardWriter, from_json, to_json
from nemo_gym.capture.record import CallRecord
from nemo_gym.exchange.parts import Media, Message, Origin, Text
from nemo_gym.exchange.request import ModelRequest

_SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def write(directory: str, written: list[CallRecord], durability="none", **options) -> None:
    """With `none` in one batch, else in a batch each."""

    async def run() -> None:
        writer = ShardWriter(directory, "policy", "run", durability, **options)
        for one in written:
            await writer.commit(one)
        writer.close()

    asyncio.run(run())


@given(st.data())
@settings(max_examples=6, **_SETTINGS)
def test_any_records_read_back_equal(data):  # C1
    _read_back_equal(data)


@pytest.mark.ci
@given(st.data())
@settings(max_examples=150, **_SETTINGS)
def test_many_records_read_back_equal(data):
    _read_back_equal(data)


@pytest.mark.nightly
@given(st.data())
@settings(max_examples=3000, **_SETTINGS)
def test_very_many_records_read_back_equal(data):
    _read_back_equal(data)


def _read_back_equal(data) -> None:
    written: list[CallRecord] = []
    for _ in range(data.draw(st.integers(1, 4))):
        written.append(data.draw(records(written)))
    with tempfile.TemporaryDirectory() as directory:
        write(directory, written, data.draw(st.sampled_from(["none", "flush"])))
        store = CaptureStore(directory)
        read = list(store.calls())
        assert read == written
        for one, other in zip(read, written, strict=True):
            if other.received is not None and other.received.origin is not None:
                assert one.received.origin.body == other.received.origin.body
                assert list(one.received.origin.body) == list(other.received.origin.body)
            assert (one.sent is one.received) == (other.sent == other.received)
        report = store.verify()
        assert report.problems == []
        assert report.torn == []
        assert store.table().num_rows == len(written)


@given(records())
@settings(max_examples=10, **_SETTINGS)
def test_the_json_form_both_ways(drawn):
    text = json.dumps(to_json(drawn), allow_nan=False)
    assert from_json(msgspec.json.decode(text.encode()) if text.isascii() else json.loads(text)) == drawn


def test_lone_surrogates_do_not_lose_a_record(tmp_path):  # A13
    one = record(received=chat_request([{"role": "user", "content": "\ud800 broken"}]), session_id="\udfff")
    write(str(tmp_path), [one])
    (read,) = CaptureStore(tmp_path).calls()
    assert read.received == one.received
    assert read.session_id == "\ufffd"


def test_messages_keep_the_elements_they_were_read_from(tmp_path):
    made = conversation(3)
    write(str(tmp_path), made)
    for one in CaptureStore(tmp_path).calls("r1"):
        body = one.received.origin.body
        assert [message.origin.body for message in one.received.messages] == body["messages"]
        assert one.received.messages[0].origin.dialect == "chat"
        assert one.sent is one.received


def test_a_changed_request_is_kept_beside_the_received_one(tmp_path):
    received = chat_request([{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}])
    sent = msgspec.structs.replace(
        received, messages=(Message("system", (Text("be brief"),)), received.messages[1]), model="served", origin=None
    )
    write(str(tmp_path), [record(received=received, sent=sent)])
    (read,) = CaptureStore(tmp_path).calls()
    assert (read.received, read.sent) == (received, sent)
    table = CaptureStore(tmp_path).table(["model_asked", "model_sent", "sent_contents"])
    assert table.to_pylist()[0]["model_sent"] == "served"
    assert json.loads(table.to_pylist()[0]["sent_contents"][0])["role"] == "system"


def test_what_is_known_is_written_once(tmp_path, no_sealer):  # C5
    def size(turns: int) -> int:
        made = conversation(turns, words=500, ids=500)
        folder = tmp_path / str(turns)
        write(str(folder), made, durability="flush")
        texts = [len(one.received.messages[-1].parts[0].text) + len(one.reply.choices[0].parts[0].text) for one in made]
        written = sum(path.stat().st_size for path in folder.rglob("*.arrows"))
        assert written < 3 * (sum(texts) + turns * 8 * 500)
        return written

    small, large = size(15), size(60)
    assert log(large / small, 60 / 15) < 1.1


def test_the_prompt_may_go_on_from_any_choice(tmp_path):
    first = record(reply=reply("a", [1, 2], [3, 4]))
    choices = (first.reply.choices[0], msgspec.structs.replace(reply("b", [], [5, 6, 7]).choices[0], index=1))
    first = msgspec.structs.replace(first, reply=msgspec.structs.replace(first.reply, choices=choices))
    second = record(parent_call_id=first.call_id, relation="turn", reply=reply("c", [1, 2, 5, 6, 7, 8], [9]))
    retry = record(parent_call_id=first.call_id, relation="turn", reply=reply("d", [1, 9, 9], [9]))
    write(str(tmp_path), [first, second, retry])
    store = CaptureStore(tmp_path)
    assert list(store.calls()) == [first, second, retry]
    rows = store.table(["prompt_prefix_len", "new_prompt_ids", "prompt_ids"]).to_pylist()
    assert [row["prompt_prefix_len"] for row in rows] == [0, 5, 1]
    assert rows[1]["new_prompt_ids"] == [8]
    assert rows[1]["prompt_ids"] == [1, 2, 5, 6, 7, 8]


def test_every_shard_stands_alone(tmp_path):
    made = conversation(12)
    write(str(tmp_path), made, "flush", max_shard_bytes=30_000)
    paths = CaptureStore(tmp_path).paths()
    assert len(paths) > 1
    assert list(CaptureStore(tmp_path).calls("r1")) == made
    for path in paths[:-1]:
        path.unlink()
        path.with_suffix(".index").unlink()
    assert CaptureStore(tmp_path).verify().problems == []
    left = list(CaptureStore(tmp_path).calls("r1"))
    assert left == made[-len(left) :]


def test_binary_parts_are_left_out_by_reference(tmp_path):
    image = "data:image/png;base64," + "iVBORw0KGgo" * 100
    content = [
        {"type": "text", "text": "what is it? " * 30},
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "input_audio", "input_audio": {"data": "UklGRi" * 100, "format": "wav"}},
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    message = Message("user", (Text("what is it? " * 30), Media("image", image)))
    request = ModelRequest((message,), model="m", origin=Origin("chat", body))
    for binary in ("keep", "reference"):
        write(str(tmp_path / binary), [record(received=request, sent=request)], binary=binary)
    (kept,) = CaptureStore(tmp_path / "keep").calls()
    assert kept.received == request
    (left,) = CaptureStore(tmp_path / "reference").calls()
    text, media = left.received.messages[0].parts
    assert text == message.parts[0]
    assert media.source.startswith("data:image/png;base64,omitted;blake2b=")
    assert media.source.endswith(";base64_length=1100")
    read = left.received.origin.body["messages"][0]["content"]
    assert read[1]["image_url"]["url"] == media.source
    assert read[2]["input_audio"]["data"].startswith("data:;base64,omitted;")
    assert CaptureStore(tmp_path / "reference").verify().problems == []
