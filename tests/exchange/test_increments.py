"""fold(unfold(reply)) gives the reply's parts back, however its text is made."""

from __future__ import annotations

import regex
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.exchange.increments import Increment, fold, unfold
from nemo_gym.exchange.parts import Part, Reasoning, Refusal, Text, ToolCall, joined, merged
from nemo_gym.exchange.reply import Choice, ModelReply
from tests.texts import long_texts

TEXTS = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
    | st.text("e\u0301\r\n👩‍🚀🇩🇪 ", max_size=60)
    | long_texts
)


@st.composite
def parts(draw: st.DrawFn) -> tuple[Part, ...]:
    made: list[Part] = []
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["text", "reasoning", "refusal", "call"]))
        text = draw(TEXTS)
        if kind == "text":
            made.append(Text(text, id=f"t{number}"))
        elif kind == "reasoning":
            made.append(Reasoning(text, id=f"r{number}", payload=draw(st.none() | st.just("sealed"))))
        elif kind == "refusal":
            made.append(Refusal(text, id=f"x{number}"))
        else:
            made.append(ToolCall("f", text, call_id=f"c{number}"))
    return tuple(made)


@given(st.lists(parts(), min_size=1, max_size=3))
def test_fold_undoes_unfold(choices: list[tuple[Part, ...]]) -> None:
    reply = ModelReply("id", "m", 0, tuple(Choice(i, p, "stop") for i, p in enumerate(choices)))
    assert fold(unfold(reply)) == {choice.index: choice.parts for choice in reply.choices}


@given(TEXTS)
def test_pieces_are_cut_between_graphemes(text: str) -> None:  # B6
    reply = ModelReply("id", "m", 0, (Choice(0, (Text(text),), "stop"),))
    pieces = [increment.part.text for increment in unfold(reply) if isinstance(increment.part, Text)]
    assert "".join(pieces) == text
    assert [g for piece in pieces for g in regex.findall(r"\X", piece)] == regex.findall(r"\X", text)


def test_a_payload_rides_on_the_last_piece_only() -> None:
    reply = ModelReply("id", "m", 0, (Choice(0, (Reasoning("x" * 400, id="r", payload="p"),), "stop"),))
    payloads = [increment.part.payload for increment in unfold(reply) if isinstance(increment.part, Reasoning)]
    assert payloads == [None, None, None, "p"]


def test_what_joins_and_what_does_not() -> None:
    assert joined(Text("a", id="1"), Text("b")) == Text("ab", id="1")
    assert joined(Text("a", id="1"), Text("b", id="2")) is None
    assert joined(Text("a"), Reasoning("b")) is None
    assert joined(Reasoning("a", payload="p"), Reasoning("b")) is None
    assert joined(ToolCall("f", "{}"), ToolCall("f", "{}")) is None
    assert list(merged([Text("a"), Text("b"), Refusal("c"), Text("d")])) == [Text("ab"), Refusal("c"), Text("d")]


def test_increments_of_several_choices_stay_apart() -> None:
    got = fold([Increment(Text("a"), 0), Increment(Text("x"), 1), Increment(Text("b"), 0)])
    assert got == {0: (Text("ab"),), 1: (Text("x"),)}
