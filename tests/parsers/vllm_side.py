"""vLLM's own parsers behind one small face; import it only where the vllm extra is installed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
from vllm.parser.harmony import HarmonyParser
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.gptoss_tool_parser import GptOssToolParser

from tests.parsers.writers import TOOLS

MARKERS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<minimax:tool_call>",
    "</minimax:tool_call>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_end|>",
    *(f"<\uff5ctool▁{name}\uff5c>" for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")),
]  # fmt: skip


class Tokenizer:
    """A vocabulary of the markers, and of single characters."""

    chat_template = None
    all_special_tokens = MARKERS

    def __init__(self, markers: Iterable[str] = MARKERS) -> None:
        self._ids = {marker: 200_000 + n for n, marker in enumerate(markers)}
        self._texts = {id: marker for marker, id in self._ids.items()}
        self._split = re.compile("|".join(map(re.escape, self._ids)) + "|.", re.DOTALL)
        self.all_special_ids = list(self._texts)

    def get_vocab(self) -> dict[str, int]:
        return self._ids

    get_added_vocab = get_vocab

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [self._ids.get(piece) or ord(piece) for piece in self._split.findall(text)]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        return "".join(self._texts.get(id) or chr(id) for id in ids)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._ids.get(token)


REQUEST = ChatCompletionRequest(messages=[{"role": "user", "content": "a"}], model="m", tools=TOOLS)


class Harmony(HarmonyParser):
    """vLLM reads this one from ids, with the package's own reader below its Python."""

    tool_parser_cls = GptOssToolParser


def harmony_ids(text: str) -> list[int]:
    return list(get_encoding().encode(text, allowed_special="all"))


def harmony_pieces(text: str) -> list[str]:
    """The text cut where its tokens end, several tokens together where a character needs them."""
    pieces, held = [], list[int]()
    for id in harmony_ids(text):
        held.append(id)
        if "\ufffd" not in (piece := get_encoding().decode(held)):
            pieces.append(piece)
            held.clear()
    return pieces


def parser(name: str) -> Any:
    markers = [*MARKERS, "[ARGS]"] if name == "mistral" else MARKERS
    kind = ToolParserManager.get_tool_parser("mistral" if name.startswith("mistral") else name)
    return kind(Tokenizer(markers), REQUEST.tools)


def whole(name: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    if name == "harmony":
        _, said, called = Harmony(Tokenizer(), REQUEST.tools).parse(
            text, REQUEST, model_output_token_ids=harmony_ids(text)
        )
        return said or "", [(call.name, call.arguments) for call in called or ()]
    read = parser(name).extract_tool_calls(text, REQUEST)
    return read.content or "", [(call.function.name, call.function.arguments) for call in read.tool_calls]


def incremental(name: str, pieces: Iterable[str]) -> tuple[str, list[tuple[str, str]]]:
    """As its server feeds it: everything so far and what is new."""
    reader = parser(name)
    encode = reader.model_tokenizer.encode
    before, ids = "", list[int]()
    content, calls = "", dict[int, list[str]]()
    deltas = []
    for piece in pieces:
        new = encode(piece)
        now = before + piece
        deltas.append(reader.extract_tool_calls_streaming(before, now, piece, ids, [*ids, *new], new, REQUEST))
        before, ids = now, [*ids, *new]
    if hasattr(reader, "finish_streaming"):
        deltas.append(reader.finish_streaming())
    for delta in deltas:
        if delta is None:
            continue
        content += delta.content or ""
        for call in delta.tool_calls or ():
            held = calls.setdefault(call.index, ["", ""])
            held[0] += (call.function.name if call.function else None) or ""
            held[1] += (call.function.arguments if call.function else None) or ""
    return content, [(name, arguments) for name, arguments in calls.values()]


def measured(name: str, text: str, pieces: list[str], measure: Callable[..., float]) -> tuple[float, float]:
    """Seconds for a whole reply, and for one in pieces; making the parsers and the ids is not counted."""
    if name == "harmony":
        return _harmony_measured(text, pieces, measure)
    readers = iter([parser(name) for _ in range(10)])
    encode = Tokenizer(MARKERS).encode
    steps, before, ids = [], "", list[int]()
    for piece in pieces:
        new = encode(piece)
        steps.append((before, before + piece, piece, ids, [*ids, *new], new))
        before, ids = before + piece, [*ids, *new]

    def read() -> None:
        reader = next(readers)
        for step in steps:
            reader.extract_tool_calls_streaming(*step, REQUEST)

    return measure(lambda: next(readers).extract_tool_calls(text, REQUEST), runs=5), measure(read, runs=5)


def _harmony_measured(text: str, pieces: list[str], measure: Callable[..., float]) -> tuple[float, float]:
    ids, steps = harmony_ids(text), [harmony_ids(piece) for piece in pieces]

    def whole() -> None:
        Harmony(Tokenizer(), REQUEST.tools).parse(text, REQUEST, model_output_token_ids=ids)

    def read() -> None:
        reader = Harmony(Tokenizer(), REQUEST.tools)
        for n, (piece, step) in enumerate(zip(pieces, steps, strict=True)):
            reader.parse_delta(piece, step, REQUEST, finished=n == len(pieces) - 1)

    return measure(whole, runs=5), measure(read, runs=5)


def reasoning(name: str, text: str) -> tuple[str, str]:
    reader = ReasoningParserManager.get_reasoning_parser(name)(Tokenizer())
    thought, content = reader.extract_reasoning(text, REQUEST)
    return thought or "", content or ""
