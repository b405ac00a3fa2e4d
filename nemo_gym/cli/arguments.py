"""What commands share: how arguments are read, and how faults are shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from nemo_gym.config.faults import Problem

WRONG = 2
"""The exit code where the command line, the configuration, or a file that they name is wrong; a run's own is 1."""

OVERRIDES = """\
Arguments are overrides in Hydra's manner:
  "+config_paths=[configs/a.yaml,configs/b.yaml]"   files, later ones win
  ++job.repeats=8                                   one key
  ~job                                              without that key
Keys of env.yaml in the working folder come between the files and the command line."""


class Parser(argparse.ArgumentParser):
    """One whose faults are one line: of a long usage nobody reads the end, where the fault stands."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: {message} ({self.prog} --help says what there is)\n")


def a_path(text: str) -> str:
    """For an argument that names a file or a folder: an empty one would be taken for the working folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"expected a path, got {text!r}")
    return text


def split(argv: list[str] | None, usage: str, flags: Sequence[str] = ()) -> tuple[list[str], set[str]]:
    """Overrides and flags; `--help` prints `usage` and ends, an unknown option ends with 2."""
    args = sys.argv[1:] if argv is None else argv
    given = {arg for arg in args if arg.startswith("-")}
    if given & {"-h", "--help"}:
        print(usage)
        sys.exit(0)
    if unknown := sorted(given - set(flags)):
        allowed = f"; there is {', '.join(flags)}" if flags else ""
        print(f"{unknown[0]} is not an option{allowed} (keys are set with ++key=value)", file=sys.stderr)
        sys.exit(WRONG)
    return [arg for arg in args if not arg.startswith("-")], given


def show(problems: Sequence[Problem]) -> None:
    """All faults on standard error, one line each."""
    for problem in dict.fromkeys(map(str, problems)):
        print(problem, file=sys.stderr)


def show_warnings(warnings: Sequence[Problem]) -> None:
    for warning in dict.fromkeys(map(str, warnings)):
        print(f"warning: {warning}", file=sys.stderr)


def in_words(error: Exception) -> str:
    """A fault for a person: of a file its path and what the system says of it, without a number."""
    if isinstance(error, OSError) and error.strerror:
        path = error.filename2 or error.filename
        return error.strerror if path is None else f"{path}: {error.strerror}"
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])
    return str(error)


def from_overrides(argv: Sequence[str], options: Mapping[str, str]) -> tuple[list[str], bool]:
    """NeMo Gym's `+key=value` as options, for commands that have no configuration; whether there was one.

    Args:
        options: key -> the option, "" for what stands alone. A value with commas is several of these.
    """
    out: list[str] = []
    found = False
    for argument in argv:
        key, equals, value = argument.lstrip("+").partition("=")
        if not argument.startswith("+") or not equals:
            out.append(argument)
            continue
        if key not in options:
            print(f"+{key}: there is no such key; there is {', '.join(options)}", file=sys.stderr)
            sys.exit(WRONG)
        found = True
        value = value.strip("'\"")
        if not value.strip():
            print(f"+{key}: expected a value, there is none after the =", file=sys.stderr)
            sys.exit(WRONG)
        if value.lower() in ("true", "false"):
            out += [options[key]] if value.lower() == "true" else []
        elif options[key]:
            out += [options[key], value]
        else:
            out += [one.strip() for one in value.strip("[]").split(",")]
    return out, found
