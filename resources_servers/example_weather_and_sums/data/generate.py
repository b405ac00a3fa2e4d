"""The example tasks: half questions on the weather, half sums, drawn from one seed.

Every task fixes what its tools answer and what a right reply states, so that a reward depends on the reply alone. The
cities, the tools' wording and the questions are those that the embedded model was trained on. Running this file
writes `example.jsonl` beside it; the same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

# fmt: off
CITIES = (
    "Paris", "London", "Berlin", "Madrid", "Rome", "Tokyo", "Oslo", "Cairo", "Lima", "Delhi", "Dublin",
    "Vienna", "Prague", "Athens", "Boston", "Chicago", "Sydney", "Lisbon", "Warsaw", "Zurich",
    "New York", "San Francisco", "Los Angeles", "Rio de Janeiro", "Buenos Aires", "Hong Kong",
    "Seattle", "Toronto", "Nairobi", "Mumbai", "Seoul", "Beijing", "Santa Clara", "Amsterdam",
    "Helsinki", "Stockholm", "Moscow", "Jakarta", "Manila", "Bangkok", "Hanoi", "Dallas", "Denver",
    "Miami", "Houston", "Austin", "Munich", "Hamburg", "Geneva", "Brussels", "Budapest", "Istanbul",
    "Lagos", "Accra", "Quito", "Bogota", "Havana", "Montreal", "Vancouver", "Melbourne",
)
# fmt: on
CONDITIONS = ("sunny", "cloudy", "rainy", "snowy", "windy", "foggy", "clear", "stormy")
WEATHER_QUESTIONS = (
    "What is the weather in {city}?",
    "What's the weather like in {city}?",
    "Tell me the weather in {city}.",
    "How is the weather in {city} today?",
    "What is the current weather in {city}?",
    "Please check the weather for {city}.",
    "Can you tell me what the weather is in {city} right now?",
    "I am going to {city}. What is the weather there?",
)
SUM_QUESTIONS = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "Compute {a} + {b}.",
    "Please add {a} and {b}.",
    "Calculate the sum of {a} and {b}.",
    "How much is {a} plus {b}?",
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city name."}},
            "required": ["city"],
        },
        "strict": False,
    },
    {
        "type": "function",
        "name": "calculator",
        "description": "Add two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
        "strict": False,
    },
]


def task(number: int, draw: random.Random, city: str) -> dict[str, Any]:
    """One row; even numbers ask for the weather in `city`, odd ones for a sum."""
    if number % 2 == 0:
        expected: dict[str, Any] = {
            "tool": "get_weather",
            "city": city,
            "temperature": draw.randint(-20, 45),
            "condition": draw.choice(CONDITIONS),
        }
        question, name = draw.choice(WEATHER_QUESTIONS).format(city=city), "weather"
    else:
        # From 1 on: with a zero the sum would equal an operand, and restating the question would state the answer.
        highest = draw.choice((9, 9, 99))
        a, b = draw.randint(1, highest), draw.randint(1, highest)
        expected = {"tool": "calculator", "a": a, "b": b, "result": a + b}
        question, name = draw.choice(SUM_QUESTIONS).format(a=a, b=b), "sum"
    return {
        "task_id": f"{name}-{number // 2:03d}",
        "responses_create_params": {"input": [{"role": "user", "content": question}], "tools": TOOLS},
        "expected": expected,
    }


def tasks(count: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    cities: list[str] = []
    rows = []
    for number in range(count):
        if not cities:
            cities = draw.sample(CITIES, len(CITIES))
        rows.append(task(number, draw, cities.pop() if number % 2 == 0 else ""))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the example tasks.")
    parser.add_argument("--count", type=int, default=48, help="rows; half of them weather, half sums")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("example.jsonl"))
    arguments = parser.parse_args()
    lines = [json.dumps(row, ensure_ascii=False) for row in tasks(arguments.count, arguments.seed)]
    arguments.output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
