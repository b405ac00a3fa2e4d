"""`ng_serve`: a recording proxy in one line, without a configuration file.

It composes the configuration that the line stands for and runs it as `ng_run` does, so everything else is the same:
faults before anything starts, logs, `ng_status`, and no server that outlives the command. A key is named by the
variable that holds it, never given.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from nemo_gym.config.faults import Problem, did_you_mean
from nemo_gym.config.types import is_loopback
from nemo_gym.launch import forkserver

from . import clients
from .arguments import Parser, a_path, show
from .interrupt import ends_at_once
from .pipe import ends_in_order
from .run import BAD_CONFIG, Run, composed_to_run

NAME = "policy_model"
CAPTURES = "results/serve/captures"
PORT = 8001
_ROUTES = ("/chat/completions", "/responses", "/messages", "/models")
_MODELS_S = 10.0
_BEFORE_QUOTE = re.compile(r"\\*'|\\+$")
"""Where a quoted value needs backslashes; elsewhere they stand for themselves."""


@ends_in_order
def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        line = read(arguments)
    except ValueError as error:
        print(f"ng_serve: {error}", file=sys.stderr)
        return BAD_CONFIG
    forkserver.begin()
    try:
        with ends_at_once():
            composed, problems = composed_to_run(line.overrides())
            if problems:
                show([line.as_said(problem) for problem in problems])
                return BAD_CONFIG
            serving = _Serving(composed, ["ng_serve", *(sys.argv[1:] if argv is None else argv)], line)
        return asyncio.run(serving.ended())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        forkserver.end()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ng_serve",
        description="Serves one model in every dialect and records each call; prints what agents and SDKs need for it.",
        epilog="Further arguments are overrides, as ng_run takes them: "
        "++policy_model.responses_api_models.vllm_model.retries=8",
    )
    parser.add_argument(
        "--upstream", metavar="URL", action="append", help="an endpoint that answers; again for further, equal ones"
    )
    parser.add_argument(
        "--provider", metavar="NAME", help="a well-known host in the place of a URL: openai, together …"
    )
    parser.add_argument(
        "--model", required=True, help="what the endpoint calls the model; without an endpoint, the model's folder"
    )
    parser.add_argument(
        "--api", choices=["chat", "responses", "messages"], help="what the endpoint speaks; chat unless said"
    )
    parser.add_argument("--key-env", metavar="NAME", help="the environment variable with the endpoint's key")
    parser.add_argument("--host", default="127.0.0.1", help="default %(default)s")
    parser.add_argument("--port", type=int, help=f"default {PORT}, or a free one where that is taken")
    parser.add_argument("--callers-key-env", metavar="NAME", help="the one with the key that callers must give")
    parser.add_argument("--captures", type=a_path, metavar="DIR", default=CAPTURES, help="default %(default)s")
    parser.add_argument("--relay", action="store_true", help="text goes out while the model still writes")
    parser.add_argument("overrides", nargs="*", default=[], help=argparse.SUPPRESS)
    return parser


class Line(Struct, frozen=True):
    """What the command line says, as settings of one server."""

    implementation: str
    settings: dict[str, Any]
    captures: str
    more: tuple[str, ...]
    options: dict[str, str]
    """Setting -> the option that says it."""
    callers_key: str | None

    @property
    def _prefix(self) -> str:
        return f"{NAME}.responses_api_models.{self.implementation}."

    def overrides(self) -> list[str]:
        own = {"entrypoint": "app.py", **self.settings}
        told = [f"++{self._prefix}{key}={written(value)}" for key, value in own.items()]
        return [*told, f"++capture.dir={written(self.captures)}", *self.more]

    def as_said(self, problem: Problem) -> Problem:
        """The fault under the option's name, where an option set the key."""
        option = self.options.get(problem.key.removeprefix(self._prefix).partition(".")[0])
        return problem if option is None else replace(problem, key=option, where="")


def read(arguments: argparse.Namespace) -> Line:
    """Raises ValueError in the words of the command line."""
    settings: dict[str, Any] = {"model": arguments.model, "host": arguments.host}
    options = {name: f"--{name}" for name in ("model", "host", "port")}
    if arguments.upstream is not None and arguments.provider is not None:
        raise ValueError("--provider: says where the endpoint is; leave --upstream out")
    if arguments.upstream is not None:
        urls = [upstream(url) for url in arguments.upstream]
        implementation = "vllm_model"
        settings["base_url"] = urls if len(urls) > 1 else urls[0]
        options["base_url"] = "--upstream"
    elif arguments.provider is not None:
        implementation = _provider(arguments, settings)
    else:
        implementation = "local_vllm_model"
        _check_folder(arguments.model)
        for option in ("key_env", "api"):
            if getattr(arguments, option):
                raise ValueError(f"--{option.replace('_', '-')}: is about an endpoint; name one with --upstream")
    if arguments.api:
        settings["api"] = arguments.api
        options["api"] = "--api"
    if arguments.key_env:
        settings["api_key"] = _from_environment(arguments.key_env, "--key-env")
        options["api_key"] = "--key-env"
    if not is_loopback(arguments.host) and not arguments.callers_key_env:
        raise ValueError(
            f"--host: other machines reach {arguments.host}; name the key they must give: --callers-key-env"
        )
    port = arguments.port if arguments.port is not None else _free(arguments.host)
    if port is not None:
        settings["port"] = port
    if arguments.callers_key_env:
        settings["api_keys"] = [_from_environment(arguments.callers_key_env, "--callers-key-env")]
        options["api_keys"] = "--callers-key-env"
    if arguments.relay:
        settings["stream"] = "relay"
    return Line(
        implementation, settings, arguments.captures, tuple(arguments.overrides), options, arguments.callers_key_env
    )


def _provider(arguments: argparse.Namespace, settings: dict[str, Any]) -> str:
    """The kind of server for a well-known host; its key is the one that the host's own documentation names."""
    from nemo_gym.backends.presets import presets

    preset = presets().get(arguments.provider)
    if preset is None:
        near = did_you_mean(arguments.provider, presets()) or f"; there are {', '.join(presets())}"
        raise ValueError(f"--provider: there is none called {arguments.provider!r}{near}")
    arguments.key_env = arguments.key_env or preset.key_env
    if arguments.provider == "openai":
        return "openai_model"
    settings["provider"] = arguments.provider
    return "inference_provider"


def upstream(url: str) -> str:
    """The endpoint's base, whichever of its addresses was given: a bare host, the base, or one of its routes."""
    parts = _parts(url if "://" in url else f"http://{url}")
    if parts is None or parts.scheme not in ("http", "https"):
        raise ValueError(f"--upstream: expected a URL such as http://127.0.0.1:8000/v1, got {url!r}")
    if parts.query or parts.fragment:
        raise ValueError("--upstream: expected a URL without a query")
    path = parts.path.rstrip("/")
    for route in _ROUTES:
        path = path.removesuffix(route)
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def _parts(url: str) -> SplitResult | None:
    """None for what has no host, or a port that is none."""
    try:
        parts = urlsplit(url)
        return parts if parts.hostname and not re.search(r"\s", parts.netloc) and parts.port != 0 else None
    except ValueError:
        return None


def _check_folder(model: str) -> None:
    from nemo_gym.config import paths

    if not (paths.locate(model) / "config.json").is_file():
        raise ValueError(
            f"--model: expected a model's folder with a config.json, found none at {model!r}; "
            "a model that is served elsewhere needs --upstream URL"
        )


def _from_environment(name: str, option: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{option}: expected the name of an environment variable, not the key itself")
    return f"${{oc.env:{name}}}"


def _free(host: str) -> int | None:
    """The usual port, where nobody listens on it: settings that were pasted once stay right."""
    from nemo_gym.launch import ports

    try:
        ports.bind(host, PORT).close()
    except OSError:
        return None
    return PORT


def written(value: Any) -> str:
    """A value as the grammar of overrides takes it, whatever characters it has."""
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, str):
        return "'" + _BEFORE_QUOTE.sub(lambda found: found[0].replace("\\", "\\\\").replace("'", "\\'"), value) + "'"
    return str(value)


class _Serving(Run):
    def __init__(self, composed: Any, command: Sequence[str], line: Line) -> None:
        super().__init__(composed, command)
        self._line = line

    async def stay(self, launcher: Any) -> int:
        from nemo_gym.config import paths

        url = launcher.servers[NAME]
        model, context = await _served(url, self._line)
        captures = self.composed.capture()
        for pasted in clients.settings(url, model, context=context, key_variable=self._line.callers_key):
            self.console.print(f"\n[bold]{pasted.client}[/]  [dim]{pasted.where}[/]")
            self.console.print(pasted.text, markup=False)
        self.console.print(
            f"\nEach task under an id of its own in the place of {clients.ROLLOUT} keeps its calls together; "
            "/v1 without one works too.",
            style="dim",
        )
        if captures.enabled:
            folder = paths.shown(Path(str(captures.dir)))
            self.console.print(
                f"recorded in {folder}: ng_captures list {folder}\nas token rows, with those of calls without an id "
                f"by session: ng_export {folder}",
                style="dim",
                markup=False,
            )
        return await super().stay(launcher)


async def _served(url: str, line: Line) -> tuple[str, int | None]:
    """The model's name and its context, as the server lists them."""
    key = os.environ.get(line.callers_key or "", "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    name = str(line.settings["model"])
    try:
        limits = aiohttp.ClientTimeout(total=_MODELS_S)
        async with (
            aiohttp.ClientSession(timeout=limits) as session,
            session.get(f"{url}/v1/models", headers=headers) as answer,
        ):
            entry = (await answer.json())["data"][0]
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
        return name, None  # the settings hold without it
    return entry.get("id") or name, entry.get("max_model_len")


if __name__ == "__main__":
    sys.exit(main())
