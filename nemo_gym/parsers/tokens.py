"""Markers known by their ids: what is one special token is markup, the same characters written out are text.

Where ids come with the text, each special token in it is given a spelling that no text has (a lone surrogate), the
parser looks for that, and what comes out is spelled as before. So formats know nothing of ids.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ..exchange.parts import Part, Reasoning, Text, ToolCall
from .parser import BaseParser, Parsed, ParserStream

_SURROGATE = re.compile("[\ud800-\udfff]")


class Vocabulary(Struct, frozen=True):
    """What a tokenizer knows of ids.

    Attributes:
        special: the ids of what is one token (`<tool_call>`, `</think>`, ...).
        decode: the text of some ids, special tokens included.
    """

    special: Mapping[str, int]
    decode: Callable[[Sequence[int]], str]

    @classmethod
    def of(cls, tokenizer: Any) -> Vocabulary:
        """That of a tokenizer of transformers, or of the tokenizers package."""
        if hasattr(tokenizer, "get_added_tokens_decoder"):
            added = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items()}
        else:
            added = tokenizer.get_added_vocab()
        return cls(added, lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)))


@cache
def harmony_vocabulary() -> Vocabulary:
    """Harmony's own, from the `openai-harmony` package.

    The fork that vLLM brings, `oss-harmony`, holds the vocabulary; the original downloads it.
    """
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    special = {text: encoding.encode(text, allowed_special="all")[0] for text in encoding.special_tokens_set}
    return Vocabulary(special, lambda ids: str(encoding.decode(list(ids))))


def reasoning_tokens(parsed: Parsed, vocabulary: Vocabulary, ids: Sequence[int]) -> int:
    """How many of the ids are what the parser claimed as reasoning; its markers are not."""
    count, begin = 0, 0
    text = vocabulary.decode(ids)
    for part in parsed.parts:
        if isinstance(part, Reasoning) and (at := text.find(part.text, begin)) >= 0:
            begin = at + len(part.text)
            count += _until(vocabulary, ids, begin) - _until(vocabulary, ids, at)
    return count


def _until(vocabulary: Vocabulary, ids: Sequence[int], length: int) -> int:
    """How many ids make a text of at least that length."""
    return bisect_left(range(len(ids)), length, key=lambda n: len(vocabulary.decode(ids[:n])))


class Spellable(Protocol):
    """A parser whose markers can have another spelling."""

    @property
    def specials(self) -> tuple[str, ...]: ...

    def spelled(self, spelling: Mapping[str, str]) -> ParserStream: ...


class TokenParser(BaseParser):
    """Reads by ids where they come with the text, and as ever where they do not."""

    def __init__(self, parser: Spellable, vocabulary: Vocabulary) -> None:
        self._parser = parser
        self._vocabulary = vocabulary
        known = [marker for marker in parser.specials if marker in vocabulary.special]
        self._spelling = {marker: chr(0xDC00 + n) for n, marker in enumerate(known)}
        self._by_id = {vocabulary.special[marker]: marker for marker in known}

    def stream(self) -> TokenStream:
        return TokenStream(self._parser, self._vocabulary, self._spelling, self._by_id)


class TokenStream:
    """The ids of a piece, or of pieces before it, cover its text: text may lag behind ids, never run ahead."""

    def __init__(
        self, parser: Spellable, vocabulary: Vocabulary, spelling: Mapping[str, str], by_id: Mapping[int, str]
    ) -> None:
        self._parser = parser
        self._decode = vocabulary.decode
        self._spelling = spelling
        self._by_id = by_id
        self._markers = {spelled: marker for marker, spelled in spelling.items()}
        self._stream: ParserStream | None = None
        self._has_ids = False
        self._text = ""
        self._ids: list[int] = []
        """Since the last special token."""
        self._said = 0
        """How much of their text was passed on."""
        self._searched = 0
        """How many of them are known to be ordinary."""

    def feed(self, text: str, ids: array | None = None) -> list[Part]:
        if self._stream is None:
            if not text and not ids:
                return []
            self._has_ids = ids is not None
            self._stream = self._parser.spelled(self._spelling if self._has_ids else {})
        if not self._has_ids:
            return self._stream.feed(text)
        self._text += _SURROGATE.sub("�", text)
        self._ids += ids or ()
        return self._restored(self._stream.feed(self._aligned(final=False)))

    def finish(self) -> list[Part]:
        stream = self._stream or self._parser.spelled({})
        if not self._has_ids:
            return stream.finish()
        return self._restored([*stream.feed(self._aligned(final=True)), *stream.finish()])

    def _aligned(self, *, final: bool) -> str:
        """The text that is certain, its special tokens respelled."""
        pieces: list[str] = []
        text, begin, first = self._text, 0, 0
        while (at := self._special()) is not None:
            marker = self._by_id[self._ids[at]]
            ordinary = self._ids[first:at]
            position = begin + max(0, (len(self._decode(ordinary)) if ordinary else 0) - self._said)
            if not final and len(text) < position + len(marker):
                break
            if text.startswith(marker, position):
                end = position + len(marker)
            else:  # decoded otherwise than in one piece, or left out of the text
                nearby = text.find(marker, max(begin, position - len(marker)), position + 2 * len(marker))
                position = min(position, len(text)) if nearby < 0 else nearby
                end = position if nearby < 0 else position + len(marker)
            pieces += text[begin:position], self._spelling[marker]
            begin, first = end, at + 1
            self._said, self._searched = 0, first
        else:
            pieces.append(text[begin:])
            self._said += len(text) - begin
            begin = len(text)
        if final:
            pieces.append(text[begin:])
            begin = len(text)
        self._text, self._ids = text[begin:], self._ids[first:]
        self._searched -= first
        return "".join(pieces)

    def _special(self) -> int | None:
        """Where the next special token is."""
        for at in range(self._searched, len(self._ids)):
            if self._ids[at] in self._by_id:
                self._searched = at
                return at
        self._searched = len(self._ids)
        return None

    def _restored(self, parts: Iterable[Part]) -> list[Part]:
        return [self._restore(part) for part in parts]

    def _restore(self, part: Part) -> Part:
        if isinstance(part, Text | Reasoning):
            return replace(part, text=self._plain(part.text)) if _SURROGATE.search(part.text) else part
        if isinstance(part, ToolCall) and _SURROGATE.search(part.arguments + part.name):
            return replace(part, name=self._plain(part.name), arguments=self._plain(part.arguments))
        return part

    def _plain(self, text: str) -> str:
        return _SURROGATE.sub(lambda match: self._markers.get(match[0], match[0]), text)
