"""`ng <command>`: finds the command and loads nothing else, so that help is there at once."""

from __future__ import annotations

import difflib
import importlib
import sys

from nemo_gym import __version__

from .interrupt import ends_at_once
from .pipe import ends_in_order

# name -> (module, function, what it does)
COMMANDS = {
    "run": ("run", "main", "start the servers of a configuration; with a job in it, run the job and end"),
    "serve": ("serve", "main", "serve one model in every dialect and record it, without a configuration"),
    "status": ("status", "main", "list the runs and servers that are up"),
    "doctor": ("doctor", "main", "ask a model's endpoint what it can do, and what that means for training"),
    "validate": ("config", "validate_main", "check a configuration without starting anything"),
    "dump_config": ("config", "dump_main", "show the configuration as it is used, secrets masked"),
    "collect_rollouts": ("collect", "main", "run a job on servers that are already up"),
    "captures": ("captures", "main", "list, show and verify recorded calls"),
    "export": ("export", "main", "turn captures into files for training"),
    "reward_profile": ("profile", "main", "sum up stored rollouts by agent, subset and task"),
    "compare": ("compare", "main", "hold two runs of the same tasks against each other"),
    "reverify": ("reverify", "main", "compute the rewards of stored rollouts anew, without a model"),
    "aggregate_rollouts": ("aggregate", "main", "put sharded runs together into one"),
    "init_resources_server": (
        "environment",
        "init_main",
        "begin an environment: server, config, data, a test that passes",
    ),
    "test": ("environment", "try_main", "run the tests of one server"),
    "prepare_data": ("environment", "prepare_main", "check the data sets of a configuration and put them together"),
    "version": ("main", "version_main", "show the version"),
}


@ends_in_order
def main(argv: list[str] | None = None) -> int:
    """The `ng` command."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if args else 2
    if args[0] in ("-V", "--version"):
        return version_main()
    name = args[0].replace("-", "_").removeprefix("ng_")
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
        print(f"ng: there is no command {args[0]!r}; {hint}", file=sys.stderr)
        return 2
    module, function, _ = COMMANDS[name]
    sys.argv = [f"ng {name}", *args[1:]]  # a command reads its arguments as when it is called by its own name
    try:
        with ends_at_once():
            command = importlib.import_module(f"nemo_gym.cli.{module}")
        result = getattr(command, function)()
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


@ends_in_order
def version_main() -> int:
    """The `ng_version` command."""
    print(__version__)
    return 0


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {what}" for name, (_, _, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ng <command> [arguments]",
            "",
            *lines,
            "",
            "Each is also a command of its own, such as ng_run; --help says more.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
