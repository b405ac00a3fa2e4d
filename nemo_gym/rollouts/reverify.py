"""Rewards anew, of stored rollouts, without a model: each conversation is put before its verifier again.

What a verifier needs is in the stored line (or in the rows that were asked, where they are given); what it once said,
which it names in its own schema, is not sent. A verifier says whether that is enough for it (`ReverifyMode`); one that
does not is not asked unless it is insisted on. The outcome is a run of its own, beside the first, and resumes like any.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from ..web.correlation import rollout_path, valid_rollout_id
from ..web.peers import ServerClient, get_response_json
from . import manifest as manifests
from .dataset import Dataset
from .journal import META, REPEAT, ROLLOUT, TASK, Journal, JournalError, read
from .manifest import Lock, Refused
from .outcome import Failure, Outcome, Ticket, from_status, shortened, unfit
from .results import files

BEFORE = "_ng_reward_before"
STATELESS = "stateless"
_VERDICT = ("reward", "mask_sample", "failure_kind", "failure_reason", META, BEFORE)
_OF_THE_ROLLOUT = ("responses_create_params", "response", "agent_ref", TASK, REPEAT, ROLLOUT)
_TELL_S = 300.0
"""A server makes its schema when it is first asked for it: seconds of work, on a machine that may be busy."""


class Options(Struct, frozen=True):
    concurrency: int = 64
    timeout_s: float = 900.0
    """Of one verification."""
    limit: int | None = None
    force: bool = False
    overwrite: bool = False
    resume: bool = False


class Reverified(Struct, frozen=True):
    output: str
    verified: int
    """Of this start."""
    skipped: int
    """Those that an earlier start had verified."""
    changed: int
    """Whose reward is another now."""
    failures: dict[str, int]
    unsafe: list[str]
    """Verifiers that do not say that a stored rollout is enough for them."""


def refuse_to_replace(output: Path, options: Options) -> None:
    """Raises Refused where a run would be lost."""
    if manifests.has_results(output) and not (options.resume or options.overwrite):
        raise Refused(f"{output}: already holds a run; +resume=true finishes it, +overwrite=true removes it")


async def reverify(
    source: str | Path,
    output: Path,
    client: ServerClient,
    route: Callable[[Mapping[str, Any]], str],
    *,
    servers: list[str],
    identity: dict[str, Any],
    options: Options,
    inputs: Path | None = None,
    ended: Callable[[Outcome], None] = lambda outcome: None,
) -> Reverified:
    """Verifies every stored rollout of a run once more.

    Args:
        source: the run's folder or file.
        route: the resources server of a row; raises Refused where there is none.
        servers: the resources servers that there are.
        identity: what verifies, so that only the same goes on where a start ended.
        inputs: the rows that were asked, with what a verifier may need of them.

    Raises:
        Refused: nothing was verified, in words for the user.
    """
    (path,) = files([source])
    verifiers = {name: await _verifier(client, name) for name in servers}
    unsafe = [name for name, verifier in verifiers.items() if verifier.mode != STATELESS]
    if unsafe and not options.force:
        raise Refused(
            f"{', '.join(sorted(unsafe))}: does not say that a stored rollout is enough to verify it anew "
            "(REVERIFY_MODE is not stateless), so rewards may be wrong; +force=true goes on all the same"
        )
    if unsafe:
        output = output.with_name(f"unsafe_{output.name}")
    if output.resolve() == path.parent.resolve():
        raise Refused(f"{output}: is the run that is verified anew; name another output")
    lock = Lock(output)
    try:
        work = _Work(path, output, client, route, verifiers, identity, options, inputs, ended)
        await work.run()
    except JournalError as error:
        raise Refused(str(error)) from error
    finally:
        lock.release()
    return Reverified(str(output), work.verified, work.skipped, work.changed, dict(work.failures), sorted(unsafe))


class _Work:
    """One start, its output folder locked."""

    def __init__(
        self,
        path: Path,
        output: Path,
        client: ServerClient,
        route: Callable[[Mapping[str, Any]], str],
        verifiers: Mapping[str, _Verifier],
        identity: dict[str, Any],
        options: Options,
        inputs: Path | None,
        ended: Callable[[Outcome], None],
    ) -> None:
        self._path, self._client, self._route, self._options = path, client, route, options
        self._verifiers, self._ended = verifiers, ended
        self._asked = _asked(inputs) if inputs is not None else None
        source = manifests.load(path.parent)
        known = source.identity if source is not None else {}
        identity = known | identity | {"source": str(path.parent.resolve()), "limit": options.limit}
        refuse_to_replace(output, options)
        if not options.resume and manifests.has_results(output):
            manifests.clear(output, keep_run="")
        run_id = f"{source.run_id if source is not None else path.parent.name}-reverified"
        dataset = source.input if source is not None else ""
        self._manifest = manifests.begin(output, run_id, dataset, identity, resume=options.resume)
        self._output = output
        self._journal = Journal(output)
        self.verified = self.skipped = self.changed = 0
        self.failures: Counter[str] = Counter()

    async def run(self) -> None:
        rows = self._rows()
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._options.concurrency):
                    workers.create_task(self._verify_all(rows))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._journal.close()
        finished = None if self.failures else time.time()
        manifests.save(self._output, manifests.replace(self._manifest, finished=finished))

    def _rows(self) -> Iterator[dict[str, Any]]:
        """Read as there is room for them, so a run of any size costs the memory of those in flight."""
        for number, row in enumerate(read(self._path)):
            if self._options.limit is not None and number >= self._options.limit:
                return
            task, repeat = row.get(TASK), row.get(REPEAT, 0)
            if type(task) is not int or type(repeat) is not int:
                raise Refused(f"{self._path}: line {number + 1} has no {TASK}, so it is no rollout of a job")
            if (task, repeat, _agent(row)) in self._journal.done:
                self.skipped += 1
            else:
                yield row

    async def _verify_all(self, rows: Iterator[dict[str, Any]]) -> None:
        for row in rows:
            outcome = await self._verify(row)
            self._journal.add(outcome)
            if outcome.failure is not None:
                self.failures[outcome.failure.kind] += 1
            else:
                assert outcome.result is not None
                self.verified += 1
                self.changed += outcome.result["reward"] != row.get("reward")
            self._ended(outcome)

    async def _verify(self, row: dict[str, Any]) -> Outcome:
        server = self._route(row)
        stale = (*_VERDICT, *self._verifiers[server].says)
        kept = {name: value for name, value in row.items() if name not in stale} | {BEFORE: row.get("reward")}
        meta = row.get(META) if isinstance(row.get(META), dict) else {}
        ticket = Ticket(row[TASK], row.get(REPEAT, 0), str(row.get(ROLLOUT) or ""), _agent(row), kept)
        result: dict[str, Any] | None = None
        failure: Failure | None = None
        try:
            async with asyncio.timeout(self._options.timeout_s):
                result, failure = await self._ask(server, row, stale)
        except TimeoutError:
            failure = Failure("timeout", f"not verified within {self._options.timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = Failure("infrastructure", shortened(f"{type(error).__name__}: {error}"))
        # When and how long it was played is still true; the calls are those of the first run.
        return Outcome(
            ticket,
            started=_number((meta or {}).get("started")),
            seconds=_number((meta or {}).get("seconds")),
            result=result,
            failure=failure,
            calls=(meta or {}).get("calls"),
            incomplete=(meta or {}).get("incomplete"),
        )

    async def _ask(
        self, server: str, row: dict[str, Any], stale: Collection[str]
    ) -> tuple[dict[str, Any] | None, Failure | None]:
        if not isinstance(row.get("response"), dict):
            return None, Failure("row", "it has no response that could be verified")
        payload = {name: value for name, value in row.items() if name not in stale}
        if self._asked is not None:
            asked = self._asked.get((row[TASK], row.get(REPEAT, 0))) or self._asked.get((row[TASK], None))
            if asked is None:
                return None, Failure("row", "the inputs have no such row")
            payload = asked | {name: row[name] for name in _OF_THE_ROLLOUT if name in row}
        rollout_id = row.get(ROLLOUT)
        within = rollout_id if isinstance(rollout_id, str) and valid_rollout_id(rollout_id) else None
        response = await self._client.post(server, rollout_path(within, "/verify"), json=payload)
        try:
            body = await get_response_json(response)
        except ValueError:
            body = None
        if not response.ok:
            failure = from_status(response.status, body, await response.text(errors="replace"))
            return None, msgspec.structs.replace(failure, kind="verifier")
        failure_ = unfit(body, response.status)
        if failure_ is not None:
            return None, msgspec.structs.replace(failure_, kind="verifier")
        return body, None


class _Verifier(Struct, frozen=True):
    """What a resources server says of its `/verify`."""

    mode: str
    says: frozenset[str]
    """Fields of its answer that are no fields of what it is asked."""


async def _verifier(client: ServerClient, server: str) -> _Verifier:
    mode = await _told(client, server, "/reverify_mode")
    return _Verifier(mode if isinstance(mode, str) else "unknown", _says(await _told(client, server, "/openapi.json")))


async def _told(client: ServerClient, server: str, path: str) -> Any:
    """None where it says nothing of the kind."""
    try:
        async with asyncio.timeout(_TELL_S):
            response = await client.get(server, path)
            said = await get_response_json(response)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Refused(f"{server}: does not answer: {type(error).__name__}: {error}") from error
    return said if response.ok else None


def _says(schema: Any) -> frozenset[str]:
    """By its OpenAPI schema; nothing where it has none."""
    try:
        route = schema["paths"]["/verify"]["post"]
        schemas = schema["components"]["schemas"]
        asked = route["requestBody"]["content"]["application/json"]["schema"]
        answered = route["responses"]["200"]["content"]["application/json"]["schema"]
        names = [frozenset(schemas[one["$ref"].rpartition("/")[2]].get("properties", ())) for one in (asked, answered)]
    except (KeyError, TypeError, AttributeError):
        return frozenset()
    return names[1] - names[0]


def _asked(inputs: Path) -> dict[tuple[int, int | None], dict[str, Any]]:
    """Rows by (task, repeat); a row without numbers is the task of its place, whatever the repeat."""
    if not inputs.is_file():
        raise Refused(f"+inputs: expected a JSONL file, there is none at {inputs}")
    found: dict[tuple[int, int | None], dict[str, Any]] = {}
    for row in Dataset(inputs):
        if row.fault is not None:
            raise Refused(f"+inputs: {row.fault}")
        found[row.data.get(TASK, row.task), row.data.get(REPEAT)] = row.data
    return found


def _agent(row: Mapping[str, Any]) -> str:
    ref = row.get("agent_ref")
    return str(ref.get("name") or "") if isinstance(ref, dict) else ""


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
