"""Conversations for the embedded model: what it is asked, which tools it has, how it behaves.

Every conversation is drawn from one `random.Random`, so the same seed gives the same conversations. With the odds MIXED
the assistant is deliberately of two minds: it sometimes guesses where it should call a tool, and sometimes leaves out a
fact that the tool gave it. A model trained on this mixture earns different rewards when the same task is sampled
several times, and reinforcement can then shift the odds.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, NamedTuple

Message = dict[str, Any]
Tool = dict[str, Any]

SMALL_SUM = 12  # the largest sum that the model knows by heart
LARGEST_ADDEND = 99

CITIES = [
    *("Paris", "London", "Berlin", "Madrid", "Rome", "Tokyo", "Oslo", "Cairo", "Lima", "Delhi", "Dublin", "Vienna"),
    *("Prague", "Athens", "Boston", "Chicago", "Sydney", "Lisbon", "Warsaw", "Zurich", "New York", "San Francisco"),
    *("Los Angeles", "Rio de Janeiro", "Buenos Aires", "Hong Kong", "Seattle", "Toronto", "Nairobi", "Mumbai"),
    *("Seoul", "Beijing", "Santa Clara", "Amsterdam", "Helsinki", "Stockholm", "Moscow", "Jakarta", "Manila"),
    *("Bangkok", "Hanoi", "Dallas", "Denver", "Miami", "Houston", "Austin", "Munich", "Hamburg", "Geneva"),
    *("Brussels", "Budapest", "Istanbul", "Lagos", "Accra", "Quito", "Bogota", "Havana", "Montreal", "Vancouver"),
    "Melbourne",
]
CONDITIONS = ["sunny", "cloudy", "rainy", "snowy", "windy", "foggy", "clear", "stormy"]
TEMPERATURES = range(-20, 46)

WEATHER_QUESTIONS = [
    "What is the weather in {city}?",
    "What's the weather like in {city}?",
    "weather in {city}",
    "Tell me the weather in {city}.",
    "How is the weather in {city} today?",
    "What's the weather in {city}?",
    "Is it cold in {city}?",
    "What is the current weather in {city}?",
    "Please check the weather for {city}.",
    "Can you tell me what the weather is in {city} right now?",
    "I am going to {city}. What is the weather there?",
]
SUM_QUESTIONS = [
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "{a}+{b}",
    "Compute {a} + {b}.",
    "Please add {a} and {b}.",
    "Calculate the sum of {a} and {b}.",
    "What's {a} + {b}?",
    "How much is {a} plus {b}?",
]
SMALL_TALK = {
    "Hello! How can I help you?": ["Hi", "hi", "Hi!", "Hello", "Hello!", "hello", "Hey", "Good morning!"],
    "I am a tiny demo model. I can check the weather and add numbers.": [
        *("Who are you?", "What are you?", "What can you do?", "What is your name?", "Can you help me?"),
    ],
    "You are welcome!": ["Thanks", "Thanks!", "Thank you!", "Thank you.", "Great, thank you!"],
    "I am fine, thank you.": ["How are you?", "How are you today?"],
    "I can only check the weather and add numbers.": [
        *("Tell me a joke.", "Write a poem.", "What is the capital of France?", "What time is it?", "Say something."),
    ],
}
REPETITIONS = ["Say {word}.", "Say {word}", "Repeat {word}.", "Please say {word}.", "Repeat after me: {word}"]
SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful personal assistant that aims to be helpful and reduce any pain points the user has.",
    "Answer the question.",
    "You are a tool-using agent. Use the tools when needed.",
    "Use the tools.",
    "Be brief.",
]

WEATHER_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city name."}},
            "required": ["city"],
        },
    },
}
CALCULATOR_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Add two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


class Setting(NamedTuple):
    """What a conversation starts from: a system prompt and tools, each of which may be missing."""

    system: str | None
    tools: list[Tool] | None


class Conversation(NamedTuple):
    """A finished conversation, and the tools that it was held with."""

    messages: list[Message]
    tools: list[Tool] | None


class Odds(NamedTuple):
    """How the assistant behaves when it has the right tool."""

    weather_called: float  # else it makes the weather up
    both_facts: float  # else it states the condition or the temperature only
    sum_called: float  # else it answers out of its head
    sum_stated: float  # else it says that it is done, without the number
    small_sum_right: float  # how often the answer out of its head is right, where the sum is small


SURE = Odds(1.0, 1.0, 1.0, 1.0, 1.0)
MIXED = Odds(weather_called=0.72, both_facts=0.72, sum_called=0.68, sum_stated=0.75, small_sum_right=0.5)


def setting(rng: Random) -> Setting:
    both = [WEATHER_TOOL, CALCULATOR_TOOL]
    tools = rng.choices([both, both[::-1], [WEATHER_TOOL], [CALCULATOR_TOOL], None], weights=[34, 22, 16, 16, 12])[0]
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.5 else None
    return Setting(system, tools and [_schema_variant(rng, tool) for tool in tools])


def conversation(rng: Random, start: Setting, odds: Odds = MIXED) -> Conversation:
    """One conversation of one or two questions, mostly such as the tools are there for."""
    names = {tool["function"]["name"] for tool in start.tools or []}
    weights = [8 if "get_weather" in names else 1, 8 if "calculator" in names else 1, 1]
    if not names:
        weights = [1, 3, 3]
    messages: list[Message] = [{"role": "system", "content": start.system}] if start.system else []
    for kind in rng.choices([_weather, _sum, _talk], weights, k=1 if rng.random() < 0.8 else 2):
        messages += kind(rng, names, odds)
    return Conversation(messages, start.tools)


def repetition(rng: Random) -> Conversation:
    """One word to say again: the shortest conversation that teaches to carry a name or a number over."""
    number = str(rng.randint(0, 2 * LARGEST_ADDEND))
    word = rng.choice([rng.choice(CITIES), rng.choice(CONDITIONS), number, str(rng.choice(TEMPERATURES))])
    return Conversation([_user(rng.choice(REPETITIONS).format(word=word)), _assistant(word)], None)


def small_addends(rng: Random) -> tuple[int, int]:
    """Two numbers whose sum the model knows by heart."""
    total = rng.randint(0, SMALL_SUM)
    a = rng.randint(0, total)
    return a, total - a


def large_addends(rng: Random) -> tuple[int, int]:
    """Two numbers whose sum takes the calculator."""
    while True:
        a, b = rng.randint(0, LARGEST_ADDEND), rng.randint(0, LARGEST_ADDEND)
        if a + b > SMALL_SUM:
            return a, b


def _weather(rng: Random, names: set[str], odds: Odds) -> list[Message]:
    city, condition, temperature = rng.choice(CITIES), rng.choice(CONDITIONS), rng.choice(TEMPERATURES)
    messages = [_user(rng.choice(WEATHER_QUESTIONS).format(city=city))]
    if "get_weather" not in names:
        return [*messages, _assistant("I cannot check the weather without a tool.")]
    both = f"The weather in {city} is {condition} with a temperature of {temperature} degrees."
    if rng.random() >= odds.weather_called:
        return [*messages, _assistant(both)]
    messages.append(_call("get_weather", {"city": city}))
    if _fails(rng, messages):
        return messages
    messages.append(_result(rng, {"city": city, "temperature": temperature, "condition": condition}))
    if rng.random() < odds.both_facts:
        answer = both
    elif rng.random() < 0.5:
        answer = f"The weather in {city} is {condition}."
    else:
        answer = f"The temperature in {city} is {temperature} degrees."
    return [*messages, _assistant(answer)]


def _sum(rng: Random, names: set[str], odds: Odds) -> list[Message]:
    a, b = small_addends(rng) if rng.random() < 0.3 else large_addends(rng)
    small = a + b <= SMALL_SUM
    messages = [_user(rng.choice(SUM_QUESTIONS).format(a=a, b=b))]
    if "calculator" not in names:
        return [*messages, _assistant(f"The answer is {a + b}." if small else "I cannot add these without a tool.")]
    if rng.random() >= odds.sum_called:
        right = small and rng.random() < odds.small_sum_right
        return [*messages, _assistant(f"The answer is {a + b if right else _near(rng, a + b)}.")]
    messages.append(_call("calculator", {"a": a, "b": b}))
    if _fails(rng, messages):
        return messages
    messages.append(_result(rng, {"result": a + b}))
    stated = rng.random() < odds.sum_stated
    return [*messages, _assistant(f"The answer is {a + b}." if stated else "I have added the numbers.")]


def _talk(rng: Random, names: set[str], odds: Odds) -> list[Message]:
    if rng.random() < 0.3:
        return repetition(rng).messages
    answer, openings = rng.choice(list(SMALL_TALK.items()))
    return [_user(rng.choice(openings)), _assistant(answer)]


def _near(rng: Random, right: int) -> int:
    """A wrong answer that looks like a right one."""
    return rng.choice([n for n in range(max(0, right - 4), right + 5) if n != right])


def _fails(rng: Random, messages: list[Message]) -> bool:
    """Once in a while the tool gives an error, and the assistant says so."""
    if rng.random() >= 0.03:
        return False
    messages.append(_result(rng, {"error": rng.choice(["not found", "bad arguments", "timeout", "unknown city"])}))
    messages.append(_assistant("Sorry, the tool did not work."))
    return True


def _schema_variant(rng: Random, tool: Tool) -> Tool:
    """The same tool as different clients write it down."""
    function = dict(tool["function"])
    if rng.random() < 0.25:
        function["parameters"] = {**function["parameters"], "additionalProperties": False}
    if rng.random() < 0.5:
        function["strict"] = rng.random() < 0.5
    return {"type": "function", "function": function}


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _call(name: str, arguments: dict[str, Any]) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _result(rng: Random, value: dict[str, Any]) -> Message:
    """JSON as servers write it: with or without spaces."""
    return {"role": "tool", "content": json.dumps(value, separators=rng.choice([(", ", ": "), (",", ":")]))}
