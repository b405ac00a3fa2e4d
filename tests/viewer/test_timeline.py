import pytest
from msgspec.structs import replace

from nemo_gym.capture.record import CallRecord, Times
from nemo_gym.exchange.parts import Message, Text, ToolCall, ToolResult
from nemo_gym.exchange.reply import Choice, ModelReply, Usage
from nemo_gym.exchange.request import ModelRequest
from nemo_gym.viewer.charts import waterfall
from nemo_gym.viewer.timeline import FIRST, LAST, timeline


def call(number: int, received: float, replied: float, *, asks: str | None = None, brings: bool = False) -> CallRecord:
    parts = (Text("hm"),) if asks is None else (ToolCall(asks, "{}", "c"),)
    messages = [Message("user", (Text("?"),))]
    if brings:
        messages.append(Message("tool", (ToolResult("c", (Text("4"),)),)))
    reply = ModelReply("r", "m", 0, (Choice(0, parts, "stop"),), Usage(completion=7))
    request = ModelRequest(tuple(messages))
    return CallRecord(
        call_id=f"call-{number:03}",
        run_id="run",
        rollout_id="x",
        attempt=1,
        session_id=None,
        parent_call_id=None,
        relation="first" if number == 0 else "turn",
        server="policy",
        dialect="chat",
        backend_dialect="chat",
        streamed=False,
        times=Times(received, received, received + 0.1, replied),
        attempts=(),
        status="answered",
        trainable=True,
        received=request,
        sent=request,
        reply=reply,
        error=None,
    )


def told(found):
    return [(span.kind, round(span.start, 3), round(span.end, 3)) for span in found.spans]


def test_model_tools_and_agent():
    calls = [call(0, 101, 103, asks="add"), call(1, 104, 106, brings=True)]
    found = timeline(list(reversed(calls)), started=100, seconds=8)
    assert told(found) == [
        ("agent", 0, 1),
        ("model", 1, 3),
        ("tools", 3, 4),
        ("model", 4, 6),
        ("agent", 6, 8),
    ]
    assert [span.label for span in found.spans][1:3] == ["call 1, 7 tokens", "add"]
    assert (found.seconds, found.model, found.tools, found.agent) == (8, 4, 1, 3)
    assert found.spans[1].first_token == pytest.approx(1.1)
    chart = waterfall(found)
    assert "2 calls in 8.0 s: model 4.0 s, tools 1.0 s, agent 3.0 s" in chart
    assert chart.count('class="span') == 5


def test_calls_side_by_side_are_not_counted_twice():
    found = timeline([call(0, 0, 4), call(1, 1, 3), call(2, 2, 6)], started=0, seconds=6)
    assert [kind for kind, _, _ in told(found)] == ["model"] * 3
    assert (found.model, found.tools, found.agent) == (6, 0, 0)


def test_tools_that_brought_nothing_are_the_agents_time():
    found = timeline([call(0, 0, 1, asks="add"), call(1, 2, 3)], started=0, seconds=3)
    assert told(found)[1] == ("agent", 1, 2)


def test_a_clock_that_is_ahead():
    found = timeline([call(0, 100, 102)], started=150, seconds=1)
    assert told(found) == [("model", 0, 2)]
    assert found.seconds == 2


def test_nothing_known():
    assert timeline([], 0, 1) is None
    found = timeline([call(0, 5, 5)], None, None)
    assert (found.seconds, found.calls) == (0, 1)
    assert "NaN" not in waterfall(found)


def test_a_failed_call_says_so():
    from nemo_gym.capture.record import Failure

    record = replace(call(0, 0, 1), status="failed", reply=None, error=Failure(503, "overloaded", "busy"))
    found = timeline([record], 0, 1)
    assert (found.spans[0].kind, found.spans[0].label) == ("failed", "call 1, failed: overloaded")


def test_a_long_rollout_is_drawn_in_part_and_summed_up_whole():
    count = FIRST + LAST + 20
    found = timeline([call(n, 2 * n, 2 * n + 1) for n in range(count)], 0, 2 * count)
    assert found.left_out == 20
    assert sum(span.kind == "model" for span in found.spans) == FIRST + LAST
    assert (found.model, found.agent) == (count, count)
