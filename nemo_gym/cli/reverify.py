"""`ng_reverify`: rewards anew from stored rollouts, through their resources servers, without a model."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from nemo_gym.config import paths
from nemo_gym.config.compose import COMMAND_LINE, Composed, Instance, compose
from nemo_gym.config.faults import Problem, did_you_mean
from nemo_gym.config.problems import find_problems, words
from nemo_gym.config.types import PathText

from .arguments import OVERRIDES, WRONG, in_words, show, split
from .pipe import ends_in_order
from .terminal import console as outlasting

if TYPE_CHECKING:
    from rich.console import Console

    from nemo_gym.launch.launcher import Launcher
    from nemo_gym.rollouts.reverify import Options, Reverified
    from nemo_gym.web.peers import ServerClient

_USAGE = f"""usage: ng_reverify "+config_paths=[…]" +rollouts=RUN +output=FOLDER [overrides] [--json]

Puts each stored rollout of RUN (a job's folder, or a file) before its verifier again and writes a run with the rewards
that come of it into FOLDER. Of the configuration only the resources servers are started, and what they refer to, such
as a judge; without one, those of an ng_run in another shell are used (+run=RUN_ID chooses).

  +inputs=FILE          the rows that were asked, where a verifier needs more of them than the rollouts have
  +concurrency=64       verifications at a time      +timeout_s=900   seconds for one
  +limit=N              only the first N rollouts
  +server=NAME          the resources server of every rollout; else that of its agent
  +resume=true          finish what an earlier start began      +overwrite=true   remove it and begin anew
  +force=true           also where a verifier does not say that a stored rollout is enough for it; the name of the
                        output then begins with unsafe_

NeMo Gym's rollouts_jsonl_fpath, materialized_inputs_jsonl_fpath, output_jsonl_fpath, num_samples_in_parallel and
resume_from_cache are these too.

{OVERRIDES}"""


def _either(name: str, other: str) -> AliasChoices:
    return AliasChoices(name, other)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rollouts: PathText = Field(validation_alias=_either("rollouts", "rollouts_jsonl_fpath"))
    output: PathText = Field(validation_alias=_either("output", "output_jsonl_fpath"))
    inputs: PathText | None = Field(default=None, validation_alias=_either("inputs", "materialized_inputs_jsonl_fpath"))
    concurrency: int = Field(default=64, ge=1, validation_alias=_either("concurrency", "num_samples_in_parallel"))
    timeout_s: float = Field(default=900, gt=0)
    limit: int | None = Field(default=None, ge=1)
    server: str | None = None
    run: str | None = None
    resume: bool = Field(default=False, validation_alias=_either("resume", "resume_from_cache"))
    overwrite: bool = False
    force: bool = False


_REQUIRED = {"rollouts": "RUN", "output": "FOLDER"}
_KEYS = {
    str(key)
    for name, field in _Asked.model_fields.items()
    for key in (field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else (name,))
}


@ends_in_order
def main(argv: list[str] | None = None) -> int:
    args, flags = split(argv, _USAGE, ["--json"])
    composed = compose(args)
    said = {key: composed.config.pop(key) for key in list(composed.config) if key in _KEYS}
    asked, wrong = _asked(said)
    agents = {one.name: _resources_of(one) for one in composed.instances if one.kind == "responses_api_agents"}
    composed = _verifiers(composed, Path(asked.output if asked is not None else "output"))
    problems = [*find_problems(composed), *_misspelt(composed), *wrong]
    if asked is None or problems:
        show(problems)
        return 2
    try:
        return asyncio.run(_reverify(asked, composed, agents, as_json="--json" in flags))
    except KeyboardInterrupt:
        return 130


def _misspelt(composed: Composed) -> list[Problem]:
    """Keys of the command line that are nearly ours; any other may be one that the configuration refers to."""
    said = [key[0] for key, origin in composed.origins.items() if len(key) == 1 and origin == COMMAND_LINE]
    near = {key: did_you_mean(key, _KEYS) for key in said if key not in _KEYS}
    return [Problem(key, COMMAND_LINE, f"is not a known key{hint}") for key, hint in near.items() if hint]


def _asked(said: Mapping[str, Any]) -> tuple[_Asked | None, list[Problem]]:
    """What is asked for, or what is wrong with it."""
    try:
        return _Asked.model_validate(said), []
    except ValidationError as error:
        return None, [_problem(fault) for fault in error.errors(include_url=False)]


def _problem(fault: Any) -> Problem:
    key = str(fault["loc"][0])
    like = f": +{key}={_REQUIRED[key]}" if fault["type"] == "missing" else ""
    return Problem(f"+{key}", "", words(_Asked, (key,), [fault]) + like)


def _resources_of(agent: Instance) -> str | None:
    ref = agent.settings.get("resources_server")
    return ref.get("name") if isinstance(ref, dict) else None


def _verifiers(composed: Composed, output: Path) -> Composed:
    """The configuration with the resources servers and what they refer to, and nothing else."""
    named = {instance.name: instance for instance in composed.instances}
    wanted: set[str] = set()
    waiting = [one.name for one in composed.instances if one.kind == "resources_servers"]
    while waiting:
        name = waiting.pop()
        if name not in wanted and name in named:
            wanted.add(name)
            waiting += _references(named[name].settings)
    dropped = named.keys() - wanted
    config = {key: value for key, value in composed.config.items() if key not in dropped and key != "job"}
    capture = config.get("capture") if isinstance(config.get("capture"), dict) else {}
    config["capture"] = {**(capture or {}), "dir": str(paths.absolute(str(output / "captures")))}
    return msgspec.structs.replace(
        composed,
        config=config,
        instances=[instance for instance in composed.instances if instance.name in wanted],
        unresolved=frozenset(key for key in composed.unresolved if key[0] not in dropped and key[0] != "job"),
        problems=[one for one in composed.problems if one.key.partition(".")[0] not in {*dropped, "job"}],
    )


def _references(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str) and isinstance(value.get("name"), str):
            yield value["name"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


async def _reverify(asked: _Asked, composed: Composed, agents: Mapping[str, str | None], *, as_json: bool) -> int:
    from nemo_gym.launch.launcher import Launcher, LaunchError
    from nemo_gym.rollouts.manifest import Refused
    from nemo_gym.rollouts.results import ResultsError
    from nemo_gym.web import client

    console = outlasting(sys.stderr if as_json else sys.stdout)
    launcher: Launcher | None = None
    try:
        _checked(asked, composed, agents)
        if composed.instances:
            launcher = Launcher(composed, "reverify", Path(asked.output) / "logs")
            await launcher.up(console)
            servers = launcher.client
        else:
            servers = _running(asked.run)
        found = await _verified(asked, servers, agents, composed.digest(), console)
    except (Refused, ResultsError, LaunchError, OSError) as error:
        culprit = f"{error.server}: " if isinstance(error, LaunchError) and error.server else ""
        print(f"ng_reverify: {culprit}{in_words(error)}", file=sys.stderr)
        if isinstance(error, LaunchError) and error.last_words:
            print(error.last_words, file=sys.stderr)
        return 1 if isinstance(error, LaunchError) else WRONG
    finally:
        await client.close()
        if launcher is not None:
            await asyncio.shield(launcher.down())
    return _show(asked, found, as_json=as_json)


def _checked(asked: _Asked, composed: Composed, agents: Mapping[str, str | None]) -> None:
    """Raises for what can be told before a server is started: a judge's engine may take minutes."""
    from nemo_gym.rollouts.manifest import Refused
    from nemo_gym.rollouts.results import files
    from nemo_gym.rollouts.reverify import refuse_to_replace

    files([asked.rollouts])
    if asked.inputs is not None and not paths.locate(asked.inputs).is_file():
        raise Refused(f"+inputs: expected a file, there is none at {asked.inputs}")
    if not asked.force:  # with it the name of the output may become another
        refuse_to_replace(_output(asked), _options(asked))
    if composed.instances:
        verifiers = [one.name for one in composed.instances if one.kind == "resources_servers"]
        _router(asked.server, verifiers, agents)


def _output(asked: _Asked) -> Path:
    return Path(asked.output.removesuffix(".jsonl"))


def _options(asked: _Asked) -> Options:
    from nemo_gym.rollouts.reverify import Options

    return Options(asked.concurrency, asked.timeout_s, asked.limit, asked.force, asked.overwrite, asked.resume)


def _running(wanted: str | None) -> ServerClient:
    from nemo_gym.launch import head
    from nemo_gym.launch.launcher import LaunchError
    from nemo_gym.web.peers import ServerClient

    runs = [run for run in head.runs() if run.serves and (wanted is None or run.run_id == wanted)]
    if len(runs) != 1:
        names = ", ".join(run.run_id for run in runs) or "none is"
        raise LaunchError(f"no +config_paths say what verifies, and of running servers one run is needed: {names} up")
    answer = head.ask(runs[0])
    if answer is None:
        raise LaunchError(f"run {runs[0].run_id} does not answer")
    return ServerClient.of_run(runs[0], answer)


async def _verified(
    asked: _Asked,
    servers: ServerClient,
    agents: Mapping[str, str | None],
    digest: str,
    console: Console,
) -> Reverified:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from nemo_gym.rollouts.results import files, lines
    from nemo_gym.rollouts.reverify import reverify

    verifiers = [name for name, kind in servers.kinds.items() if kind == "resources_servers"]
    (source,) = files([asked.rollouts])
    total = sum(1 for _ in lines(source))
    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("", total=min(total, asked.limit or total))
        return await reverify(
            asked.rollouts,
            _output(asked),
            servers,
            _router(asked.server, verifiers, agents),
            servers=[asked.server] if asked.server is not None and asked.server in verifiers else verifiers,
            identity={"config_digest": digest, "server": asked.server},
            options=_options(asked),
            inputs=None if asked.inputs is None else paths.locate(asked.inputs),
            ended=lambda outcome: progress.advance(bar),
        )


def _router(
    chosen: str | None, verifiers: list[str], agents: Mapping[str, str | None]
) -> Callable[[Mapping[str, Any]], str]:
    """Which resources server a row is of: the one that is chosen, its agent's, or the only one there is."""
    from nemo_gym.rollouts.manifest import Refused

    if chosen is not None and chosen not in verifiers:
        raise Refused(f"+server: there is no resources server {chosen!r}{did_you_mean(chosen, verifiers)}")

    def route(row: Mapping[str, Any]) -> str:
        if chosen is not None:
            return chosen
        ref = row.get("agent_ref")
        agent = ref.get("name") if isinstance(ref, Mapping) else None
        if agents.get(str(agent)) in verifiers:
            return str(agents[str(agent)])
        if len(verifiers) == 1:
            return verifiers[0]
        raise Refused(
            f"agent {agent!r}: which of {', '.join(sorted(verifiers)) or 'no resources servers'} verifies its rollouts "
            "is not known; +server=… says it"
        )

    return route


def _show(asked: _Asked, found: Reverified, *, as_json: bool) -> int:
    """The figures before and after; 1 where some could not be verified."""
    from nemo_gym.cli import compare as comparing
    from nemo_gym.rollouts.comparison import compare
    from nemo_gym.rollouts.results import Fields, read
    from nemo_gym.viewer.report import sum_up

    after = read([found.output], Fields("", ""))
    again = {(one.task, one.repeat) for one in after}
    before = [one for one in read([asked.rollouts], Fields("", "")) if (one.task, one.repeat) in again]
    comparison = compare(before, after)
    if after:
        sum_up(Path(found.output))
    if as_json:
        print(json.dumps(msgspec.to_builtins(found) | {"reward": msgspec.to_builtins(comparison.reward)}, indent=2))
        return 1 if found.failures else 0
    already = f", {found.skipped} were before" if found.skipped else ""
    print(f"{found.verified} rollouts verified anew{already}; {found.changed} rewards changed; in {found.output}")
    if found.unsafe:
        print(f"not safe: {', '.join(found.unsafe)} may need more than a stored rollout", file=sys.stderr)
    if found.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.failures.items())
        print(f"failed: {kinds}; why is in {found.output}/failures.jsonl, +resume=true tries anew", file=sys.stderr)
    if comparison.reward is not None and found.changed:
        rewards = msgspec.structs.replace(comparison, others=[])  # of a conversation nothing else can be another
        print("\n".join(["", *comparing.lines(rewards, asked.rollouts, found.output)]))
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
