"""`ng_init_resources_server`, `ng_test` and `ng_prepare_data`: an environment begun, tried, and its data made ready."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nemo_gym.config import paths
from nemo_gym.config.compose import compose
from nemo_gym.config.faults import Problem, did_you_mean

from .arguments import OVERRIDES, in_words, show, split
from .pipe import ends_in_order

_INIT = """usage: ng_init_resources_server NAME

Writes a new environment into resources_servers/NAME of the working folder: server, config, five rows, a test that
passes, README. NAME may be a path, and +entrypoint=resources_servers/NAME says the same."""
_TEST = """usage: ng_test NAME... [-- arguments of pytest]

Runs the tests of one or more servers; NAME is a folder such as resources_servers/mcqa, or its last part."""
_PREPARE = f"""usage: ng_prepare_data [overrides] +output_dirpath=FOLDER [+mode=MODE] [+should_download=true]

Checks every row of the data sets that a configuration declares, and writes those of a kind into one file of FOLDER,
each row with its agent. MODE is train_preparation (the kinds train and validation; the default) or example_validation
(example). Ends with 2 when there is a fault; then nothing is written.

{OVERRIDES}"""
_MODES = {"train_preparation": ("train", "validation"), "example_validation": ("example",)}
_OPTIONS = ("output_dirpath", "mode", "should_download")


@ends_in_order
def init_main(argv: list[str] | None = None) -> int:
    from nemo_gym.environment.scaffold import ScaffoldError, scaffold

    args, _ = split(argv, _INIT)
    if len(args) != 1 or not args[0].strip():
        print(
            f"expected one NAME, got {' '.join(args).strip() or repr(args[0])}\n{_INIT}" if args else _INIT,
            file=sys.stderr,
        )
        return 2
    name = args[0].removeprefix("+entrypoint=")
    folder = Path.cwd() / (name if "/" in name else f"resources_servers/{name}")
    try:
        written = scaffold(folder)
    except ScaffoldError as error:
        print(error, file=sys.stderr)
        return 2
    for path in written:
        print(paths.shown(path))
    print(f"next: ng_test {paths.shown(folder)}")
    return 0


@ends_in_order
def try_main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    at = given.index("--") if "--" in given else len(given)
    names, _ = split(given[:at], _TEST)
    if not names:
        print(_TEST, file=sys.stderr)
        return 2
    worst = 0
    for name in names:
        folder = _server_folder(name.removeprefix("+entrypoint="))
        if folder is None:
            return 2
        worst = max(worst, _tested(folder, given[at + 1 :]))
    return worst


def _server_folder(name: str) -> Path | None:
    kinds = ("resources_servers", "responses_api_agents", "responses_api_models")
    if not name.strip():
        print(f"expected a NAME, got {name!r}", file=sys.stderr)
        return None
    for place in (name, *(f"{kind}/{name}" for kind in kinds)):
        folder = paths.locate(place)
        if (folder / "tests").is_dir():
            return folder
    there = [path.name for kind in kinds for path in paths.beside(f"{kind}/x") if (path / "tests").is_dir()]
    print(f"{name}: there is no server with tests of that name{did_you_mean(Path(name).name, there)}", file=sys.stderr)
    return None


def _tested(folder: Path, more: list[str]) -> int:
    """pytest's exit status. It runs in the server's folder, so that its test may import `app`, or the whole path."""
    search = [str(folder), str(folder.parents[1]), str(paths.project_root()), os.environ.get("PYTHONPATH", "")]
    settings = ("asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function")
    options = [part for setting in settings for part in ("-o", setting)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--import-mode=importlib", "--rootdir", str(folder), "-p", "no:cacheprovider",
         *options, "tests", *more],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, search)))},
        check=False,
    ).returncode  # fmt: skip


@ends_in_order
def prepare_main(argv: list[str] | None = None) -> int:
    from nemo_gym.rollouts.prepare import PrepareError, declared, prepare

    args, _ = split(argv, _PREPARE)
    composed = compose(args)
    options = {key: composed.config.pop(key, None) for key in _OPTIONS}
    mode = options["mode"] or "train_preparation"
    problems = [
        problem
        for problem in composed.problems
        if not problem.key.startswith("policy_model.")  # no model is needed
    ]
    if mode not in _MODES:
        problems.append(Problem("+mode", "", f"expected {' or '.join(_MODES)}, got {mode!r}"))
    if not str(options["output_dirpath"] or "").strip():
        problems.append(Problem("+output_dirpath", "", "is required: +output_dirpath=FOLDER"))
    if problems:
        show(problems)
        return 2
    output = paths.absolute(str(options["output_dirpath"]))
    try:
        sets = declared(composed.config)
        made = prepare(sets, output, _MODES[mode], bool(options["should_download"]))
    except PrepareError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"+output_dirpath: cannot be written to: {in_words(error)}", file=sys.stderr)
        return 2
    for one in made:
        parts = ", ".join(f"{name} {count}" for name, count in one.datasets.items())
        here = Path(one.path).is_relative_to(Path.cwd())
        print(f"{one.kind:<12} {one.rows:,} rows ({parts})   {paths.shown(one.path) if here else one.path}")
    if not made:
        kinds = {one.dataset.type for one in sets}
        others = [f"+mode={other} is for {' and '.join(of)}" for other, of in _MODES.items() if kinds & {*of}]
        hint = "; ".join(["", *others])
        print(f"the configuration declares no data set of the kind {' or '.join(_MODES[mode])}{hint}", file=sys.stderr)
    return 0 if made else 2
