"""Records to write, drawn by hypothesis."""

from __future__ import annotations

from array import array

from hypothesis import strategies as st
from msgspec.structs import replace
from records import record

from nemo_gym.capture.record import CallRecord, Failure, Times
from nemo_gym.exchange.call import Attempt
from nemo_gym.exchange.parts import (
    Element,
    Media,
    Message,
    Origin,
    Other,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
)
from nemo_gym.exchange.reply import Choice, ModelReply, TokenTrace, Usage
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.exchange.tools import Tool

texts = st.text(max_size=12) | st.text(alphabet="aé\n", min_size=250, max_size=400) | st.just("word " * 100)
names = st.sampled_from(["$content", "$$content", "name", "api", "type", "lists", "messages", ""])
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(names | st.text(max_size=5), json_values, max_size=4)
origins = st.none() | st.builds(Origin, st.just("chat"), objects)
ints = st.integers(-(2**31), 2**31 - 1)
times = st.floats(0, 4e9)
id_arrays = st.lists(ints, max_size=8).map(lambda values: array("i", values))
floats = st.floats(allow_nan=False, width=32)
log_prob_arrays = st.lists(floats, max_size=8).map(lambda values: array("f", values))

leaf_parts = (
    st.builds(Text, texts, st.text(max_size=3), origins)
    | st.builds(Reasoning, texts, st.text(max_size=3), st.none() | texts, origins)
    | st.builds(Refusal, texts)
    | st.builds(ToolCall, texts, texts, texts, namespace=st.none() | texts, custom=st.booleans(), origin=origins)
    | st.builds(Media, st.sampled_from(["image", "audio", "document"]), texts, origins)
    | st.builds(Other, texts, objects)
)
parts = leaf_parts | st.builds(ToolResult, texts, st.lists(leaf_parts, max_size=2).map(tuple), st.booleans(), origins)
part_tuples = st.lists(parts, max_size=3).map(tuple)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
messages = st.builds(Message, roles, part_tuples, origins)
tools = st.builds(
    Tool,
    texts,
    texts,
    st.none() | objects,
    st.none() | texts,
    st.sampled_from(["function", "custom", "provider"]),
    st.none() | objects,
    origins,
)
plain_floats = st.floats(allow_nan=False, allow_infinity=False)
samplings = st.builds(
    Sampling,
    temperature=st.none() | plain_floats,
    max_tokens=st.none() | ints,
    stop=st.lists(texts, max_size=2).map(tuple),
    logit_bias=st.none() | st.dictionaries(ints, plain_floats, max_size=2),
    logprobs=st.none() | st.integers(0, 5),
)
requests = st.builds(
    ModelRequest,
    st.lists(messages, max_size=4).map(tuple),
    st.lists(tools, max_size=2).map(tuple),
    st.sampled_from(["auto", "none", "required"]) | tools,
    st.booleans(),
    samplings,
    st.none() | objects,
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    origins,
)
traces = st.builds(
    TokenTrace,
    st.none() | id_arrays,
    st.none() | log_prob_arrays,
    st.lists(st.tuples(ints, ints), max_size=2).map(tuple),
    st.none() | st.lists(texts, max_size=2).map(tuple),
    st.none()
    | st.lists(st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=2), max_size=2).map(tuple),
)
finishes = st.sampled_from(["stop", "length", "tool_calls", "stop_sequence", "content_filter", "refusal", "cancelled"])
choices = st.builds(Choice, ints, part_tuples, finishes, st.none() | traces, st.none() | texts, origins)
counts = st.none() | st.integers(0, 2**31 - 1)
replies = st.builds(
    ModelReply,
    texts,
    texts,
    st.integers(0, 2**40),
    st.lists(choices, max_size=3).map(tuple),
    st.builds(Usage, counts, counts, counts, counts),
    st.none() | id_arrays,
    origins,
)
failures = st.builds(Failure, st.integers(100, 599), texts, texts)


@st.composite
def read_of_shared_elements(draw: st.DrawFn) -> ModelRequest:
    """As a dialect reads a body whose elements other bodies have too; some were read into something else."""
    request = draw(requests)
    elements, read = [], []
    for message in request.messages:
        said = [part.text for part in message.parts if isinstance(part, Text)]
        fields = {"role": message.role, "content": said[0]} if said and draw(st.booleans()) else draw(objects)
        element = Element(fields)
        own = [None, Origin("chat", element)]
        parts = tuple(
            replace(part, origin=draw(st.sampled_from(own))) if isinstance(part, Text | ToolCall) else part
            for part in message.parts
        )
        message = Message(message.role, parts, Origin("chat", element))
        element.read = (read_of_shared_elements, message if draw(st.integers(0, 3)) else parts)
        elements.append(element)
        read.append(message)
    body = {"messages": elements, **draw(objects)}
    if draw(st.booleans()):
        body["tools"] = [*elements[:1], *draw(st.lists(objects, max_size=2))]
    return replace(request, messages=tuple(read), origin=Origin("chat", body))


@st.composite
def records(draw: st.DrawFn, earlier: list[CallRecord] | None = None) -> CallRecord:
    """Any record; it may name an earlier one as its parent, and begin as that one does."""
    parent = draw(st.none() | st.sampled_from(earlier)) if earlier else None
    received = draw(st.none() | requests | read_of_shared_elements())
    answer = draw(st.none() | replies)
    if parent is not None:
        if received is not None and parent.received is not None and draw(st.booleans()):
            received = ModelRequest((*parent.received.messages, *received.messages), origin=received.origin)
        before = parent.reply
        if answer is not None and before is not None and before.prompt_ids is not None and draw(st.booleans()):
            prompt = before.prompt_ids + draw(id_arrays)
            traced = [one.tokens.ids for one in before.choices if one.tokens is not None and one.tokens.ids is not None]
            if traced:
                prompt = before.prompt_ids + draw(st.sampled_from(traced)) + draw(id_arrays)
            answer = ModelReply(answer.id, answer.model, answer.created, answer.choices, answer.usage, prompt)
    sent = draw(st.sampled_from([None, received]) | requests)
    return record(
        rollout_id=draw(st.none() | st.sampled_from(["r1", "r2"])),
        attempt=draw(st.integers(0, 3)),
        session_id=draw(st.none() | texts),
        parent_call_id=None if parent is None else parent.call_id,
        relation=draw(st.sampled_from(["first", "turn", "retry", "repeat", "subagent", "compaction", "side"])),
        dialect=draw(st.sampled_from(["chat", "responses", "messages"])),
        backend_dialect=draw(st.none() | st.just("chat")),
        streamed=draw(st.booleans()),
        times=Times(draw(times), draw(st.none() | times), draw(st.none() | times), draw(times)),
        attempts=tuple(draw(st.lists(st.builds(Attempt, texts, times, times, st.none() | texts), max_size=2))),
        status=draw(st.sampled_from(["answered", "failed", "rejected", "disconnected"])),
        trainable=draw(st.booleans()),
        received=received,
        sent=sent,
        reply=answer,
        error=draw(st.none() | failures),
        history=draw(st.sampled_from([None, "exact", "template"])),
        prefix_break=draw(st.none() | st.tuples(ints, texts)),
        logprobs_mode=draw(st.sampled_from([None, "processed", "raw"])),
        prompt_logprobs=draw(st.none() | log_prob_arrays),
        raw=draw(st.none() | st.binary(max_size=20)),
    )
