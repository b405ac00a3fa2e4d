"""Tasks of the example environment, apart: what is held out is never trained on.

A fifth of the cities and a fifth of the pairs of numbers are held out. Training tasks are drawn without end from the
others, so hardly any comes twice.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from resources_servers.example_weather_and_sums.data import generate

Task = dict[str, Any]

HELD_OUT_CITIES = generate.CITIES[::5]
TRAINING_CITIES = tuple(city for city in generate.CITIES if city not in HELD_OUT_CITIES)


def training(seed: int) -> Iterator[Task]:
    """Weather and sums, turn and turn about, without end."""
    return _drawn(random.Random(f"training {seed}"), TRAINING_CITIES, held_out=False)


def held_out(size: int) -> list[Task]:
    """The same ones each time."""
    return list(islice(_drawn(random.Random("held out"), HELD_OUT_CITIES, held_out=True), size))


def is_held_out(task: Task) -> bool:
    expected = task["expected"]
    if expected["tool"] == "get_weather":
        return expected["city"] in HELD_OUT_CITIES
    return (expected["a"] + 2 * expected["b"]) % 5 == 0


def write(tasks: Iterable[Task], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")


def _drawn(draw: random.Random, cities: tuple[str, ...], *, held_out: bool) -> Iterator[Task]:
    for number in count():
        task = generate.task(number, draw, draw.choice(cities))
        while is_held_out(task) != held_out:
            task = generate.task(number, draw, draw.choice(cities))
        yield task
