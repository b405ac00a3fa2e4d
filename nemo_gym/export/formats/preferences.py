"""TRL's preference pairs: of each task's rollouts that began alike, the best against the worst.

Rollouts of one task may lie far apart in a run, so what is best and worst so far is kept on the disk.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from ..conversations import Dialogue
from ..ledger import Entry
from ..options import Options
from .format import JsonLines, Made, Rollout, line
from .messages import is_multimodal, tools_string

_BEST = "(task, prompt, side, reward, split, row) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"


class Preferences(JsonLines):
    name = "preferences"
    card = """## preferences

One row a pair, for TRL's `DPOTrainer` and `RewardTrainer`: `prompt`, `chosen` and `rejected` (messages), `tools` (a
JSON string, null without tools), `chosen_reward`, `rejected_reward`, `chosen_rollout_id`, `rejected_rollout_id`,
`task_id`, `agent`. Tasks whose rollouts all have one reward make no pair.
"""

    def __init__(self, folder: Path, options: Options) -> None:
        super().__init__(folder, options)
        self._data = sqlite3.connect(folder.parent / f"{self.name}.sqlite", isolation_level=None)
        self._data.execute("PRAGMA journal_mode=OFF")
        self._data.execute("PRAGMA synchronous=OFF")
        self._data.execute(
            "CREATE TABLE side (task INTEGER, prompt BLOB, side TEXT, reward REAL, split TEXT, row BLOB, "
            "PRIMARY KEY (task, prompt, side))"
        )

    def made(self, rollout: Rollout) -> Made:
        """One side, under the digest of its prompt."""
        skipped: Counter[str] = Counter()
        for conversation, said in rollout.dialogues(skipped):
            if conversation.is_main and conversation.path[0] is rollout.calls[0]:
                return Made(_side(rollout, said, skipped), skipped)
        return Made([], skipped)

    def take(self, made: Made, entry: Entry) -> int:
        """A pair is counted when its second side comes."""
        self.skipped.update(made.skipped)
        for key, row in made.rows:
            for side, better in (("chosen", ">"), ("rejected", "<")):
                self._data.execute(
                    f"INSERT INTO side {_BEST} reward = excluded.reward, row = excluded.row "
                    f"WHERE excluded.reward {better} side.reward",
                    (entry.task, key, side, entry.reward, entry.split, row),
                )
        return len(made.rows)

    def close(self) -> None:
        pairs = self._data.execute(
            "SELECT a.row, b.row, a.split FROM side a JOIN side b USING (task, prompt) WHERE a.side = 'chosen' "
            "AND b.side = 'rejected' AND a.reward > b.reward ORDER BY task, prompt"
        )
        for chosen, rejected, split in pairs:
            self._files[split].add(line(_pair(orjson.loads(chosen), orjson.loads(rejected))))
        self._data.close()
        super().close()


def _side(rollout: Rollout, said: Dialogue, skipped: Counter[str]) -> list[tuple[bytes, bytes]]:
    if is_multimodal(said.messages) or not said.prompt:
        skipped["multimodal" if said.prompt else "no_prompt"] += 1
        return []
    entry = rollout.entry
    prompt = said.messages[: said.prompt]
    key = blake2b(orjson.dumps([prompt, said.tools]), digest_size=16).digest()
    row = {
        "prompt": prompt,
        "answer": said.messages[said.prompt :],
        "tools": tools_string(said),
        "reward": entry.reward,
        "rollout_id": entry.rollout_id,
        "task_id": entry.task_id,
        "agent": entry.agent,
    }
    return [(key, orjson.dumps(row))]


def _pair(chosen: dict[str, Any], rejected: dict[str, Any]) -> dict[str, Any]:
    pair = {name: chosen[name] for name in ("prompt", "tools", "task_id", "agent")}
    for side, row in (("chosen", chosen), ("rejected", rejected)):
        pair |= {side: row["answer"], f"{side}_reward": row["reward"], f"{side}_rollout_id": row["rollout_id"]}
    return pair
