"""The smaller parts of what environments import: rows as envelopes, requests as chat backends get them, paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import ClientConnectorError
from pydantic import ValidationError

from nemo_gym import _resolve_under_cwd_or_install
from nemo_gym.base_resources_server import BaseResourcesServerConfig, ResourcesSeedSessionResponse
from nemo_gym.config_types import DatasetConfig, ResourcesServerRef
from nemo_gym.deliverables import is_deliverable
from nemo_gym.episode_types import MaterializedTask
from nemo_gym.global_config import get_hf_token
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.path_utils import aggregate_metrics_path_for, failures_path_for, materialized_path_for
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.rollout_observability import SandboxObservation
from nemo_gym.sandbox.access import DirectSandboxConnection, SandboxAccess
from nemo_gym.server_utils import ServerClient, request
from nemo_gym.single_agent_turn_types import SingleAgentTurnTaskInput
from nemo_gym.task_materialization import materialize_task
from nemo_gym.web import client as client_room


def test_a_flat_row_becomes_an_envelope() -> None:
    row = {"problem_id": 7, "question": "?", "agent_ref": {"name": "a"}, "_ng_task_index": 3, "task_source": "s"}
    made = materialize_task(row, taskset="maths")
    assert made == {
        "task_id": {"taskset": "maths", "task_id": "7"},
        "task_input": {"problem_id": 7, "question": "?"},
    }
    assert MaterializedTask.model_validate(made).task_id.task_id == "7"
    assert materialize_task({"_ng_task_index": 3}, taskset="t", task_index=9)["task_id"]["task_id"] == "3"
    assert materialize_task({}, taskset="t", task_index=0)["task_id"]["task_id"] == "0"


def test_a_row_that_cannot_be_one() -> None:
    with pytest.raises(ValueError, match="already materialized"):
        materialize_task(materialize_task({"task_id": "a"}, taskset="t"), taskset="t")
    for index in (None, -1, True):
        with pytest.raises(ValueError, match="non-negative task_index"):
            materialize_task({"question": "?"}, taskset="t", task_index=index)


def test_a_row_s_request_as_a_chat_backend_gets_it() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
    ]
    params = NeMoGymResponseCreateParamsNonStreaming(input=items, model="m", temperature=0.5)
    made = ResponsesConverter(return_token_id_information=False).responses_to_chat_completion_create_params(params)
    assert [message["role"] for message in made.messages] == ["developer", "user", "assistant", "tool"]
    (called,) = made.messages[2]["tool_calls"]
    assert (called["id"], called["function"]["name"]) == ("c1", "f")
    assert (made.messages[3]["tool_call_id"], made.temperature, made.model) == ("c1", 0.5, "m")


def test_a_path_is_looked_for_where_all_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list.txt").write_text("x")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    assert _resolve_under_cwd_or_install("list.txt") == tmp_path / "list.txt"
    assert _resolve_under_cwd_or_install("pyproject.toml").name == "pyproject.toml"
    assert _resolve_under_cwd_or_install("nothing.txt") == tmp_path / "nothing.txt"  # the first place, for messages
    assert _resolve_under_cwd_or_install("list.txt", validator=Path.is_dir) == tmp_path / "list.txt"


def test_what_a_sandbox_showed_is_measured() -> None:
    assert SandboxObservation(role="verifier").outcome == "unknown"
    with pytest.raises(ValidationError):
        SandboxObservation(role="verifier", wall_time_s=-1)


def test_the_token_of_a_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert get_hf_token() == "hf_x"
    monkeypatch.delenv("HF_TOKEN")
    assert get_hf_token() is None


def test_a_server_s_own_kind_may_be_said() -> None:
    told = {"name": "env", "entrypoint": "app.py", "domain": "other"}
    assert BaseResourcesServerConfig(type="resources_servers", **told) == BaseResourcesServerConfig(**told)


def test_a_config_passes_over_what_it_does_not_know() -> None:
    told = {"name": "env", "entrypoint": "app.py", "domain": "other"}
    assert BaseResourcesServerConfig(primary_service="x", **told) == BaseResourcesServerConfig(**told)
    reference = ResourcesServerRef.model_validate({"type": "resources_servers", "name": "env", "version": 2})
    assert reference.model_dump() == {"type": "resources_servers", "name": "env"}


def test_a_seed_gives_access_to_a_sandbox() -> None:
    connection = DirectSandboxConnection(provider_config_ref="box", descriptor={"id": "x"})
    given = ResourcesSeedSessionResponse(
        resources_session_id="s", sandbox_access=SandboxAccess(connection=connection, workdir="/app")
    )
    written = given.model_dump(mode="json")
    assert written["sandbox_access"]["connection"] == {
        "kind": "direct", "provider_config_ref": "box", "descriptor": {"id": "x"}
    }  # fmt: skip
    assert ResourcesSeedSessionResponse.model_validate(written) == given
    with pytest.raises(ValidationError, match="workdir"):
        ResourcesSeedSessionResponse(resources_session_id="s", sandbox_access={"connection": connection})


def test_a_response_that_was_dumped_by_name_is_the_same() -> None:
    """Verifiers answer with `**body.model_dump()`, where the SDK's `async` and `schema` have other names."""
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    tools = [{"type": "function", "name": "f", "parameters": {}, "strict": None}]
    told = {"id": "r", "created_at": 1, "model": "m", "object": "response", "output": [], "parallel_tool_calls": False}
    response = NeMoGymResponse(**told, tool_choice="auto", tools=tools, text={"format": form})
    assert NeMoGymResponse(**response.model_dump()) == response
    assert NeMoGymResponse(**response.model_dump(mode="json", by_alias=True)) == response


def test_one_turn_of_one_agent_takes_a_flat_row() -> None:
    flat = {"responses_create_params": {"input": "?"}, "answer": "4"}
    read = SingleAgentTurnTaskInput.model_validate(flat)
    assert read.task_data == {"answer": "4"}
    again = SingleAgentTurnTaskInput.model_validate({**flat, "task_data": {"answer": "4", "unit": "m"}})
    assert again.task_data == {"answer": "4", "unit": "m"}
    with pytest.raises(ValidationError, match="one value in task_data"):
        SingleAgentTurnTaskInput.model_validate({**flat, "task_data": {"answer": "5"}})
    with pytest.raises(ValidationError, match="task_data"):
        SingleAgentTurnTaskInput.model_validate({**flat, "task_data": []})


def test_files_by_custom(tmp_path: Path) -> None:
    for name in ("report.docx", "history.json", "log.txt"):
        (tmp_path / name).touch()
    (tmp_path / "reference_files").mkdir()
    assert [path.name for path in sorted(tmp_path.iterdir()) if is_deliverable(path)] == ["report.docx"]
    rollouts = tmp_path / "rollouts.jsonl"
    assert failures_path_for(rollouts) == tmp_path / "rollouts_failures.jsonl"
    assert materialized_path_for(rollouts) == tmp_path / "rollouts_materialized_inputs.jsonl"
    assert aggregate_metrics_path_for(rollouts) == tmp_path / "rollouts_aggregate_metrics.json"


def test_a_data_set_says_how_it_is_made() -> None:
    told = {"name": "d", "type": "example", "jsonl_fpath": "d.jsonl", "prepare_script": "envs/d/prepare.py"}
    assert DatasetConfig(**told).prepare_script == Path("envs/d/prepare.py")
    assert DatasetConfig(**told).prepare_dependencies == []


async def test_peers_are_known_without_a_head_server() -> None:
    with pytest.raises(LookupError, match="peers are called by name"):
        ServerClient.load_head_server_config()
    client = ServerClient.load_from_global_config(head_server_config=None)
    with pytest.raises(ValueError, match="no server of this run is named 'env'"):
        client.base_url("env")
    told = {"env": {"resources_servers": {"env": {"host": "127.0.0.1", "port": 9}}}}
    known = ServerClient(head_server_config=None, global_config_dict=told)
    assert known.base_url("env") == "http://127.0.0.1:9"
    with pytest.raises(ClientConnectorError):  # NeMo Gym's own keywords are taken, and not sent on
        await request("GET", "http://127.0.0.1:9/", _internal=True, _server_name="env", _max_connection_retries=0)
    await client_room.close()
