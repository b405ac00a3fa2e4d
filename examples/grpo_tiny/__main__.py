"""A policy that improves, all of it on this machine: `python -m examples.grpo_tiny`.

The embedded model plays the example environment through servers of its own, learns from what was captured, and is
measured on tasks that it never saw.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .measure import Line
    from .servers import Servers

os.environ.setdefault("HF_HUB_OFFLINE", "1")

DEFAULT = Path("results/grpo_tiny")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    output: Path = arguments.output.absolute()  # the servers have working folders of their own
    if output.exists():
        if not arguments.overwrite:
            print(f"{output} is there already: --overwrite removes it")
            return 2
        shutil.rmtree(output)
    asyncio.run(_run(arguments, output))
    return 0


async def _run(arguments: argparse.Namespace, output: Path) -> None:
    import torch
    from msgspec import json
    from transformers.utils import logging

    from . import chart
    from .measure import in_words, measured
    from .servers import Servers

    logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    results = []
    async with Servers(output) as servers:
        for seed in arguments.seeds:
            torch.manual_seed(seed)
            folder = output / f"seed-{seed}"
            learn = _method(arguments, servers, seed, folder)
            results.append(await measured(servers, learn, folder, arguments.held_out, arguments.method, seed))
            _say(in_words(results[-1]))
            (output / "results.json").write_bytes(json.format(json.encode(results)))
            (output / "curve.svg").write_text(chart.svg(results), encoding="utf-8")
    _say(f"results  {output}/results.json, curve.svg")


def _method(
    arguments: argparse.Namespace, servers: Servers, seed: int, folder: Path
) -> Callable[[], Awaitable[list[Line]]]:
    from . import grpo, imitation, with_trl

    if arguments.method == "sft":
        return partial(imitation.learn, servers, imitation.Plan(), seed, folder, _say)
    plan = grpo.Plan(arguments.steps, arguments.prompts, arguments.samples, arguments.learning_rate, arguments.ahead)
    module = with_trl if arguments.method == "trl" else grpo
    return partial(module.learn, servers, plan, seed, folder, _say)


def _say(words: str) -> None:
    print(words, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.grpo_tiny", description=__doc__)
    parser.add_argument(
        "--method",
        choices=("grpo", "trl", "sft"),
        default="grpo",
        help="reinforcement, the same by TRL's GRPOTrainer, or imitation of the rewarded rollouts",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="SEED", help="one after the other")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=16, help="tasks of a step")
    parser.add_argument("--samples", type=int, default=8, help="rollouts of a task")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--ahead", action="store_true", help="play the next batch while learning from this one")
    parser.add_argument("--held-out", type=int, default=64, help="tasks that it is measured on, 4 times each")
    parser.add_argument("--threads", type=int, default=1, help="of the learner")
    parser.add_argument("--output", type=Path, default=DEFAULT)
    parser.add_argument("--overwrite", action="store_true")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
