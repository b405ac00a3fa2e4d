import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.dialects.sse import Decoder, Event, frame

STREAM = (
    b"\xef\xbb\xbf: a comment\r\n\r\nevent: one\r\ndata: 1\r\n\r\ndata: a\ndata: b\n\n"
    b"id: 7\nretry: 3\ndata:x\r\rdata\n\n" + frame('{"ä": "😀"}'.encode(), "last") + b"data: no blank line at the end"
)
EVENTS = [
    Event("1", "one"),
    Event("a\nb"),
    Event("x"),
    Event(""),
    Event('{"ä": "😀"}', "last"),
    Event("no blank line at the end"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_do_not_depend_on_the_cutting(places):
    decoder = Decoder()
    events, start = [], 0
    for end in [*sorted(places), len(STREAM)]:
        events += decoder.feed(STREAM[start:end])
        start = end
    assert events + decoder.finish() == EVENTS


def test_byte_by_byte():
    decoder = Decoder()
    events = [event for place in range(len(STREAM)) for event in decoder.feed(STREAM[place : place + 1])]
    assert events + decoder.finish() == EVENTS


def test_an_endless_line_is_refused(monkeypatch):
    monkeypatch.setattr("nemo_gym.dialects.sse._LIMIT", 100)
    with pytest.raises(ValueError, match="too large"):
        Decoder().feed(b"data: " + b"x" * 200)
