"""How much better than its group a rollout did: a group is the repeats of one task in one run.

grpo: (reward - mean of the group) / (standard deviation of the group + 1e-6), the deviation with one degree of freedom
taken. rloo: the reward less the mean of the others. plain: the reward itself. A group of one has nothing to be held
against: its grpo and rloo are 0.
"""

from __future__ import annotations

import sqlite3

from .options import Advantage

EPSILON = 1e-6

_OF_GROUP = {
    "grpo": f"(rollout.reward - mean) / (root(squares / (size - 1)) + {EPSILON})",
    "rloo": "(rollout.reward - mean) * size / (size - 1)",
}


def write_advantages(ledger: sqlite3.Connection, kind: Advantage) -> None:
    """Sets `advantage` of each rollout that is not left out."""
    if kind == "plain":
        ledger.execute("UPDATE rollout SET advantage = reward WHERE reason IS NULL")
        return
    # Deviations from the mean, not sums of squares: rewards that hardly differ must not cancel out.
    ledger.execute(
        "CREATE TEMP TABLE grouped AS SELECT task, size, mean, sum((reward - mean) * (reward - mean)) AS squares "
        "FROM rollout JOIN (SELECT task, count(*) AS size, avg(reward) AS mean FROM rollout WHERE reason IS NULL "
        "GROUP BY task) USING (task) WHERE reason IS NULL GROUP BY task"
    )
    ledger.execute("CREATE INDEX temp.grouped_task ON grouped (task)")
    ledger.execute(
        f"UPDATE rollout SET advantage = CASE WHEN size > 1 THEN {_OF_GROUP[kind]} ELSE 0.0 END FROM grouped "
        "WHERE grouped.task = rollout.task AND rollout.reason IS NULL"
    )
    ledger.execute("DROP TABLE grouped")
