"""`ng_captures tail`, `repair`, `export`, `prune` and `upload`: a capture followed, mended, taken out and put away."""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.arguments import a_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nemo_gym.capture import CallRecord, CaptureStore
    from nemo_gym.capture.pruning import Pruned

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def add_commands(commands: Any, directories: dict[str, Any]) -> None:
    command = _command(commands, "tail", tail, "calls as they are recorded, a line each", directories)
    command.add_argument("--from-start", action="store_true", help="also what is recorded already")
    command.add_argument("--for", type=float, dest="for_s", metavar="SECONDS", help="end after that time")
    command = _command(
        commands, "repair", repair, "end and pack the shards of killed writers, cut torn tails", directories
    )
    command.add_argument("--dry-run", action="store_true", help="only say what would be done")
    command = _command(commands, "export", export, "calls as rows that stand alone", directories)
    command.add_argument("--format", choices=["parquet", "jsonl"], default="parquet")
    command.add_argument("--output", type=a_path, help="the file (default: calls.parquet or calls.jsonl)")
    command.add_argument("--columns", help="names, with commas between (parquet; default: all)")
    command.add_argument("--rollout", help="one rollout's id (default: all)")
    command = _command(commands, "prune", prune, "remove what is old: whole runs, or single rollouts", directories)
    command.add_argument("--older-than", type=age, metavar="AGE", help="as 30d, 12h, 45m: the last record's")
    command.add_argument("--rollouts", action="store_true", help="single rollouts that old, not only whole runs")
    command.add_argument("--rollout", action="append", metavar="ID", help="this rollout, however old; again for more")
    command.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    command = _command(commands, "upload", upload, "sealed shards to a remote folder", directories)
    command.add_argument(
        "--to", type=a_path, required=True, metavar="URI", help="s3://bucket/folder, gs://…, file://… or a path"
    )


def _command(commands: Any, name: str, run: Any, says: str, directories: dict[str, Any]) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=says, description=says)
    command.add_argument("directories", **directories)
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(run=run)
    return command


def age(text: str) -> float:
    """Seconds. Raises argparse's own error."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write it as 30d, 12h or 45m")
    return float(found[1]) * _UNITS[found[2]]


def tail(stores: list[CaptureStore], arguments: argparse.Namespace) -> int:
    import time

    tails = [store.tail(from_start=arguments.from_start) for store in stores]
    end = None if arguments.for_s is None else time.monotonic() + arguments.for_s
    try:
        while True:
            for one in tails:
                for record in one.new():
                    print(json.dumps(_facts(record)) if arguments.json else _line(record), flush=True)
            if end is not None and time.monotonic() >= end:
                return 0
            time.sleep(0.5)
    except KeyboardInterrupt:
        return 0


def _facts(record: CallRecord) -> dict[str, Any]:
    reply = record.reply
    return {
        **{
            name: getattr(record, name) for name in ("call_id", "rollout_id", "relation", "status", "server", "dialect")
        },
        "received_at": record.times.received,
        "seconds": record.times.replied - record.times.received,
        "model": None if reply is None else reply.model,
        "prompt_tokens": None if reply is None else reply.usage.prompt,
        "completion_tokens": None if reply is None else reply.usage.completion,
        "error": None if record.error is None else record.error.kind,
    }


def _line(record: CallRecord) -> str:
    facts = _facts(record)
    tokens = "{} + {} tokens".format(
        *("?" if facts[n] is None else facts[n] for n in ("prompt_tokens", "completion_tokens"))
    )
    time = datetime.fromtimestamp(facts["received_at"]).strftime("%H:%M:%S")
    words = [time, facts["rollout_id"] or "(none)", record.relation, record.status, tokens, f"{facts['seconds']:.3f} s"]
    return "  ".join([*words, *([facts["error"]] if facts["error"] else [])])


def repair(stores: list[CaptureStore], arguments: argparse.Namespace) -> int:
    import msgspec

    from nemo_gym.capture.upkeep import repair as mend

    done = [one for store in stores for one in mend(store, dry_run=arguments.dry_run)]
    if arguments.json:
        print(json.dumps({"dry_run": arguments.dry_run, "repaired": msgspec.to_builtins(done)}, indent=2))
        return 0
    for one in done:
        print(f"{one.path}: {'to do: ' if arguments.dry_run else ''}{one.did}")
    print(f"{len(done)} things {'to do' if arguments.dry_run else 'done'}" if done else "nothing to repair")
    return 0


def export(stores: list[CaptureStore], arguments: argparse.Namespace) -> int:
    if arguments.rollout is not None and (missing := _unrecorded(stores, [arguments.rollout])):
        raise ValueError(missing)
    target = Path(arguments.output or f"calls.{arguments.format}")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".tmp")
    try:
        count = (_parquet if arguments.format == "parquet" else _jsonl)(stores, arguments, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    facts = {"path": str(target), "calls": count, "bytes": target.stat().st_size}
    print(json.dumps(facts) if arguments.json else f"{target}: {count:,} calls, {facts['bytes']:,} bytes")
    return 0


def _unrecorded(stores: list[CaptureStore], rollouts: list[str]) -> str:
    """Words for those of the named rollouts of which no call is recorded; empty when there is none."""
    there = {name for store in stores for name in store.rollouts()}
    missing = [name for name in dict.fromkeys(rollouts) if name not in there]
    return f"no call is recorded of {', '.join(missing)}: ng_captures list names the rollouts" if missing else ""


def _parquet(stores: list[CaptureStore], arguments: argparse.Namespace, target: Path) -> int:
    import pyarrow.parquet as pq

    columns = None if arguments.columns is None else [name.strip() for name in arguments.columns.split(",")]
    found = [store.tables(columns, arguments.rollout) for store in stores]
    count = 0
    with pq.ParquetWriter(target, found[0][0], compression="zstd") as writer:
        for _, batches in found:
            for batch in batches:
                writer.write_batch(batch)
                count += batch.num_rows
    return count


def _jsonl(stores: list[CaptureStore], arguments: argparse.Namespace, target: Path) -> int:
    import msgspec

    from nemo_gym.capture import to_json

    if arguments.columns is not None:
        raise ValueError("--columns goes with --format parquet; a line of jsonl is a whole record")
    count = 0
    with target.open("wb") as file:
        for store in stores:
            for record in store.calls(arguments.rollout):
                file.write(msgspec.json.encode(to_json(record)) + b"\n")
                count += 1
    return count


def prune(stores: list[CaptureStore], arguments: argparse.Namespace) -> int:
    import msgspec

    from nemo_gym.capture.pruning import prune as remove

    if arguments.older_than is None and not arguments.rollout:
        raise ValueError("prune: say what is old enough with --older-than, or name rollouts with --rollout")
    if arguments.older_than is None and arguments.rollouts:
        raise ValueError("prune: --rollouts goes with --older-than")
    missing = _unrecorded(stores, arguments.rollout or [])
    done: list[Pruned] = []
    if arguments.older_than is not None and not arguments.rollout:
        done += (one for store in stores for one in remove(store, arguments.older_than, dry_run=arguments.dry_run))
    if arguments.rollouts or arguments.rollout:
        done += (one for store in stores for one in _prune_rollouts(store, arguments))
    if missing:
        print(f"ng_captures: {missing}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"dry_run": arguments.dry_run, "removed": msgspec.to_builtins(done)}, indent=2))
        return 0
    for one in done:
        did = "to remove" if arguments.dry_run else "removed"
        of = "" if one.rollouts is None else f"{one.rollouts} rollouts, "
        print(f"{one.path}: {did}: {of}{one.shards} shards, {one.bytes:,} bytes")
    if not done and not missing:
        print("nothing is that old")
    return 0


def _prune_rollouts(store: CaptureStore, arguments: argparse.Namespace) -> Iterator[Pruned]:
    from nemo_gym.capture.pruning import old_rollouts, prune_rollouts

    wanted = set(arguments.rollout or ())
    if arguments.older_than is not None:
        old = old_rollouts(store, arguments.older_than)
        wanted = wanted & old if wanted else old
    return prune_rollouts(store, wanted, dry_run=arguments.dry_run)


def upload(stores: list[CaptureStore], arguments: argparse.Namespace) -> int:
    from nemo_gym.capture.upkeep import upload as send

    try:
        sent = [str(path) for store in stores for path in send(store, arguments.to)]
    except OSError as error:
        raise ValueError(f"--to: {arguments.to!r} cannot be written to: {error.strerror or error}") from error
    if arguments.json:
        print(json.dumps({"to": arguments.to, "uploaded": sent}, indent=2))
        return 0
    for path in sent:
        print(f"{path}: uploaded")
    print(f"{len(sent)} shards uploaded" if sent else "everything that is sealed is there")
    return 0
