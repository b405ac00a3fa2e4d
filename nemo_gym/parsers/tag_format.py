"""Calls that are made of tags: a name, then keys and their values as plain text.

A value runs to the first closing tag that the next key or the end of the call follows, so it may quote the tag (P4). It
may quote whole calls too: a call that is opened inside a value is read beside it, and belongs to the value when the
value closes after it. When the output ends first, the outer call was abandoned, and the inner ones are the calls (P5).
Each character is read once in each role, however deep calls are opened in one another (P8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct

from ..exchange.parts import ToolCall
from ..exchange.tools import Toolbox
from .arguments import tagged_call
from .format import Format, Sink
from .scanner import Reading, Source, markers
from .schema import Schema


class Tags(Struct, frozen=True):
    """Patterns of one way to open a call.

    `head` has the group `name`. `step` follows it, and each value: with the group `key` a value begins, with `name`
    another call of the same wrapper, with `end` all is over. `after` may follow a whole call, and belongs to no text:
    with the group `next` another call begins behind it.
    """

    head: str
    step: str
    after: str = ""


class Frame:
    """A call in progress; ended when it has no key."""

    def __init__(self, opener: int, tags: Tags, name: str) -> None:
        self.opener = opener
        self.tags = tags
        self.calls: list[tuple[str, dict[str, tuple[int, int]]]] = [(name, {})]
        """Names, and where the values are: calls in calls share their text, so none copies it before it counts."""
        self.key = ""
        self.value = 0
        """Where the value of that key begins."""
        self.inner: list[tuple[int, int, Frame]] = []
        """Whole calls inside values, and where they are."""

    def step(self, key: str, value: int, names: list[str]) -> None:
        self.calls += [(name, {}) for name in names]
        self.key, self.value = key.strip(), value


class TagFormat(Format):
    closing: ClassVar[str] = ""
    """The tag that closes a value."""
    nested: ClassVar[tuple[str, ...]] = ()
    """The openers that count inside a value."""
    tags: ClassVar[Mapping[str, Tags]] = {}

    def __init__(self, tools: Toolbox, spelling: Mapping[str, str] | None = None) -> None:
        super().__init__(tools, spelling)
        self._schemas: dict[str, Schema] = {}

    def value(self, text: str) -> str:
        """The value between its tags."""
        return text

    def read(self, source: Source, opener: str, sink: Sink) -> Reading[bool]:
        tags = self.tags[opener]
        while True:
            frame = yield from self._head(source, tags, source.start)
            if frame is None:
                return False
            frames = [frame]
            yield from self._values(source, frames)
            if frame.key:
                self._abandon(source, frames, sink)
                return True
            self._give(source, self._calls(source, frame), sink)
            again = yield from self._after(source, tags)
            if not again:
                return True

    def _give(self, source: Source, calls: list[ToolCall], sink: Sink) -> None:
        for call in calls:
            sink.call(call)
        source.take(source.at)

    def _after(self, source: Source, tags: Tags) -> Reading[bool]:
        """Whether another call follows."""
        found = (yield from source.match(self.pattern(tags.after), source.at)) if tags.after else None
        if found is None:
            return False
        source.at, groups = found
        if groups.get("next") is None:
            source.take(source.at)
        return groups.get("next") is not None

    def _head(self, source: Source, tags: Tags, opener: int) -> Reading[Frame | None]:
        """A call up to its first value or its end; None when none begins. `source.at` is behind what was read."""
        found = yield from source.match(self.pattern(tags.head), source.at)
        if found is None:
            return None
        source.at = found[0]
        frame = Frame(opener, tags, found[1]["name"] or "")
        step = yield from self._step(source, frame)
        return frame if step else None

    def _step(self, source: Source, frame: Frame) -> Reading[bool]:
        """Reads what follows a name or a value up to the next value or the end; False when neither follows."""
        at, names = source.at, list[str]()
        while True:
            found = yield from source.match(self.pattern(frame.tags.step), at)
            if found is None:
                return False
            at, groups = found
            if groups.get("name") is None:
                break
            names.append(groups["name"] or "")
        frame.step(groups["key"] or "", at, names)
        source.at = at
        return True

    def _values(self, source: Source, frames: list[Frame]) -> Reading[None]:
        """Reads a call's values to its end, or to the end of the output; calls inside of them are further frames."""
        closing = self.spell(self.closing)
        nested = {self.spell(opener): self.tags[opener] for opener in self.nested}
        wanted = markers(closing, *nested)
        while frames[0].key:
            found = yield from source.search(wanted, source.at)
            if found is None:
                return
            at, marker = found
            source.at = at + len(marker)
            if marker in nested:
                inner = yield from self._head(source, nested[marker], at)
                if inner is not None:
                    frames.append(inner)
            else:
                frame = frames[-1]
                key, begin = frame.key, frame.value
                values = frame.calls[-1][1]
                step = yield from self._step(source, frame)
                if step:
                    values.setdefault(key, (begin, at))
            while len(frames) > 1 and not frames[-1].key:
                inner = frames.pop()
                frames[-1].inner.append((inner.opener, source.at, inner))

    def _calls(self, source: Source, frame: Frame) -> list[ToolCall]:
        calls = []
        for name, places in frame.calls:
            values = {key: self.value(source.text[begin:end]) for key, (begin, end) in places.items()}
            calls.append(tagged_call(name, values, self.tools, self._schemas))
        return calls

    def _abandon(self, source: Source, frames: list[Frame], sink: Sink) -> None:
        """The output has ended inside the calls: what is whole inside of them counts, all else is text."""
        for frame in frames:
            for opener, end, inner in frame.inner:
                sink.text(opener)
                source.at = end
                self._give(source, self._calls(source, inner), sink)
                after = self.pattern(inner.tags.after).whole.match(source.text, end) if inner.tags.after else None
                if after is not None and after.groupdict().get("next") is None:
                    source.take(after.end())
        sink.text(len(source.text))
