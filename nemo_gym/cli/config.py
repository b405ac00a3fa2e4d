"""`ng_dump_config` and `ng_validate`: what a configuration says, and what is wrong with it."""

from __future__ import annotations

import json
import sys

import msgspec

from nemo_gym.config.compose import compose
from nemo_gym.config.faults import Problem
from nemo_gym.config.problems import nothing_is_said

from .arguments import OVERRIDES, show, show_warnings, split
from .pipe import ends_in_order

_DUMP = f"""usage: ng_dump_config [--json] [overrides]

Shows the configuration as it is used: files merged, references resolved, secrets masked.

{OVERRIDES}"""
_VALIDATE = f"""usage: ng_validate [--json] [overrides]

Names every fault of a configuration without starting anything. Ends with 2 when there is one. What is written and has
no effect is a warning.

{OVERRIDES}"""


@ends_in_order
def dump_main(argv: list[str] | None = None) -> int:
    args, flags = split(argv, _DUMP, ["--json"])
    composed = compose(args)
    show(composed.problems)
    if not composed.complete:
        return 2
    if not composed.config and not composed.problems:
        show([nothing_is_said(composed)])
        return 2
    if "--json" in flags:
        print(json.dumps(composed.masked(), indent=2, ensure_ascii=False))
    else:
        import yaml

        print(yaml.safe_dump(composed.masked(), sort_keys=False, allow_unicode=True), end="")
    return 2 if composed.problems else 0


@ends_in_order
def validate_main(argv: list[str] | None = None) -> int:
    from nemo_gym.config.unknown import find_warnings

    from .run import faults

    args, flags = split(argv, _VALIDATE, ["--json"])
    composed = compose(args)
    problems, warnings = faults(composed), find_warnings(composed)
    if "--json" in flags:
        told = {"problems": [_plain(p) for p in problems], "warnings": [_plain(w) for w in warnings]}
        print(json.dumps({"ok": not problems} | told, indent=2, ensure_ascii=False))
        return 2 if problems else 0
    show_warnings(warnings)
    if problems:
        show(problems)
        print(f"{len(problems)} {'fault' if len(problems) == 1 else 'faults'}", file=sys.stderr)
    else:
        count = len(composed.instances)
        job = ", one job" if composed.config.get("job") else ""
        print(f"no faults: {count} {'server' if count == 1 else 'servers'}{job}")
    return 2 if problems else 0


def _plain(problem: Problem) -> dict[str, str]:
    plain: dict[str, str] = msgspec.to_builtins(problem)
    return plain


if __name__ == "__main__":
    sys.exit(validate_main())
