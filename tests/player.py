"""A small agent model for the scripted backend: it looks at the conversation and at the tools, calls one, then answers.

It is a script (`scripted.Script`), so the one scripted backend serves it, in the dialect of the path that was asked.
It keeps nothing between calls: what to do next is read from the conversation, so any number of rollouts may play at
once, a repeat gets what it got before, and a compaction is survived by what its summary says. The bodies are written
by hand after the providers' published APIs, not by the code under test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tests.scripted import Answer, Request

SHELLS = ("exec_command", "shell_command", "shell", "bash", "exec")
WRITERS = ("write", "write_file")
_CALL_ID = re.compile(r"call_(\d+)_\d+")
_DONE = re.compile(r"steps done: (\d+)")


class Tool(Struct, frozen=True):
    name: str
    schema: Mapping[str, Any] | None
    """None: a free-form tool."""
    namespace: str | None = None

    @property
    def short(self) -> str:
        """Without what a server put before it to tell namespaces apart."""
        return re.split(r"__|[.]", self.name)[-1].lower()


class Call(Struct, frozen=True):
    """A call in the model's words: a tool by one of its names, and arguments, or raw input for a free-form tool."""

    tools: tuple[str, ...]
    arguments: Mapping[str, Any] | str = {}
    """A pattern, alone or in a list, stands for what its group last matched in the conversation."""
    code: str = ""
    """What to say instead to a tool that takes code."""


class Turn(Struct, frozen=True):
    """What the model does once."""

    calls: tuple[Call, ...] = ()
    text: str = ""
    reasoning: tuple[str, ...] = ()
    cut: bool = False
    """It stopped for length."""


def shell(command: str, **more: Any) -> Call:
    code = f"const r = await tools.exec_command({msgspec.json.encode({'cmd': command}).decode()}); text(r);"
    return Call(SHELLS, {"command": command, "cmd": command} | more, code)


def write(path: str, text: str) -> Call:
    return Call(WRITERS, {"path": path, "filePath": path, "file_path": path, "content": text})


class Conversation(Struct, frozen=True):
    """What a request says, whatever the dialect."""

    dialect: str
    tools: tuple[Tool, ...]
    said: tuple[str, ...]
    """Every text in it, in order."""
    turns: int
    """The model's own earlier turns that called a tool."""
    body: Mapping[str, Any]
    size: int = 0

    @property
    def done(self) -> int:
        """The steps that were taken: those that are here, and those that a summary tells of."""
        told = [int(number) for text in self.said for number in _DONE.findall(text)]
        return self.turns + (told[-1] if told else 0)


Plan = Callable[[Conversation], Turn]


class Player:
    """A script: `plans` by a word of the task (the one said last decides), or one sequence of turns for all.

    In `order` the turns are given one a request, whatever the conversation. After its turns a plan has been played, and
    the last turn is given again. A request without tools (a title, a compaction) gets a line of text that says how far
    the work is.
    """

    def __init__(
        self,
        plans: Mapping[str, Sequence[Turn]] | Sequence[Turn],
        usage: Callable[[Conversation], int] | None = None,
        order: bool = False,
        delay: float = 0.0,
    ) -> None:
        self._order = order
        self._delay = delay
        self._plans = plans if isinstance(plans, Mapping) else {"": plans}
        self._usage = usage
        self.turns: list[tuple[Conversation, Turn]] = []
        """What came and what was done about it."""

    def __call__(self, request: Request) -> Answer:
        if request.method == "GET":
            return Answer({"object": "list", "data": [{"id": "scripted-model", "object": "model"}]})
        if not request.asks:
            return Answer({"error": {"message": "no such route", "type": "not_found"}}, 404)
        seen = read(request)
        turn = self._turn(seen)
        self.turns.append((seen, turn))
        number = len(self.turns)
        reply = _WRITERS[seen.dialect](turn, seen, number, seen.size // 4)
        if self._usage is not None:
            _count(reply["usage"], self._usage(seen))
        return Answer(reply, delay=self._delay)

    def _turn(self, seen: Conversation) -> Turn:
        if not seen.tools:
            return Turn(text=f"steps done: {seen.done}")
        found = [(place, word) for word in self._plans for place, text in enumerate(seen.said) if word in text]
        if not found:
            return Turn(text="I do not know this task.")
        plan = self._plans[max(found)[1]]
        return plan[min(len(self.turns) if self._order else seen.done, len(plan) - 1)]


# ---- reading


def read(request: Request) -> Conversation:
    reader = next(reader for path, reader in _READERS.items() if request.path.endswith(path))
    return replace(reader(request.json()), size=len(request.body))


def _texts(content: Any) -> list[str]:
    """Every text inside a content, however deep."""
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return [text for part in content for text in _texts(part)]
    if isinstance(content, dict):
        return [text for key in ("text", "content", "output", "encrypted_content") for text in _texts(content.get(key))]
    return []


def _read_chat(body: Any) -> Conversation:
    tools = tuple(Tool(one["function"]["name"], one["function"].get("parameters", {})) for one in body.get("tools", ()))
    messages = body["messages"]
    said = tuple(text for message in messages for text in _texts(message.get("content")))
    return Conversation("chat", tools, said, sum(bool(message.get("tool_calls")) for message in messages), body)


def _read_responses(body: Any) -> Conversation:
    items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    declared = [*body.get("tools", ())]
    declared += [tool for item in items if item.get("type") == "additional_tools" for tool in item["tools"]]
    kinds = [str(item.get("type")) for item in items]
    turns = sum(
        kind.endswith("_call") and not (place and kinds[place - 1].endswith("_call"))
        for place, kind in enumerate(kinds)
    )
    said = tuple(text for item in items for text in _texts(item))
    return Conversation("responses", tuple(_responses_tools(declared)), said, turns, body)


def _responses_tools(declared: list[Any], namespace: str | None = None) -> list[Tool]:
    tools: list[Tool] = []
    for tool in declared:
        if tool["type"] == "namespace":
            tools += _responses_tools(tool["tools"], tool["name"])
        elif tool["type"] == "function":
            tools.append(Tool(tool["name"], tool.get("parameters") or {}, namespace))
        elif tool["type"] == "custom":
            tools.append(Tool(tool["name"], None, namespace))
    return tools


def _read_messages(body: Any) -> Conversation:
    tools = tuple(Tool(tool["name"], tool["input_schema"]) for tool in body.get("tools", ()) if "input_schema" in tool)
    blocks = [[b for b in m["content"] if isinstance(b, dict)] if isinstance(m["content"], list) else []
              for m in body["messages"]]  # fmt: skip
    turns = sum(any(block["type"] == "tool_use" for block in message) for message in blocks)
    said = tuple(text for message in body["messages"] for text in _texts(message["content"]))
    return Conversation("messages", tools, said, turns, body)


_READERS = {"/chat/completions": _read_chat, "/responses": _read_responses, "/messages": _read_messages}


# ---- calling


def _called(call: Call, seen: Conversation) -> tuple[Tool, dict[str, Any] | str]:
    for name in call.tools:
        for tool in seen.tools:
            if tool.short == name:
                return tool, _matched(_arguments(call, tool), seen.said)
    raise AssertionError(f"none of {call.tools} is among {[tool.name for tool in seen.tools]}")


def _matched(value: Any, said: Sequence[str]) -> Any:
    if isinstance(value, re.Pattern):
        found = [match for text in said for match in value.findall(text)]
        assert found, f"nothing in the conversation matches {value.pattern}"
        return found[-1]
    if isinstance(value, dict):
        return {name: _matched(one, said) for name, one in value.items()}
    return [_matched(one, said) for one in value] if isinstance(value, list) else value


def _arguments(call: Call, tool: Tool) -> dict[str, Any] | str:
    if tool.schema is None or (set(tool.schema.get("properties", ())) == {"input"} and call.code):
        text = call.arguments if isinstance(call.arguments, str) else call.code
        return text if tool.schema is None else {"input": text}
    if isinstance(call.arguments, str):
        return {"input": call.arguments}
    properties: Mapping[str, Any] = tool.schema.get("properties", {})
    chosen = {name: value for name, value in call.arguments.items() if name in properties}
    for name in tool.schema.get("required", ()):
        chosen.setdefault(name, _filler(properties.get(name, {})))
    for name, value in chosen.items():
        if properties[name].get("type") == "array" and isinstance(value, str):
            chosen[name] = ["bash", "-lc", value]
    return chosen


def _filler(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    return {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}.get(
        schema.get("type", ""), "a step"
    )


# ---- writing


def _json(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _said(number: int) -> list[int]:
    """The twenty tokens of a turn."""
    return [100 * number + place for place in range(20)]


def _tokens(message: Mapping[str, Any]) -> list[int]:
    """One token a message; the model's own turn, known by its call, has those that it was said with."""
    calls = message.get("tool_calls") or ({"id": ""},)
    mine = _CALL_ID.fullmatch(calls[0]["id"])
    return _said(int(mine[1])) if mine else [len(msgspec.json.encode(message))]


def _count(usage: dict[str, Any], prompt: int) -> None:
    usage["input_tokens" if "input_tokens" in usage else "prompt_tokens"] = prompt
    if "total_tokens" in usage:
        usage["total_tokens"] = prompt + 20


def _write_chat(turn: Turn, seen: Conversation, number: int, prompt: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.reasoning:
        message["reasoning_content"] = "\n".join(turn.reasoning)
    if turn.calls:
        calls = [_called(call, seen) for call in turn.calls]
        message["tool_calls"] = [
            {"id": f"call_{number}_{place}", "type": "function",
             "function": {"name": tool.name, "arguments": _json(arguments)}}
            for place, (tool, arguments) in enumerate(calls)
        ]  # fmt: skip
    finish = "length" if turn.cut else "tool_calls" if turn.calls else "stop"
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    ids: dict[str, Any] = {}
    if seen.body.get("return_token_ids"):  # as vLLM gives them
        ids = {"prompt_token_ids": [token for one in seen.body["messages"] for token in _tokens(one)]}
        prompt = len(ids["prompt_token_ids"])
        token = {"token": "t", "logprob": -0.5, "bytes": None, "top_logprobs": []}
        choice |= {"token_ids": _said(number), "logprobs": {"content": [token] * 20}}
    return ids | {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "scripted-model",
        "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 20, "total_tokens": prompt + 20},
    }


def _write_responses(turn: Turn, seen: Conversation, number: int, prompt: int) -> dict[str, Any]:
    output: list[dict[str, Any]] = [
        {"id": f"rs_{number}_{place}", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}],
         "encrypted_content": f"gAAAA{number:04}{place:04}" * 8}
        for place, text in enumerate(turn.reasoning)
    ]  # fmt: skip
    if turn.text:
        part = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
        done = "incomplete" if turn.cut else "completed"
        output.append(
            {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": done, "content": [part]}
        )
    for place, call in enumerate(turn.calls):
        tool, arguments = _called(call, seen)
        item: dict[str, Any] = {"id": f"fc_{number}_{place}", "call_id": f"call_{number}_{place}", "name": tool.name}
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        if tool.schema is None:
            item |= {"type": "custom_tool_call", "input": arguments, "status": "completed"}
        else:
            item |= {"type": "function_call", "arguments": _json(arguments), "status": "completed"}
        output.append(item)
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "incomplete" if turn.cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if turn.cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "model": "scripted-model",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + 20,
        },
    }


def _write_messages(turn: Turn, seen: Conversation, number: int, prompt: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": text, "signature": f"sig{number:04}{place:04}" * 8}
        for place, text in enumerate(turn.reasoning)
    ]
    if turn.text:
        content.append({"type": "text", "text": turn.text})
    for place, call in enumerate(turn.calls):
        tool, arguments = _called(call, seen)
        content.append({"type": "tool_use", "id": f"toolu_{number}_{place}", "name": tool.name, "input": arguments})
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "scripted-model",
        "content": content,
        "stop_reason": "max_tokens" if turn.cut else "tool_use" if turn.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": prompt, "output_tokens": 20},
    }


_WRITERS = {"chat": _write_chat, "responses": _write_responses, "messages": _write_messages}
