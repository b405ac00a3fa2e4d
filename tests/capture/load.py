"""Run as a process: writes conversations side by side, and says on standard output what was acknowledged.

A line is the call's id and the digest of its JSON form; it is written after the commit returned.
"""

from __future__ import annotations

import asyncio
import sys
from hashlib import blake2b
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from records import conversation

from nemo_gym.capture import CallRecord, ShardWriter, to_json


def fingerprint(record: CallRecord) -> str:
    return blake2b(msgspec.json.encode(to_json(record)), digest_size=16).hexdigest()


async def main(directory: str, name: str) -> None:
    writer = ShardWriter(directory, name, "run", "fsync", max_shard_bytes=200_000)

    async def rollout(number: int) -> None:
        for turn in range(1_000_000):
            rollout_id = f"{name}-{number}-{turn}"
            for record in conversation(4, rollout_id=rollout_id, words=20, ids=30):
                line = f"{record.call_id} {fingerprint(record)}\n"
                await writer.commit(msgspec.structs.replace(record, server=name) if name != record.server else record)
                sys.stdout.write(line)
                sys.stdout.flush()
            await writer.seal(rollout_id)

    await writer.commit(conversation(1)[0])
    print("ready", flush=True)
    await asyncio.gather(*(rollout(number) for number in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
