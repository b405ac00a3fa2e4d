"""Figures of stored rollouts beside the rows that they were made of, for scripts that sum up a run by themselves.

A job's own figures are `ng_reward_profile`'s; here are the same ones in the shape that NeMo Gym's scripts read: by
task, by agent, and by repeat. A task that several agents played is a group for each.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..config.rows import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from .metrics import Row, across_repeats, described, in_order, repeat_figures, rollout_info

Rows = list[Row]
Key = tuple[Any, Any]


class RewardProfiler:
    def align_rows_and_results(
        self, rows: Rows, results: Rows, allow_partial_rollouts: bool = False
    ) -> list[tuple[Row, Row]]:
        """Each row with its result, in order. Raises ValueError for a result without a row, and for a row without one
        unless that is allowed."""
        asked, given = _by_key(rows, "row"), _by_key(results, "result")
        if extra := sorted(given.keys() - asked.keys()):
            raise ValueError(f"{len(extra)} results belong to no row, such as {extra[:10]} (task, repeat)")
        if (missing := sorted(asked.keys() - given.keys())) and not allow_partial_rollouts:
            raise ValueError(
                f"{len(missing)} rows have no result, such as {missing[:10]} (task, repeat): "
                "allow_partial_rollouts leaves them out"
            )
        return [(asked[key], given[key]) for key in sorted(asked.keys() & given.keys())]

    def profile_completion_summary(self, rows: Rows, results: Rows) -> dict[str, Any]:
        """How much of what was asked for is there."""
        asked, given = _by_key(rows, "row"), _by_key(results, "result")
        there = asked.keys() & given.keys()
        expected = Counter((key[0], _agent(row)) for key, row in asked.items())
        done = Counter((key[0], _agent(asked[key])) for key in there)
        whole = sum(done[task] == count for task, count in expected.items())
        begun = sum(task in done for task in expected)
        return {
            "expected_rollout_rows": len(asked),
            "completed_rollout_rows": len(there),
            "missing_rollout_rows": len(asked) - len(there),
            "extra_rollout_rows": len(given.keys() - asked.keys()),
            "reward_profile_completion_pct": 100.0 * len(there) / len(asked) if asked else 100.0,
            "total_input_rows": len(expected),
            "complete_input_rows": whole,
            "partial_input_rows": begun - whole,
            "missing_input_rows": len(expected) - begun,
        }

    def rollout_info_from_result(self, result: Row) -> dict[str, Any]:
        return rollout_info(result, *_key(result))

    def profile_from_data(
        self, rows: Rows, results: Rows, allow_partial_rollouts: bool = False
    ) -> tuple[Rows, Rows, Rows]:
        """The figures of each task, of each agent, and of each repeat of an agent that has several."""
        aligned = self.align_rows_and_results(rows, results, allow_partial_rollouts)
        shared = len({(row[TASK_INDEX_KEY_NAME], _agent(row)) for row in rows}) > len(
            {row[TASK_INDEX_KEY_NAME] for row in rows}
        )

        def task_of(row: Row) -> Key:
            return row[TASK_INDEX_KEY_NAME], _agent(row) if shared else None

        expected = Counter(map(task_of, rows))
        tasks = _grouped((task_of(row), row, result) for row, result in aligned)
        agents = _grouped((_agent(row), row, result) for row, result in aligned if _agent(row) is not None)
        repeats = {agent: repeat_figures([result for _, result in pairs]) for agent, pairs in agents.items()}
        return (
            [self._of_task(key, pairs, expected[key]) for key, pairs in tasks.items()],
            [
                _of_agent(agent) | described([result for _, result in pairs]) | across_repeats(repeats[agent])
                for agent, pairs in agents.items()
            ],
            [_of_agent(agent) | figures for agent, found in repeats.items() for figures in found],
        )

    def _of_task(self, key: Key, pairs: list[tuple[Row, Row]], expected: int) -> Row:
        task, agent = key
        first = pairs[0][0]
        infos = [self.rollout_info_from_result(result) for _, result in pairs]
        return (
            {TASK_INDEX_KEY_NAME: task}
            | ({} if agent is None else _of_agent(agent))
            | described([result for _, result in pairs])
            | {
                "sample": {name: value for name, value in first.items() if name not in _INDICES},
                "num_rollouts": len(pairs),
                "expected_num_rollouts": expected,
                "missing_num_rollouts": expected - len(pairs),
                "reward_profile_completion_pct": 100.0 * len(pairs) / expected,
                "rollout_infos": sorted(infos, key=lambda info: in_order(info[ROLLOUT_INDEX_KEY_NAME])),
            }
        )

    def prepare_for_serialization(self, metrics: Iterable[Mapping[str, Any]]) -> Rows:
        """Copies without what only a tracker can show."""
        return [{name: value for name, value in row.items() if not name.startswith("histogram")} for row in metrics]

    def write_to_disk(
        self, group_level_metrics: Rows, agent_level_metrics: Rows, repeat_level_metrics: Rows, base_output_fpath: Path
    ) -> tuple[Path, Path, Path]:
        """Three files beside `base_output_fpath`, named after it."""
        tasks, agents, repeats = map(
            self.prepare_for_serialization, (group_level_metrics, agent_level_metrics, repeat_level_metrics)
        )
        beside = base_output_fpath.with_suffix("")
        written = (
            beside.with_name(f"{beside.name}_reward_profiling.jsonl"),
            beside.with_name(f"{beside.name}_agent_metrics.json"),
            beside.with_name(f"{beside.name}_repeat_level_metrics.json"),
        )
        written[0].write_text("".join(json.dumps(row) + "\n" for row in tasks), encoding="utf-8")
        written[1].write_text(json.dumps(agents), encoding="utf-8")
        written[2].write_text(json.dumps(repeats), encoding="utf-8")
        return written


_INDICES = (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)


def _key(row: Row) -> Key:
    return row[TASK_INDEX_KEY_NAME], row[ROLLOUT_INDEX_KEY_NAME]


def _by_key(rows: Rows, what: str) -> dict[Key, Row]:
    found: dict[Key, Row] = {}
    for row in rows:
        if _key(row) in found:
            raise ValueError(f"two {what}s have the key {_key(row)} (task, repeat)")
        found[_key(row)] = row
    return found


def _agent(row: Row) -> str | None:
    name = (row.get(AGENT_REF_KEY_NAME) or {}).get("name")
    return name if isinstance(name, str) else None


def _of_agent(agent: Any) -> Row:
    return {AGENT_REF_KEY_NAME: {"name": agent}}


def _grouped(found: Iterable[tuple[Any, Row, Row]]) -> dict[Any, list[tuple[Row, Row]]]:
    groups: dict[Any, list[tuple[Row, Row]]] = {}
    for key, row, result in found:
        groups.setdefault(key, []).append((row, result))
    ordered = sorted(groups, key=lambda key: tuple(map(in_order, key)) if isinstance(key, tuple) else (in_order(key),))
    return {key: groups[key] for key in ordered}
