"""What was recorded: listed, shown, checked and counted; followed, mended, taken out and put away."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.arguments import WRONG, Parser, in_words
from nemo_gym.cli.capture_upkeep import add_commands
from nemo_gym.cli.pipe import ends_in_order

if TYPE_CHECKING:
    from nemo_gym.capture import CallRecord, CaptureStore, Seal
    from nemo_gym.exchange.parts import Message, Part

_DIRECTORY = "a capture folder, or one with capture folders below it (default: results)"
_CUT = 400
"""Characters of a text that `show` prints without --full."""


@ends_in_order
def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    from nemo_gym.capture import CaptureStore

    try:
        stores = [CaptureStore(directory) for directory in arguments.directories or ["results"]]
        return int(arguments.run(stores, arguments))
    except BrokenPipeError:
        raise
    except (OSError, ValueError, KeyError) as error:
        print(f"ng_captures: {in_words(error)}", file=sys.stderr)
        return WRONG


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="ng_captures", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="list|show|verify|stats|tail|repair|export|prune|upload")
    for name, run, says in (
        ("list", _list, "the recorded rollouts, a line each"),
        ("show", _show, "a rollout or a call as a conversation"),
        ("verify", _verify, "what is missing, torn or changed; 1 when something is"),
        ("stats", _stats, "calls, tokens and bytes"),
    ):
        command = commands.add_parser(name, help=says, description=says)
        if name == "show":
            command.add_argument("id", help="a rollout's or a call's id, or its beginning")
            command.add_argument("--full", action="store_true", help="long texts whole")
        command.add_argument("directories", nargs="*", default=[], metavar="DIR", help=_DIRECTORY)
        command.add_argument("--json", action="store_true", help="as JSON")
        command.set_defaults(run=run)
    add_commands(commands, {"nargs": "*", "default": [], "metavar": "DIR", "help": _DIRECTORY})
    return parser


# ---- list


def _list(stores: list[CaptureStore], arguments: argparse.Namespace) -> int:
    rollouts = [row for store in stores for row in _rollouts(store)]
    if arguments.json:
        print(json.dumps({"rollouts": rollouts}, indent=2))
        return 0
    if not rollouts:
        print("nothing is recorded there")
        return 0
    head = ("rollout", "calls", "failed", "tokens in", "tokens out", "began", "state")
    cells = [
        (
            row["rollout_id"] or "(none)",
            *(f"{row[name]:,}" for name in ("calls", "failed", "prompt_tokens", "completion_tokens")),
            _time(row["began"]),
            row["state"],
        )
        for row in rollouts
    ]
    _print_table(head, cells)
    return 0


def _rollouts(store: CaptureStore) -> list[dict[str, Any]]:
    columns = ["rollout_id", "run_id", "status", "prompt_tokens", "completion_tokens", "received_at", "server"]
    seals: dict[tuple[str, str], list[Seal]] = {}
    for (run_id, _), seal in store.seals_of_runs():
        seals.setdefault((run_id, seal.rollout_id), []).append(seal)
    found: dict[tuple[str, str], dict[str, Any]] = {}  # a later run may name its rollouts alike
    for row in _rows(store, columns):
        entry = found.setdefault(
            (row["run_id"], row["rollout_id"]),
            {
                **{name: row[name] for name in ("rollout_id", "run_id")},
                **dict.fromkeys(("calls", "failed", "prompt_tokens", "completion_tokens"), 0),
                "began": row["received_at"],
            },
        )
        entry["calls"] += 1
        entry["failed"] += row["status"] != "answered"
        entry["prompt_tokens"] += row["prompt_tokens"] or 0
        entry["completion_tokens"] += row["completion_tokens"] or 0
        entry["began"] = min(entry["began"], row["received_at"])
    for (run_id, rollout_id), entry in found.items():
        entry["state"] = (
            _state(seals.get((run_id, rollout_id), []), entry["calls"]) if rollout_id else "without a rollout"
        )
    return sorted(found.values(), key=lambda entry: entry["began"])


def _rows(store: CaptureStore, columns: list[str]) -> Iterator[dict[str, Any]]:
    """One a call; of a long run only some are in memory at a time."""
    for piece in store.tables(columns)[1]:
        yield from piece.to_pylist()


def _state(seals: list[Seal], calls: int) -> str:
    for seal in seals:
        if seal.incomplete is not None:
            return f"incomplete: {seal.incomplete}"
    return "complete" if seals and sum(len(seal.call_ids) for seal in seals) >= calls else "unsealed"


# ---- show


def _show(stores: list[CaptureStore], arguments: argparse.Namespace) -> int:
    from nemo_gym.capture import to_json

    records = _found(stores, arguments.id)
    if arguments.json:
        print(json.dumps({"calls": [to_json(record) for record in records]}, indent=2))
        return 0
    cut = None if arguments.full else _CUT
    shown: dict[str, Sequence[Message]] = {}
    for record in records:
        messages = record.received.messages if record.received is not None else ()
        pairs = zip(shown.get(record.parent_call_id or "", ()), messages, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        _show_call(record, shared, cut)
        shown[record.call_id] = messages
    return 0


def _found(stores: list[CaptureStore], wanted: str) -> list[CallRecord]:
    for store in stores:
        if exact := list(store.calls(wanted)):  # found by index
            return exact
        ids = [
            row
            for row in _rows(store, ["rollout_id", "call_id"])
            if row["call_id"].startswith(wanted) or (row["rollout_id"] or "").startswith(wanted)
        ]
        rollouts = sorted({row["rollout_id"] for row in ids if (row["rollout_id"] or "").startswith(wanted)})
        if len(rollouts) == 1:
            return list(store.calls(rollouts[0]))
        calls = [row for row in ids if row["call_id"].startswith(wanted)]
        if len(calls) == 1:
            (call,) = calls
            return [one for one in store.calls(call["rollout_id"]) if one.call_id == call["call_id"]]
        if len(rollouts) + len(calls) > 1:
            some = [*rollouts, *(row["call_id"] for row in calls)][:5]
            raise ValueError(f"{wanted!r} is the beginning of more than one id: {', '.join(some)}, …")
    raise ValueError(f"there is no rollout or call {wanted!r}")


def _show_call(record: CallRecord, before: int, cut: int | None) -> None:
    times = record.times
    relation = record.relation + (f" of {record.parent_call_id}" if record.parent_call_id else "")
    print(f"── call {record.call_id}  {relation}  {record.status}  {_time(times.received)}")
    print(f"   {record.server}, {record.dialect}, {times.replied - times.received:.3f} s", end="")
    reply = record.reply
    if reply is not None:
        print(f", {reply.model}, {_count(reply.usage.prompt)} + {_count(reply.usage.completion)} tokens", end="")
    print(f", history {record.history}" if record.history else "")
    if record.prefix_break is not None:
        print(f"   the prompt leaves the parent's tokens at {record.prefix_break[0]}: {record.prefix_break[1]}")
    messages = record.received.messages if record.received is not None else ()
    if before:
        print(f"   ({before} message{'s'[: before > 1]} as in that call)")
    for message in messages[before:]:
        _show_parts(message.role, message.parts, cut)
    for choice in reply.choices if reply is not None else ():
        _show_parts(f"reply {choice.index}" if len(reply.choices) > 1 else "reply", choice.parts, cut)  # type: ignore[union-attr]
        tokens = choice.tokens
        summary = f"   └ {choice.finish}"
        if tokens is not None and tokens.ids is not None:
            summary += f", {len(tokens.ids)} token ids"
        if tokens is not None and tokens.logprobs:
            mean = sum(tokens.logprobs) / len(tokens.logprobs)
            summary += f", log-prob mean {mean:.3f}, least {min(tokens.logprobs):.3f}"
        print(summary)
    if record.error is not None:
        print(f"   error {record.error.status} {record.error.kind}: {record.error.message}")
    print()


def _show_parts(who: str, parts: Sequence[Part], cut: int | None) -> None:
    for part in parts:
        text = _said(part)
        if cut is not None and len(text) > cut:
            text = f"{text[:cut]}… ({len(text) - cut:,} more characters)"
        lines = text.splitlines() or [""]
        print(f"   {who:>9} │ {lines[0]}")
        for line in lines[1:]:
            print(f"   {'':>9} │ {line}")


def _said(part: Part) -> str:
    from nemo_gym.exchange import parts

    match part:
        case parts.Text(text=text) | parts.Refusal(text=text):
            return text
        case parts.Reasoning(text=text):
            return f"(reasoning) {text}"
        case parts.ToolCall(name=name, arguments=arguments, call_id=call_id):
            return f"→ {name}({arguments})  {call_id}"
        case parts.ToolResult(call_id=call_id, parts=inner):
            return f"← {call_id}: " + " ".join(_said(one) for one in inner)
        case parts.Media(kind=kind, source=source):
            return f"({kind}, {len(source):,} characters)"
    return f"({part.dialect} {part.body.get('type', 'item')})"


# ---- verify


def _verify(stores: list[CaptureStore], arguments: argparse.Namespace) -> int:
    import msgspec

    from nemo_gym.capture.shard import SUFFIX

    reports = {str(store.directory): store.verify() for store in stores}
    ok = all(report.ok for report in reports.values())
    if arguments.json:
        found = {name: {"ok": report.ok, **msgspec.to_builtins(report)} for name, report in reports.items()}
        print(json.dumps({"ok": ok, "directories": found}, indent=2))
        return 0 if ok else 1
    for name, report in reports.items():
        print(f"{name}: {report.shards} shards, {report.calls:,} calls, {report.rollouts:,} rollouts", end="")
        print(f", {report.without_rollout:,} calls without a rollout" if report.without_rollout else "")
        for path in report.open:
            print(f"  open: {path} (its writer is running, or was killed)")
        for torn in report.torn:
            lost = "; no acknowledged one is in them" if torn.path.endswith(SUFFIX) else ""
            print(f"  torn: {torn.path}, {torn.bytes} bytes after the last whole record{lost}")
        if report.unsealed:
            some = ", ".join(report.unsealed[:5]) + (", …" if len(report.unsealed) > 5 else "")
            print(f"  unsealed: {len(report.unsealed)} rollouts ({some})")
        if report.late:
            calls = sum(map(len, report.late.values()))
            print(f"  late: {calls} calls came after the seal of their rollout ({', '.join(sorted(report.late)[:5])})")
        for reason, count in sorted(Counter(report.incomplete.values()).items()):
            print(f"  incomplete: {count} rollouts ({reason})")
        for problem in report.problems:
            print(f"  PROBLEM: {problem}")
    print("clean" if ok else f"{sum(len(report.problems) for report in reports.values())} problems")
    return 0 if ok else 1


# ---- stats


def _stats(stores: list[CaptureStore], arguments: argparse.Namespace) -> int:
    import pyarrow.compute as pc

    stats: dict[str, Any] = {"shards": 0, "bytes": 0, "calls": 0, "rollouts": 0}
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("status", "relation", "dialect", "server")}
    tokens: Counter[str] = Counter()
    for store in stores:
        paths = store.paths()
        stats["shards"] += len(paths)
        stats["bytes"] += sum(Path(path).stat().st_size for path in paths)
        sums = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens")
        rollouts: set[str] = set()
        for piece in store.tables([*counts, *sums, "rollout_id", "new_prompt_ids"])[1]:
            stats["calls"] += piece.num_rows
            rollouts.update(piece.column("rollout_id").unique().to_pylist())
            for name, counter in counts.items():
                counter.update(piece.column(name).to_pylist())
            for name in sums:
                tokens[name] += pc.sum(piece.column(name)).as_py() or 0
            tokens["new_prompt_ids"] += pc.sum(pc.list_value_length(piece.column("new_prompt_ids"))).as_py() or 0
        stats["rollouts"] += len(rollouts - {None})
    stats |= {"tokens": dict(tokens), **{name: dict(counter.most_common()) for name, counter in counts.items()}}
    if arguments.json:
        print(json.dumps(stats, indent=2))
        return 0
    for name, value in stats.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {count:,}" for key, count in value.items()) or "none"
        print(f"{name:>9}  {value if isinstance(value, str) else f'{value:,}'}")
    return 0


# ---- on the screen


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        numbers = range(1, 5)
        cells = (
            cell.rjust(w) if n in numbers else cell.ljust(w)
            for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


if __name__ == "__main__":
    sys.exit(main())
