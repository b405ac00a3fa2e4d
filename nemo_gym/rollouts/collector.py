"""Bounded admission: so many rollouts at a time, each ended once, whatever becomes of the others.

Rows are drawn from the dataset only when there is room for a rollout, so a million of them cost no memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from .attempt import Attempt
from .dataset import Dataset
from .journal import REPEAT, ROLLOUT, TASK, Journal
from .outcome import Failure, Outcome, Ticket

_UNREACHABLE_AT_LEAST = 16


class Collector:
    """Makes every rollout of a dataset that is not done yet.

    Args:
        prefix: what the rollout ids of this start begin with.
        ended: called with each outcome, after it is written down.
    """

    def __init__(
        self,
        attempt: Attempt,
        dataset: Dataset,
        journal: Journal,
        *,
        agent: str,
        repeats: int,
        concurrency: int,
        prefix: str,
        ended: Callable[[Outcome], None],
    ) -> None:
        self._attempt = attempt
        self._dataset = dataset
        self._journal = journal
        self._agent = agent
        self._repeats = repeats
        self._concurrency = concurrency
        self._prefix = prefix
        self._ended = ended
        self._unreachable = 0
        self.gave_up: str | None = None
        """Why the rest was not tried: nothing could be reached any more."""

    async def run(self) -> None:
        tickets = self._tickets()
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._concurrency):
                workers.create_task(self._work(tickets))

    async def _work(self, tickets: Iterator[tuple[Ticket, str | None]]) -> None:
        while self.gave_up is None and (drawn := next(tickets, None)) is not None:
            ticket, fault = drawn
            if fault is None:
                outcome = await self._attempt.make(ticket)
            else:
                outcome = Outcome(ticket, time.time(), 0.0, failure=Failure("row", fault))
                await asyncio.sleep(0)  # a file of faults must not keep the others from their turn
            self._journal.add(outcome)
            self._watch(outcome)
            self._ended(outcome)

    def _tickets(self) -> Iterator[tuple[Ticket, str | None]]:
        done = frozenset(self._journal.done)
        for row in self._dataset:
            for repeat in range(self._repeats):
                if (row.task, repeat) in done:
                    continue
                rollout_id = f"{self._prefix}-{row.task}-{repeat}"
                identity = {
                    TASK: row.task,
                    REPEAT: repeat,
                    ROLLOUT: rollout_id,
                    "agent_ref": {"type": "responses_api_agents", "name": self._agent},
                }
                yield Ticket(row.task, repeat, rollout_id, self._agent, row.data | identity), row.fault

    def _watch(self, outcome: Outcome) -> None:
        failure = outcome.failure
        if failure is None or failure.kind != "infrastructure":
            self._unreachable = 0
            return
        self._unreachable += 1
        if self._unreachable >= max(_UNREACHABLE_AT_LEAST, 2 * self._concurrency):
            self.gave_up = f"{self._unreachable} rollouts in a row could not reach a server: {failure.message}"
