"""A model folder's tokenizer: text <-> ids, and which ids end a turn.

The `tokenizers` package reads what nearly every model ships, in a tenth of a second; a folder without
`tokenizer.json` is read by transformers.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Tokenizer:
    """Args:
    folder: a model folder.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.config = read_json(folder / "tokenizer_config.json")
        self.special = dict(_special(self.config))
        self._fast: Any = None
        self._slow: Any = None
        if (folder / "tokenizer.json").is_file():
            from tokenizers import Tokenizer as Fast

            self._fast = Fast.from_file(str(folder / "tokenizer.json"))
        else:
            from transformers import AutoTokenizer

            self._slow = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.end_ids = frozenset(self._end_ids(folder))

    @property
    def added(self) -> dict[str, int]:
        """What is one token by decree, not by the merges: `<tool_call>`, end tokens and the like."""
        if self._fast is not None:
            return {token.content: number for number, token in self._fast.get_added_tokens_decoder().items()}
        return dict(self._slow.get_added_vocab())

    def encode(self, text: str) -> array:
        """The ids of a rendered prompt: special tokens in the text are themselves, none is added."""
        if self._fast is not None:
            return array("i", self._fast.encode(text, add_special_tokens=False).ids)
        return array("i", self._slow.encode(text, add_special_tokens=False))

    def decode(self, ids: Iterable[int]) -> str:
        whole = self._fast or self._slow
        return str(whole.decode(list(ids), skip_special_tokens=False))

    def _end_ids(self, folder: Path) -> Iterable[int]:
        for name in ("generation_config.json", "config.json"):
            ids = read_json(folder / name).get("eos_token_id")
            yield from ids if isinstance(ids, list) else [] if ids is None else [ids]
        end = self.special.get("eos_token")
        if end is not None:
            ids = self.encode(end)
            yield from ids if len(ids) == 1 else ()


def _special(config: dict[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in config.items():
        if key.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                yield key, text


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a model folder; {} where there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return value if isinstance(value, dict) else {}
