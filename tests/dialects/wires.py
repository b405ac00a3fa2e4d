"""One conversation and one reply in the words of each public API, and back: written by hand after their documents.

What is compared is a plain form: a request is a list of (kind, ...) tuples, and so is a reply. The stock clients do the
asking, so what is compared is what an agent would see.
"""

from __future__ import annotations

import json
from typing import Any

import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.bench import Bench
from tests.scripted import chat_reply, messages_reply, output_text, responses_reply, tool_call

DIALECTS = ("chat", "responses", "messages")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
PIXEL = "iVBORw0KGgo="
IMAGE = f"data:image/png;base64,{PIXEL}"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANSWER = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'

# ---- the conversation: system, text and image, a thought and two calls at once, results of text and image, a schema


def _chat_request() -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": IMAGE}}
    return {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Which city?"}, image]},
            {
                "role": "assistant",
                "content": "I look.",
                "reasoning_content": "Two at once.",
                "tool_calls": [tool_call("get_weather", OSLO, "call_a"), tool_call("get_weather", ROME, "call_b")],
            },
            {"role": "tool", "tool_call_id": "call_a", "content": "rain"},
            {"role": "tool", "tool_call_id": "call_b", "content": [{"type": "text", "text": "see:"}, image]},
        ],
        "tools": [{"type": "function", "function": {"name": "get_weather", "description": "W.", "parameters": SCHEMA}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "out", "schema": ANSWER}},
        "max_tokens": 64,
        "temperature": 0.5,
    }


def _responses_request() -> dict[str, Any]:
    image = {"type": "input_image", "image_url": IMAGE, "detail": "auto"}
    return {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Which city?"}, image]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "Two at once."}],
                "encrypted_content": "sealed",
            },
            output_text("I look.", "msg_1"),
            {"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "get_weather", "arguments": OSLO},
            {"type": "function_call", "id": "fc_2", "call_id": "call_b", "name": "get_weather", "arguments": ROME},
            {"type": "function_call_output", "call_id": "call_a", "output": "rain"},
            {
                "type": "function_call_output",
                "call_id": "call_b",
                "output": [{"type": "input_text", "text": "see:"}, image],
            },
        ],
        "tools": [{"type": "function", "name": "get_weather", "description": "W.", "parameters": SCHEMA}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_schema", "name": "out", "schema": ANSWER}},
        "max_output_tokens": 64,
        "temperature": 0.5,
        "store": False,
    }


def _messages_request() -> dict[str, Any]:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    return {
        "model": "m",
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Which city?"}, image]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Two at once.", "signature": "sealed"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "call_a", "name": "get_weather", "input": {"city": "Oslo"}},
                    {"type": "tool_use", "id": "call_b", "name": "get_weather", "input": {"city": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_a", "content": "rain"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_b",
                        "content": [{"type": "text", "text": "see:"}, image],
                    },
                ],
            },
        ],
        "tools": [{"name": "get_weather", "description": "W.", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "output_config": {"format": {"type": "json_schema", "schema": ANSWER}},
        "max_tokens": 64,
        "temperature": 0.5,
    }


def request(dialect: str) -> dict[str, Any]:
    return {"chat": _chat_request, "responses": _responses_request, "messages": _messages_request}[dialect]()


Form = list[tuple[Any, ...]]


def _parts(content: Any) -> list[tuple[str, str]]:
    if isinstance(content, str):
        return [("text", content)]
    found = []
    for part in content or ():
        if part["type"] in ("text", "input_text", "output_text"):
            found.append(("text", part["text"]))
        elif part["type"] == "image_url":
            found.append(("image", part["image_url"]["url"]))
        elif part["type"] == "input_image":
            found.append(("image", part["image_url"]))
        elif part["type"] == "image":
            source = part["source"]
            found.append(("image", f"data:{source['media_type']};base64,{source['data']}"))
    return found


def _asked_of_chat(body: dict[str, Any]) -> Form:
    form: Form = []
    for message in body["messages"]:
        if message["role"] == "tool":
            form.append(("result", message["tool_call_id"], _parts(message["content"])))
            continue
        if message.get("reasoning_content"):
            form.append(("reasoning", message["reasoning_content"]))
        form += [(message["role"], *part) for part in _parts(message["content"])]
        for call in message.get("tool_calls") or ():
            function = call["function"]
            form.append(("call", call["id"], function["name"], json.loads(function["arguments"])))
    (tool,) = body["tools"]
    form.append(("tool", *(tool["function"][field] for field in ("name", "description", "parameters"))))
    form.append(("choice", body["tool_choice"], body["parallel_tool_calls"]))
    form.append(("schema", body["response_format"]["json_schema"]["schema"]))
    return [*form, ("limits", body["max_tokens"], body["temperature"])]


def _asked_of_responses(body: dict[str, Any]) -> Form:
    form: Form = [("system", "text", body["instructions"])] if "instructions" in body else []
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "message":
            form += [(item["role"], *part) for part in _parts(item["content"])]
        elif kind == "reasoning":
            form.append(("reasoning", item["summary"][0]["text"], item["encrypted_content"]))
        elif kind == "function_call":
            form.append(("call", item["call_id"], item["name"], json.loads(item["arguments"])))
        else:
            form.append(("result", item["call_id"], _parts(item["output"])))
    (tool,) = body["tools"]
    form.append(("tool", *(tool[field] for field in ("name", "description", "parameters"))))
    form.append(("choice", body["tool_choice"], body["parallel_tool_calls"]))
    form.append(("schema", body["text"]["format"]["schema"]))
    return [*form, ("limits", body["max_output_tokens"], body["temperature"])]


def _asked_of_messages(body: dict[str, Any]) -> Form:
    form: Form = [("system", *part) for part in _parts(body["system"])]
    for message in body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else _blocks(message["content"]):
            if block["type"] == "thinking":
                form.append(("reasoning", block["thinking"], block["signature"]))
            elif block["type"] == "tool_use":
                form.append(("call", block["id"], block["name"], block["input"]))
            elif block["type"] == "tool_result":
                form.append(("result", block["tool_use_id"], _parts(block["content"])))
            else:
                form += [(message["role"], *part) for part in _parts([block])]
    (tool,) = body["tools"]
    form.append(("tool", *(tool[field] for field in ("name", "description", "input_schema"))))
    choice = body["tool_choice"]
    form.append(("choice", {"any": "required"}[choice["type"]], not choice["disable_parallel_tool_use"]))
    form.append(("schema", body["output_config"]["format"]["schema"]))
    return [*form, ("limits", body["max_tokens"], body["temperature"])]


def _blocks(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def asked(dialect: str, body: dict[str, Any]) -> Form:
    """What a backend of this dialect was asked."""
    read = {"chat": _asked_of_chat, "responses": _asked_of_responses, "messages": _asked_of_messages}
    return read[dialect](body)


def said(thoughts: Form) -> Form:
    """What that is of the request, with the thoughts of the earlier turn that this backend takes."""
    return [
        ("system", "text", "Be brief."),
        ("user", "text", "Which city?"),
        ("user", "image", IMAGE),
        *thoughts,
        ("assistant", "text", "I look."),
        ("call", "call_a", "get_weather", {"city": "Oslo"}),
        ("call", "call_b", "get_weather", {"city": "Rome"}),
        ("result", "call_a", [("text", "rain")]),
        ("result", "call_b", [("text", "see:"), ("image", IMAGE)]),
        ("tool", "get_weather", "W.", SCHEMA),
        ("choice", "required", False),
        ("schema", ANSWER),
        ("limits", 64, 0.5),
    ]


# ---- a reply: a thought, a text, two calls


def reply(dialect: str) -> dict[str, Any]:
    if dialect == "responses":
        return responses_reply(
            {
                "type": "reasoning",
                "id": "rs_2",
                "summary": [{"type": "summary_text", "text": "Hm."}],
                "encrypted_content": "seal",
            },
            output_text("Both.", "msg_2"),
            {"type": "function_call", "id": "fc_3", "call_id": "call_1", "name": "get_weather", "arguments": OSLO},
            {"type": "function_call", "id": "fc_4", "call_id": "call_2", "name": "get_weather", "arguments": ROME},
        )
    if dialect == "messages":
        return messages_reply(
            {"type": "thinking", "thinking": "Hm.", "signature": "seal"},
            {"type": "text", "text": "Both."},
            {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Oslo"}},
            {"type": "tool_use", "id": "call_2", "name": "get_weather", "input": {"city": "Rome"}},
        )
    calls = [tool_call("get_weather", OSLO, "call_1"), tool_call("get_weather", ROME, "call_2")]
    usage = {
        "prompt_tokens": 11,
        "completion_tokens": 3,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    return chat_reply("Both.", message={"reasoning_content": "Hm.", "tool_calls": calls}, usage=usage)


def chat_stream(whole: dict[str, Any]) -> list[tuple[float, bytes]]:
    """A Chat Completions reply in chunks, with its own usage."""
    message = whole["choices"][0]["message"]
    calls = [{"index": n, **call} for n, call in enumerate(message["tool_calls"])]
    deltas: list[dict[str, Any]] = [{"reasoning_content": "H"}, {"reasoning_content": "m."}]
    deltas += [{"content": "Bo"}, {"content": "th."}, {"tool_calls": calls}]
    head = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    bodies: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    bodies.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    bodies.append({"choices": [], "usage": whole["usage"]})
    frames = [(0.0, b"data: " + json.dumps(head | body).encode() + b"\n\n") for body in bodies]
    return [*frames, (0.0, b"data: [DONE]\n\n")]


async def ask(at: Bench, dialect: str, body: dict[str, Any], streamed: bool) -> tuple[Form, Any]:
    """The reply as the stock client has it: what it says, and how it ended."""
    if dialect == "chat":
        return await _ask_chat(at.client(), body, streamed)
    if dialect == "responses":
        return await _ask_responses(at.client(), body, streamed)
    return await _ask_messages(at.anthropic(), body, streamed)


async def chat_message(client: openai.AsyncOpenAI, body: dict[str, Any], streamed: bool) -> dict[str, Any]:
    """The reply's message as the stock client would send it back."""
    completion = await _completion(client, body, streamed)
    message: dict[str, Any] = completion.choices[0].message.to_dict()
    for call in message.get("tool_calls") or ():
        call.pop("index", None)  # what only the helper adds
        call["function"].pop("parsed_arguments", None)
    return message


async def _completion(client: openai.AsyncOpenAI, body: dict[str, Any], streamed: bool) -> Any:
    async with client:
        if streamed:
            state: Any = ChatCompletionStreamState()
            options = {"stream": True, "stream_options": {"include_usage": True}}
            async for chunk in await client.chat.completions.create(**body, **options):
                state.handle_chunk(chunk)
            return state.current_completion_snapshot
        return await client.chat.completions.create(**body)


async def _ask_chat(client: openai.AsyncOpenAI, body: dict[str, Any], streamed: bool) -> tuple[Form, Any]:
    completion = await _completion(client, body, streamed)
    (choice,) = completion.choices
    message, usage = choice.message, completion.usage
    form: Form = []
    if getattr(message, "reasoning_content", None):
        form.append(("reasoning", message.reasoning_content))
    if message.content:
        form.append(("text", message.content))
    for call in message.tool_calls or ():
        form.append(("call", call.id, call.function.name, json.loads(call.function.arguments)))
    details = usage.prompt_tokens_details
    cached = details.cached_tokens if details is not None else 0
    form.append(("usage", usage.prompt_tokens, usage.completion_tokens, cached))
    return form, choice.finish_reason


async def _ask_responses(client: openai.AsyncOpenAI, body: dict[str, Any], streamed: bool) -> tuple[Form, Any]:
    async with client:
        if streamed:
            body = {key: value for key, value in body.items() if key != "stream"}
            events = [event async for event in await client.responses.create(**body, stream=True)]
            response = events[-1].response
        else:
            response = await client.responses.create(**body)
    form: Form = []
    for item in response.output:
        if item.type == "reasoning":
            form.append(("reasoning", "".join(part.text for part in item.summary)))
        elif item.type == "message":
            form += [("text", getattr(part, "text", None) or part.refusal) for part in item.content]
        else:
            form.append(("call", item.call_id, item.name, json.loads(item.arguments)))
    usage = response.usage
    form.append(("usage", usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens))
    details = response.incomplete_details
    return form, (response.status, None if details is None else details.reason)


async def _ask_messages(client: Any, body: dict[str, Any], streamed: bool) -> tuple[Form, Any]:
    # Fields that the client's own methods do not name yet, or no more.
    extra = {key: body.pop(key) for key in ("temperature", "top_p", "top_k") if key in (body := dict(body))}
    async with client:
        if streamed:
            async with client.messages.stream(**body, extra_body=extra) as stream:
                message = await stream.get_final_message()
        else:
            message = await client.messages.create(**body, extra_body=extra)
    form: Form = []
    for block in message.content:
        if block.type == "thinking":
            assert block.signature
            form.append(("reasoning", block.thinking))
        elif block.type == "text":
            form.append(("text", block.text))
        else:
            form.append(("call", block.id, block.name, block.input))
    usage = message.usage
    cached = usage.cache_read_input_tokens
    form.append(("usage", usage.input_tokens + cached, usage.output_tokens, cached))
    return form, (message.stop_reason, message.stop_sequence)
