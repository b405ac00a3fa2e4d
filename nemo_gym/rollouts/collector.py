"""Bounded admission: so many rollouts at a time, each ended once, whatever becomes of the others.

Rows are drawn from the datasets only when there is room for a rollout, so a million of them cost no memory. A rollout
that failed is made anew in the same place, as often as its kind of failure is worth, under an id of its own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec

from .attempt import Attempt
from .journal import REPEAT, ROLLOUT, TASK, Journal
from .outcome import Failure, Outcome, Ticket
from .plan import Plan, Task
from .stopping import Stopping
from .tally import Tally

_UNREACHABLE_AT_LEAST = 16
_RETRY_S = (0.5, 30.0)
"""The wait before a rollout is made anew: at first, and at most. It doubles, and is drawn from its second half."""

Finished = Callable[[dict[str, Any]], Awaitable[None]]


class Collector:
    """Makes every rollout of a plan that is not done yet.

    Args:
        prefix: what the rollout ids of this start begin with.
        retries: how often a failure is followed by another attempt, by kind.
        finished: given the row of each finished rollout, after it is written down; no rollout is begun in its place
            before this returns.
    """

    def __init__(
        self,
        attempt: Attempt,
        plan: Plan,
        journal: Journal,
        tally: Tally,
        stopping: Stopping,
        *,
        concurrency: int,
        prefix: str,
        retries: Mapping[str, int],
        finished: Finished | None = None,
    ) -> None:
        self._attempt = attempt
        self._plan = plan
        self._journal = journal
        self._tally = tally
        self._stopping = stopping
        self._concurrency = concurrency
        self._prefix = prefix
        self._retries = retries
        self._finished = finished
        self._unreachable = 0
        self._begun = len(journal.entries)
        self.in_flight = 0
        self.stopped: str | None = None
        """Why the job ended before its data did, as it was told to."""
        self.gave_up: str | None = None
        """Why the rest was not tried: nothing could be reached any more."""

    async def run(self) -> None:
        """Raises JournalError when what was made cannot be written down."""
        tickets = self._tickets()
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._concurrency):
                    workers.create_task(self._work(tickets))
        except ExceptionGroup as group:  # of the first: it has ended the others
            raise group.exceptions[0] from None

    async def _work(self, tickets: Iterator[tuple[Ticket, str | None]]) -> None:
        while (drawn := self._next(tickets)) is not None:
            ticket, fault = drawn
            self._begun += 1
            self.in_flight += 1
            try:
                row = await self._ended(ticket, fault)
            finally:
                self.in_flight -= 1
            if row is not None and self._finished is not None:
                await self._finished(row)

    def _next(self, tickets: Iterator[tuple[Ticket, str | None]]) -> tuple[Ticket, str | None] | None:
        if self.gave_up is None and self.stopped is None:
            self.stopped = self._stopping.reason(self._begun)
        return None if self.gave_up or self.stopped else next(tickets, None)

    async def _ended(self, ticket: Ticket, fault: str | None) -> dict[str, Any] | None:
        """The row of a finished rollout; None when it failed for good. Either is written down by then."""
        if fault is not None:
            await asyncio.sleep(0)  # a file of faults must not keep the others from their turn
            return self._noted(Outcome(ticket, time.time(), 0.0, failure=Failure("row", fault)))
        while True:
            outcome = await self._attempt.make(ticket)
            self._watch(outcome)
            again = outcome.failure is not None and self._again(ticket, outcome.failure)
            row = self._noted(msgspec.structs.replace(outcome, retried=again) if again else outcome)
            if not again:
                return row
            await asyncio.sleep(_pause(ticket.attempt))
            ticket = _anew(ticket)

    def _again(self, ticket: Ticket, failure: Failure) -> bool:
        return self.gave_up is None and ticket.attempt < self._retries.get(failure.kind, 0)

    def _noted(self, outcome: Outcome) -> dict[str, Any] | None:
        try:
            written = self._journal.add(outcome)
        except ValueError as error:
            failure = Failure("agent", f"its answer cannot be written down: {error}")
            outcome = msgspec.structs.replace(outcome, result=None, failure=failure)
            written = self._journal.add(outcome)
        if written is not None:
            row, entry = written
            self._tally.add(entry)
            self._stopping.saw(entry.task, row)
            return row
        assert outcome.failure is not None
        counted = self._tally.retried if outcome.retried else self._tally.failed
        counted[outcome.failure.kind] += 1
        return None

    def _tickets(self) -> Iterator[tuple[Ticket, str | None]]:
        done = self._journal.done
        for task in self._plan:
            for repeat in range(task.repeats):
                if (task.number, repeat, task.agent) not in done:
                    yield self._ticket(task, repeat), task.fault

    def _ticket(self, task: Task, repeat: int) -> Ticket:
        rollout_id = f"{self._prefix}-{task.number}-{repeat}"
        identity = {
            TASK: task.number,
            REPEAT: repeat,
            ROLLOUT: rollout_id,
            "agent_ref": {"type": "responses_api_agents", "name": task.agent},
        }
        return Ticket(task.number, repeat, rollout_id, task.agent, task.data | identity)

    def _watch(self, outcome: Outcome) -> None:
        failure = outcome.failure
        if failure is None or failure.kind != "infrastructure":
            self._unreachable = 0
            return
        self._unreachable += 1
        if self._unreachable >= max(_UNREACHABLE_AT_LEAST, 2 * self._concurrency):
            self.gave_up = f"{self._unreachable} rollouts in a row could not reach a server: {failure.message}"


def _anew(ticket: Ticket) -> Ticket:
    """The next attempt, with an id of its own: the calls of the one that failed are not its calls."""
    attempt = ticket.attempt + 1
    first = ticket.rollout_id if ticket.attempt == 0 else ticket.rollout_id.rpartition("-a")[0]
    rollout_id = f"{first}-a{attempt}"
    return msgspec.structs.replace(
        ticket, attempt=attempt, rollout_id=rollout_id, row=ticket.row | {ROLLOUT: rollout_id}
    )


def _pause(attempt: int) -> float:
    first, most = _RETRY_S
    return min(most, first * 2.0**attempt) * random.uniform(0.5, 1.0)
