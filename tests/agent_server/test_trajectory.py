"""What a client did, as its records tell it: one conversation, and what was set off beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from nemo_gym.agent_server.failures import RolloutFailed
from nemo_gym.agent_server.trajectory import Trajectory
from nemo_gym.dialects.responses.objects import NeMoGymResponse
from nemo_gym.web.peers import ServerClient
from tests.bench import TOOL, Bench, bench
from tests.scripted import Answer, chat_reply, tool_call

TASK = {"role": "user", "content": "Find out how the weather is in Rome."}
CALL = tool_call("get_weather", '{"city": "Rome"}')
BRIEF = "Look at every town of the province, and report."


class Talk:
    """Chat calls of one rollout, in order."""

    def __init__(self, at: Bench) -> None:
        self.at = at

    async def say(self, *messages: dict[str, Any], tools: bool = True, status: int = 200) -> dict[str, Any]:
        body = {"messages": list(messages)} | ({"tools": [TOOL]} if tools else {})
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.post(f"{self.at.url}/ng-rollout/r1/v1/chat/completions", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()["choices"][0]["message"] if status == 200 else {}

    async def trajectory(self) -> Trajectory:
        return await Trajectory.asked(ServerClient({"policy_model": self.at.url}), "policy_model", "r1")


def called(**changes: Any) -> Answer:
    return Answer(chat_reply(None, message={"tool_calls": [CALL | changes]}))


def result(text: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def relations(trajectory: Trajectory) -> list[tuple[str, int]]:
    return [(branch.relation, len(branch.call_ids)) for branch in trajectory.branches]


async def test_turns_with_results_that_came_in_another_order(tmp_path: Path) -> None:
    two = Answer(chat_reply("Let me see.", message={"tool_calls": [CALL, tool_call("get_weather", "{}", "call_2")]}))
    async with bench(tmp_path, [two, Answer(chat_reply("Sunny."))]) as at:
        talk = Talk(at)
        first = await talk.say(TASK)
        await talk.say(TASK, first, result("which?", "call_2"), result("sunny"))
        trajectory = await talk.trajectory()
    items = trajectory.items()
    assert [item["type"] for item in items] == [
        *("message", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message"),
    ]
    assert [(item["call_id"], item["output"]) for item in items[3:5]] == [("call_2", "which?"), ("call_1", "sunny")]
    assert trajectory.final_message() == "Sunny."
    response = NeMoGymResponse.model_validate(trajectory.response())
    assert (response.usage.input_tokens, response.usage.output_tokens) == (22, 6)
    assert trajectory.failure() is None


async def test_ids_that_the_client_rewrote_still_belong(tmp_path: Path) -> None:
    async with bench(tmp_path, [called(id="functions.get_weather:0"), Answer(chat_reply("Sunny."))]) as at:
        talk = Talk(at)
        first = await talk.say(TASK)
        first["tool_calls"][0]["id"] = "functionsgetweather0"
        await talk.say(TASK, first, result("sunny", "functionsgetweather0"))
        trajectory = await talk.trajectory()
    call, output, _ = trajectory.items()
    assert call["call_id"] == output["call_id"] == "functions.get_weather:0"


async def test_a_free_form_tool_and_its_result_are_what_a_verifier_takes(tmp_path: Path) -> None:  # R7
    patch = Answer(chat_reply(None, message={"tool_calls": [tool_call("apply_patch", '{"input": "+x"}')]}))
    body = {"model": "m", "tools": [{"type": "custom", "name": "apply_patch"}]}
    task = {"role": "user", "content": "Patch it."}
    async with bench(tmp_path, [patch, Answer(chat_reply("Done."))]) as at:
        async with httpx.AsyncClient(timeout=30, base_url=f"{at.url}/ng-rollout/r1") as client:
            first = (await client.post("/v1/responses", json=body | {"input": [task]})).json()["output"]
            told = {"type": "custom_tool_call_output", "call_id": first[0]["call_id"], "output": "patched"}
            await client.post("/v1/responses", json=body | {"input": [task, *first, told]})
        response = (await Talk(at).trajectory()).response()
    call, output, _ = NeMoGymResponse.model_validate(response).output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", "+x")
    assert (output.type, output.output, output.call_id) == ("custom_tool_call_output", "patched", call.call_id)


async def test_a_title_and_a_sub_agent_are_branches_of_their_own(tmp_path: Path) -> None:
    delegates = called(function={"name": "spawn", "arguments": f'{{"brief": "{BRIEF}"}}'})
    replies = [chat_reply("Weather"), delegates.body, CALLED, chat_reply("All are sunny."), chat_reply("Sunny.")]
    async with bench(tmp_path, [Answer(reply) for reply in replies]) as at:
        talk = Talk(at)
        await talk.say({"role": "user", "content": "Name this talk: the weather."}, tools=False)
        first = await talk.say(TASK)
        other = {"role": "user", "content": BRIEF}
        inner = await talk.say(other)
        await talk.say(other, inner, result("sunny"))
        await talk.say(TASK, first, result("All are sunny."))
        trajectory = await talk.trajectory()
    assert relations(trajectory) == [("first", 2), ("side", 1), ("subagent", 2)]
    assert [item["type"] for item in trajectory.items()] == ["function_call", "function_call_output", "message"]
    assert trajectory.final_message() == "Sunny."
    assert trajectory.usage()["input_tokens"] == 55  # of all five


CALLED = chat_reply(None, message={"tool_calls": [CALL]})


async def test_of_an_answer_that_was_asked_for_again_the_last_counts(tmp_path: Path) -> None:
    async with bench(tmp_path, [Answer(chat_reply("One.")), Answer(CALLED), Answer(chat_reply("Sunny."))]) as at:
        talk = Talk(at)
        await talk.say(TASK)
        again = await talk.say(TASK)
        await talk.say(TASK, again, result("sunny"))
        trajectory = await talk.trajectory()
    assert [call.relation for call in trajectory.calls] == ["first", "retry", "turn"]
    assert [item["type"] for item in trajectory.items()] == ["function_call", "function_call_output", "message"]


async def test_a_last_call_that_failed_is_told(tmp_path: Path) -> None:
    refused = Answer({"error": {"message": "too hot", "type": "x"}}, 400)
    async with bench(tmp_path, [Answer(CALLED), refused]) as at:
        talk = Talk(at)
        first = await talk.say(TASK)
        await talk.say(TASK, first, result("sunny"), status=400)
        trajectory = await talk.trajectory()
    assert trajectory.failure() == "invalid: too hot"
    assert [item["type"] for item in trajectory.items()] == ["function_call"]


async def test_a_server_that_keeps_no_records_cannot_say(tmp_path: Path) -> None:
    async with bench(tmp_path, [Answer(chat_reply())], capture={"enabled": False}) as at:
        with pytest.raises(RolloutFailed, match="capture is off"):
            await Talk(at).trajectory()
