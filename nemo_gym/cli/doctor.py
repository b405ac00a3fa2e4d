"""`ng_doctor`: what an endpoint, or the model servers of a configuration, can do, and what that means for training.

Nothing is assumed: every line comes from a request that was made (`backends/probe`). Ends with 0 when all that token
rows need is there, 1 when some of it is missing or nothing answered, 2 when the command line is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

from nemo_gym.config import paths

from .arguments import WRONG, Parser, show
from .pipe import ends_in_order
from .serve import upstream, written

if TYPE_CHECKING:
    from nemo_gym.backends.probe import Finding

NEEDED = ("token ids", "log-probs")
"""For token rows."""
_MODELS_S = 10.0
MEANS: dict[str, tuple[str, str, str]] = {
    # name: (when able, when not, when it could not be told)
    "token ids": (
        "what was sampled is recorded exactly: token rows can be exported",
        "no token rows: a trainer would have to guess tokens from text (vLLM gives ids in Chat Completions)",
        "",
    ),
    "log-probs": (
        "the sampling policy's log-probs are recorded",
        "no importance ratios: off-policy corrections and PPO-style losses have nothing to start from",
        "",
    ),
    "log-prob mode": (
        "log-probs are of the distribution that was sampled: right at every temperature",
        "log-probs are those before temperature: train on rollouts at temperature 1 without top_p or top_k, "
        "or start vLLM with --logprobs-mode processed_logprobs",
        "treat log-probs as those of temperature 1",
    ),
    "tool calls": (
        "agents can use tools",
        "agents would see calls as text: start vLLM with --enable-auto-tool-choice and the model's --tool-call-parser",
        "try a task with tools before a long run",
    ),
    "required tool": ("tool_choice: required is enforced", "tool_choice: required is only a wish", ""),
    "named tool": ("a named tool_choice is enforced", "a named tool_choice is only a wish", ""),
    "output schema": (
        "structured output is enforced",
        "structured output is only a wish: verify what comes",
        "try it with the task's own schema",
    ),
    "images": (
        "screenshots reach the model",
        "images are replaced by a short text (vision: false)",
        "try a task with images before a long run",
    ),
    "streaming": ("stream: relay works", "stream: relay gives the reply whole", ""),
    "usage": (
        "tokens are counted by the backend",
        "limits and costs cannot be told; agents do not compact in time",
        "",
    ),
    "context": (
        "set the client's context to it, so that it compacts in time",
        "",
        "set the client's context by hand: a prompt that does not fit is no training row",
    ),
    "system messages": (
        "each reaches the model as it is",
        "merged, or shown as marked user messages: nothing is dropped",
        "developer messages are sent as system messages",
    ),
}


@ends_in_order
def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return asyncio.run(_examined(arguments))
    except _Wrong as error:
        print(f"ng_doctor: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ng_doctor",
        description="Asks a model's endpoint, or each model server of a configuration, what it can do, "
        "and says what that means for training.",
    )
    parser.add_argument("target", help="a URL, or a configuration's file")
    parser.add_argument("--model", help="what the endpoint calls the model; its only one when absent")
    parser.add_argument("--api", choices=["chat", "responses", "messages"], default="chat", help="what a URL speaks")
    parser.add_argument("--key-env", metavar="NAME", help="the environment variable with the endpoint's key")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument(
        "overrides", nargs="*", default=[], help="with a configuration: overrides, as ng_run takes them"
    )
    return parser


_Named = tuple[str, str, Any]
"""A backend after its name, and after what a person is shown: where it is, too."""


class _Wrong(Exception):
    """The command line is; its words are for the user."""


class _NoAnswer(Exception):
    """The endpoint is not there, or not well; why, in words."""


async def _examined(arguments: argparse.Namespace) -> int:
    from nemo_gym.backends.probe import examine
    from nemo_gym.exchange.errors import ModelError
    from nemo_gym.web import client

    backends = _of_config(arguments) if _is_file(arguments.target) else _of_url(arguments)
    told: dict[str, Any] = {}
    good = True
    try:
        async for name, shown, backend in backends:
            try:
                found = await examine(backend)
            except ModelError as error:
                words = "cannot be reached" if error.kind == "unreachable" else f"{error.status}: {error.message}"
                told[name], good = {"error": words}, False
                if not arguments.json:
                    print(f"{shown}: {words}", file=sys.stderr)
                continue
            good = good and all(one.able for one in found if one.name in NEEDED)
            told[name] = {one.name: {"able": one.able, "detail": one.detail, "means": means(one)} for one in found}
            if not arguments.json:
                _print(shown, found)
    except _NoAnswer as error:
        told[arguments.target] = {"error": str(error)}
        good = False
        if not arguments.json:
            print(f"ng_doctor: {arguments.target} {error}", file=sys.stderr)
    finally:
        await client.close()
    if arguments.json:
        print(json.dumps(told, indent=2, ensure_ascii=False))
    return 0 if good and told else 1


def means(finding: Finding) -> str:
    able, unable, unknown = MEANS[finding.name]
    return unknown if finding.able is None else able if finding.able else unable


def _print(name: str, found: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=name, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("", "", "found", "what it means"):
        table.add_column(column, overflow="fold")
    words = {True: "[green]yes[/]", False: "[red]no[/]", None: "[yellow]?[/]"}
    from rich.text import Text

    for one in found:
        table.add_row(one.name, words[one.able], Text(one.detail), Text(means(one)))
    with console.capture() as shown:  # by print, which tells when nobody reads
        console.print(table)
    print(shown.get(), end="")


def _is_file(target: str) -> bool:
    """Whether it is a configuration and not a URL. Raises _Wrong for what is neither."""
    expected = "expected a URL, or a configuration's file (.yaml)"
    if "://" in target:
        return False
    if target.endswith((".yaml", ".yml")):
        return True
    path = paths.locate(target) if target.strip() else None
    if path is not None and path.exists():
        kind = "a folder" if path.is_dir() else "another file"
        host = "" if "/" in target else f"; a host of that name is written http://{target}"
        raise _Wrong(f"{target}: {expected}, this is {kind}{host}")
    if path is None or target.startswith(("/", ".", "~")):
        raise _Wrong(f"{expected}, got {target!r}" + ("" if path is None else ", which does not exist"))
    return False


async def _of_url(arguments: argparse.Namespace) -> AsyncIterator[_Named]:
    from nemo_gym.backends.http import HttpBackend
    from nemo_gym.dialects import chat, messages, responses

    if arguments.overrides:
        raise _Wrong(f"{arguments.overrides[0]}: overrides belong to a configuration's file")
    try:
        url = upstream(arguments.target)
    except ValueError as error:
        raise _Wrong(str(error).removeprefix("--upstream: ")) from None
    key = None
    if arguments.key_env:
        key = os.environ.get(arguments.key_env)
        if not key:
            raise _Wrong(f"--key-env: the environment variable {arguments.key_env} is not set")
    model = arguments.model or await _only_model(url, key, arguments)
    dialect = {"chat": chat, "responses": responses, "messages": messages}[arguments.api]
    name = f"{model} at {arguments.target}"
    yield name, name, HttpBackend(dialect, [url], api_key=key, model=model, retries=1, timeout_s=120.0)


async def _only_model(url: str, key: str | None, arguments: argparse.Namespace) -> str:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_MODELS_S)) as session,
            session.get(f"{url}/models", headers=headers) as answer,
        ):
            if answer.status in (401, 403):
                say = "--key-env: the key is refused" if key else "needs a key: say --key-env NAME"
                raise _Wrong(f"{arguments.target}: {say} ({answer.status})")
            if answer.status >= 500:
                raise _NoAnswer(f"answers {answer.status} {answer.reason}")
            names = [str(entry["id"]) for entry in (await answer.json())["data"]]
    except TimeoutError:
        raise _NoAnswer(f"cannot be reached: no answer in {_MODELS_S:.0f} s") from None
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise _NoAnswer(f"cannot be reached: {_why(error)}") from None
    except (aiohttp.ClientError, ValueError, LookupError, TypeError):
        raise _Wrong(f"{arguments.target}: {url}/models does not list what is served; say --model NAME") from None
    if len(names) != 1:
        raise _Wrong(f"--model: expected one of {', '.join(sorted(names)[:12]) or '(none is served)'}")
    return names[0]


def _why(error: aiohttp.ClientError) -> str:
    """In the system's words, where it has some."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


async def _of_config(arguments: argparse.Namespace) -> AsyncIterator[_Named]:
    from nemo_gym.config.compose import compose
    from nemo_gym.launch.launcher import upstreams

    from .run import faults

    if arguments.model or arguments.key_env:
        raise _Wrong("--model and --key-env belong to a URL; a configuration says its own")
    composed = compose([f"+config_paths={written([arguments.target])}", *arguments.overrides])
    problems = faults(composed)
    if problems:
        show(problems)
        raise _Wrong("the configuration has faults")
    models = [instance for instance in composed.instances if instance.kind == "responses_api_models"]
    if not models:
        raise _Wrong(f"{arguments.target} has no model server")
    for instance in models:
        where = upstreams(instance.settings)
        async with _started(instance) as server:
            yield instance.name, f"{instance.name} at {where}" if where else instance.name, server


@asynccontextmanager
async def _started(instance: Any) -> AsyncIterator[Any]:
    """The server's own object with its backend up, in this process and without a socket."""
    from nemo_gym.config.servers import server_class
    from nemo_gym.web.peers import ServerClient

    made: Any = server_class(instance.kind, instance.implementation, instance.settings.get("entrypoint", "app.py"))
    settings = {**instance.settings, "name": instance.name}
    server = made(config=made.config_class().model_validate(settings), server_client=ServerClient({}))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


if __name__ == "__main__":
    sys.exit(main())
