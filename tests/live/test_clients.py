"""Real agents finish a task with a tool, in every dialect that they speak, and all that they asked is captured."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_gym.agent_server.command import CommandAgent
from nemo_gym.capture.record import CallRecord
from tests.live import clients
from tests.live.clients import Ended
from tests.live.conftest import Servers
from tests.player import Player, Turn, shell

pytestmark = [pytest.mark.live, pytest.mark.ci]

PROMPT = "TASK write: write the file note.txt, then say that it is there."
PLAN = {
    "TASK write": [
        Turn((shell("printf 'written by a tool' > note.txt"),), reasoning=("The task is to write a file.",)),
        Turn(text="note.txt is there.", reasoning=("Nothing is left to do.",)),
    ]
}


def finished(servers: Servers, ended: Ended, rollout_id: str) -> list[CallRecord]:
    """The captured calls of a run that ended well, equal to what the backend was asked."""
    assert ended.code == 0, ended.said
    calls = servers.calls(rollout_id)
    assert len(calls) == len(servers.backend.calls)
    assert {call.rollout_id for call in calls} == {rollout_id}
    assert {call.status for call in calls} == {"answered"}
    return calls


def written(servers: Servers, agent: CommandAgent, folder: Path, rollout_id: str) -> list[CallRecord]:
    servers.play(Player(PLAN))
    ended = clients.run(agent, folder, rollout_id, PROMPT)
    calls = finished(servers, ended, rollout_id)
    assert ended.note() == "written by a tool"
    assert "note.txt is there." in ended.said
    return calls


@pytest.mark.parametrize(
    ("client", "api"),
    [
        *(("pi", api) for api in ("chat", "responses", "messages")),
        *(("opencode", api) for api in ("chat", "responses")),
        *(("openclaw", api) for api in ("chat", "responses", "messages")),
    ],
)
def test_a_tool_using_task(servers: Servers, tmp_path: Path, client: str, api: str) -> None:
    rollout_id = f"{client}-{api}"
    calls = written(servers, getattr(clients, client)(servers.urls["chat"], api), tmp_path, rollout_id)
    assert {call.dialect for call in calls} == {api}
    assert [call.relation for call in calls] == ["first", "turn"]
