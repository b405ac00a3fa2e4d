"""Which call continues which."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from nemo_gym.exchange.parts import Message, Reasoning, Text, ToolCall, ToolResult
from nemo_gym.exchange.reply import Choice, ModelReply, TokenTrace
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.exchange.tools import Tool
from nemo_gym.lineage.tree import Lineage

TOOL = Tool("search", "finds things", {"type": "object"})
SYSTEM = Message("system", (Text("You are an agent."),))


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def ask(*messages: Message, tools: tuple[Tool, ...] = (TOOL,)) -> ModelRequest:
    return ModelRequest(messages, tools=tools)


def said(*parts, prompt=(1, 2, 3), ids=(4, 5), finish="stop") -> ModelReply:
    tokens = TokenTrace(ids=array("i", ids), logprobs=array("f", [-0.5] * len(ids)))
    return ModelReply("r", "m", 1, (Choice(0, parts, finish, tokens),), prompt_ids=array("i", prompt))


CALL = ToolCall("search", '{"q":"paris", "n":1}', call_id="call_1-x", id="fc_1")
FIRST = ask(SYSTEM, user("weather?"))


def started() -> Lineage:
    lineage = Lineage()
    assert lineage.find("a", FIRST) == (None, "first", None)
    lineage.add("c1", "a", FIRST, said(Reasoning("hm", id="rs_1"), CALL, finish="tool_calls"))
    return lineage


def test_a_turn_is_found_through_what_clients_rewrite():
    lineage = started()
    replayed = ToolCall("search", '{"n": 1, "q": "paris"}', call_id="call1x")
    second = ask(
        Message("developer", (Text("You are "), Text("an agent."))),
        user("weather?"),
        Message("assistant", (Text(""), replayed)),
        Message("tool", (ToolResult("call1x", (Text("sunny"),)),)),
    )
    parent, relation, prior = lineage.find("a", second)
    assert (parent, relation) == ("c1", "turn")
    assert prior is not None
    assert prior.call_id == "c1"
    assert prior.tokens == array("i", [1, 2, 3, 4, 5])
    assert prior.messages == 3


def test_an_assistant_turn_in_several_messages_is_one():
    lineage = Lineage()
    lineage.add("c1", "a", FIRST, said(Text("Let me look.", id="msg_1"), CALL))
    second = ask(
        SYSTEM,
        user("weather?"),
        Message("assistant", (Text("Let me look."),)),
        Message("assistant", (CALL,)),
        Message("tool", (ToolResult("call_1-x", (Text("sunny"),)),)),
    )
    parent, relation, prior = lineage.find("a", second)
    assert (parent, relation) == ("c1", "turn")
    assert prior is not None
    assert prior.messages == 4


@pytest.mark.parametrize("kept", ["Let me look.", " Let me look.\n", "\n\nLet me look."])
def test_whitespace_around_what_was_said_may_be_left_out(kept):
    lineage = Lineage()
    lineage.add("c1", "a", FIRST, said(Text("\n\nLet me look.\n"), CALL, Text("\n")))
    lineage.add("c2", "a", ask(SYSTEM, user("rain?")), said(Reasoning("hm"), Text("\n\n"), CALL))
    for first, parent, parts in ((FIRST, "c1", (Text(kept), CALL)), (ask(SYSTEM, user("rain?")), "c2", (CALL,))):
        found = lineage.find("a", ask(*first.messages, Message("assistant", parts), user("x")))
        assert found[:2] == (parent, "turn")
        assert found[2] is not None
    inner = Message("assistant", (Text("Let  me look."), CALL))
    assert lineage.find("a", ask(*FIRST.messages, inner, user("x")))[1] != "turn"


def test_a_changed_answer_is_no_continuation():
    lineage = started()
    other = ToolCall("search", '{"q":"rome","n":1}', call_id="call_1-x")
    parent, relation, prior = lineage.find(
        "a", ask(SYSTEM, user("weather?"), Message("assistant", (other,)), user("x"))
    )
    assert prior is None
    assert (parent, relation) == ("c1", "compaction")  # the same task with a rewritten history


def test_a_retry_is_a_sibling():
    lineage = started()
    assert lineage.find("a", FIRST) == (None, "retry", None)
    second = ask(*FIRST.messages, Message("assistant", (CALL,)), Message("tool", (ToolResult("call_1-x", ()),)))
    lineage.add("c2", "a", second, None)
    parent, relation, prior = lineage.find("a", second)
    assert (parent, relation) == ("c1", "retry")
    assert prior is not None
    assert prior.messages == 3


def test_every_branch_and_choice_can_be_continued():
    lineage = Lineage()
    choices = tuple(
        Choice(n, (Text(f"answer {n}"),), "stop", TokenTrace(ids=array("i", [10 + n]), logprobs=array("f", [0.0])))
        for n in range(3)
    )
    lineage.add("c1", "a", FIRST, ModelReply("r", "m", 1, choices, prompt_ids=array("i", [1])))
    lineage.add("c2", "a", FIRST, said(Text("other"), ids=(99,)))
    for text, ids, parent in (("answer 2", [1, 12], "c1"), ("answer 0", [1, 10], "c1"), ("other", [1, 2, 3, 99], "c2")):
        found = lineage.find("a", ask(*FIRST.messages, Message("assistant", (Text(text),)), user("go on")))
        assert found[0] == parent
        assert found[2] is not None
        assert found[2].tokens == array("i", ids)


def test_a_moving_context_message_is_set_aside():
    lineage = Lineage()
    lineage.add("c1", "a", ask(SYSTEM, user("task"), user("<context> 1")), said(CALL))
    result = Message("tool", (ToolResult("call_1-x", (Text("sunny"),)),))
    second = ask(SYSTEM, user("task"), Message("assistant", (CALL,)), result, user("<context> 2"))
    parent, relation, prior = lineage.find("a", second)
    assert (parent, relation) == ("c1", "turn")
    assert prior is not None and prior.messages == 0  # it tells where the prompts part, and is not gone on from
    lineage.add("c2", "a", second, said(Text("done")))
    third = ask(
        SYSTEM, user("task"), Message("assistant", (CALL,)), result, Message("assistant", (Text("done"),)), user("c 3")
    )
    assert lineage.find("a", third)[:2] == ("c2", "turn")


def test_other_tools_make_another_prompt_so_there_is_no_prior():
    lineage = started()
    more = ask(*FIRST.messages, Message("assistant", (CALL,)), user("x"), tools=(TOOL, Tool("more")))
    assert lineage.find("a", more) == ("c1", "turn", None)


def test_side_subagent_and_compaction():
    lineage = started()
    assert lineage.find("a", ask(user("Give this a title"), tools=()))[:2] == (None, "side")

    brief = "Look up the population of Paris and report it."
    spawn = ToolCall("spawn", '{"task": "' + brief + '"}', call_id="c9")
    second = ask(*FIRST.messages, Message("assistant", (CALL,)), user("go"))
    lineage.add("c2", "a", second, said(spawn))
    sub = ask(Message("system", (Text("You are a helper."),)), user(brief))
    assert lineage.find("a", sub) == ("c2", "subagent", None)

    compact = ask(*second.messages, Message("assistant", (spawn,)), user("Summarise the conversation"), tools=())
    assert lineage.find("a", compact) == ("c2", "compaction", None)
    lineage.add("c3", "a", compact, said(Text("So far: Paris was asked about.")))
    after = ask(SYSTEM, user("Summary of what was done: So far: Paris was asked about."))
    assert lineage.find("a", after) == ("c3", "compaction", None)


def test_rollouts_are_apart_and_forgotten_at_the_seal():
    lineage = started()
    assert lineage.find("b", FIRST)[1] == "first"
    lineage.close("a")
    assert lineage.find("a", FIRST)[1] == "first"
    lineage.add("x", None, FIRST, said(CALL))
    assert lineage.find(None, FIRST) == (None, "first", None)


def test_memory_is_bounded():
    lineage = Lineage(max_rollouts=2, max_calls=3, max_token_bytes=60)
    for name in ("a", "b", "c"):
        lineage.add(f"{name}1", name, FIRST, said(Text(name)))
    follow = ask(*FIRST.messages, Message("assistant", (Text("a"),)), user("x"))
    assert lineage.find("a", follow)[1] == "first"
    for n in range(5):
        lineage.add(f"c{n}", "c", FIRST, said(Text(f"n{n}")))
    assert lineage.find("c", ask(*FIRST.messages, Message("assistant", (Text("n1"),)), user("x")))[0] != "c1"
    parent, _, prior = lineage.find("c", ask(*FIRST.messages, Message("assistant", (Text("n4"),)), user("x")))
    assert parent == "c4"
    assert prior is not None
    tight = Lineage(max_token_bytes=10)
    tight.add("c1", "a", FIRST, said(Text("a")))
    assert tight.find("a", follow) == ("c1", "turn", None)


def test_memory_is_bounded_in_bytes():
    lineage = Lineage(max_bytes=1_000_000)
    tools = (Tool("write", parameters={"type": "object", "description": "y" * 5000}),)

    def first(n: int) -> ModelRequest:
        return ask(user(f"{n} " + "x" * 100_000), tools=tools)

    def following(n: int) -> ModelRequest:
        return ask(*first(n).messages, Message("assistant", (Text("a"),)), user("go on"), tools=tools)

    for n in range(40):
        lineage.find(f"r{n}", first(n))
        lineage.add(f"c{n}", f"r{n}", first(n), said(Text("a")))
        assert lineage._bytes == sum(one.bytes for one in lineage._rollouts.values()) <= 1_000_000
    # What they read last went first: they are linked all the same.
    assert [lineage.find(f"r{n}", following(n))[0] for n in range(40)] == [f"c{n}" for n in range(40)]
    # A tool call may write a file; of that, what tells a sub-agent's task is kept.
    for n in range(2000):
        call = ToolCall("write", msgspec.json.encode({"text": f"{n} " + "z" * 50_000}).decode(), f"call_{n}")
        lineage.add(f"w{n}", f"w{n}", ask(user(str(n)), tools=tools), said(call))
        assert lineage._bytes <= 1_000_000
    assert lineage._bytes == sum(one.bytes for one in lineage._rollouts.values())
    assert lineage.find("r0", following(0))[1] == "first"
    brief = ask(user("1999 " + "z" * 50_000))
    assert lineage.find("w1999", brief)[:2] == ("w1999", "subagent")


def test_a_cut_off_call_may_be_missing_from_the_replay():  # A19
    lineage = Lineage()
    lineage.add("c1", "a", FIRST, said(Text("I will"), ToolCall("search", '{"q": "pa'), finish="length"))
    found = lineage.find("a", ask(*FIRST.messages, Message("assistant", (Text("I will"),)), user("go on")))
    assert found[:2] == ("c1", "turn")


SILENT = (Reasoning("hm"),)


@pytest.mark.parametrize("parts", [SILENT, (*SILENT, Text("")), (*SILENT, Text("\n\n")), ()])
@pytest.mark.parametrize("kept", [None, (), (Text(""),), SILENT])
def test_a_turn_that_said_nothing_is_found_when_it_is_left_out(parts, kept):
    lineage = Lineage()
    lineage.add("c1", "a", FIRST, said(*parts))
    turn = () if kept is None else (Message("assistant", kept),)
    second = ask(*FIRST.messages, *turn, user("well?"))
    parent, relation, prior = lineage.find("a", second)
    assert (parent, relation) == ("c1", "turn")
    assert prior is not None and prior.tokens == array("i", [1, 2, 3, 4, 5])
    assert (prior.messages, prior.left_out, prior.parts) == (2 + len(turn), not turn, 0)
    lineage.add("c2", "a", second, said(*parts, prompt=(1, 2, 3, 4, 5, 6)))  # and again
    parent, _, prior = lineage.find("a", ask(*FIRST.messages, user("well?"), user("go on")))
    assert parent == "c2"
    assert prior is not None and (prior.messages, prior.left_out) == (3, True)
    lineage.add("c3", "a", second, said(Text("It rains.")))  # a retry of it
    parent, relation, prior = lineage.find("a", second)
    assert (parent, relation) == ("c1", "retry")
    assert prior is not None and prior.call_id == "c1"
    assert lineage.find("a", ask(*second.messages, Message("assistant", (Text("It rains."),)), user("x")))[0] == "c3"


def test_a_turn_that_said_nothing_is_found_in_a_message_that_was_joined():
    lineage = Lineage()
    asked = Message("user", (Text("weather?"), Text("in Paris")))
    lineage.add("c1", "a", ask(SYSTEM, asked), said(*SILENT))
    joined = Message("user", (*asked.parts, Text("well?"), Text("now")))
    parent, relation, prior = lineage.find("a", ask(SYSTEM, joined))
    assert (parent, relation) == ("c1", "turn")
    assert prior is not None and (prior.messages, prior.left_out, prior.parts) == (1, True, 2)
    lineage.add("c2", "a", ask(SYSTEM, joined), said(Text("Rain."), prompt=(1, 2, 3, 4, 5, 6)))
    third = ask(SYSTEM, joined, Message("assistant", (Text("Rain."),)), user("thanks"))
    parent, _, prior = lineage.find("a", third)
    assert parent == "c2"
    assert prior is not None and (prior.messages, prior.left_out) == (3, False)


def test_a_task_of_its_own_does_not_continue_a_turn_that_said_nothing():
    lineage = Lineage()
    lineage.add("c1", "a", FIRST, said(*SILENT))
    assert lineage.find("a", ask(SYSTEM, user("Another task")))[:2] != ("c1", "turn")
    lineage.add("c2", "b", FIRST, said(*SILENT, finish="cancelled"))  # of that the client has nothing
    assert lineage.find("b", ask(*FIRST.messages, user("well?")))[1] != "turn"


def test_what_is_dropped_is_not_found():
    lineage = Lineage(max_calls=1)
    lineage.add("c1", "a", FIRST, said(*SILENT))
    lineage.add("c2", "a", ask(user("x")), said(Text("y")))
    assert lineage.find("a", ask(*FIRST.messages, user("well?")))[0] != "c1"


def test_requests_without_turns():
    lineage = Lineage()
    lineage.add("c1", "a", ModelRequest(()), said(Text("hi")))
    assert lineage.find("a", ModelRequest(()))[1] == "retry"
    assert lineage.find("a", ask(Message("assistant", ())))[1] in ("first", "side", "retry", "compaction")
