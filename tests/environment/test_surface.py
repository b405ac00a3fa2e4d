"""The smaller parts of what environments import: rows as envelopes, requests as chat backends get them, paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from nemo_gym import _resolve_under_cwd_or_install
from nemo_gym.base_resources_server import BaseResourcesServerConfig, ResourcesSeedSessionResponse
from nemo_gym.episode_types import MaterializedTask
from nemo_gym.global_config import get_hf_token
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.rollout_observability import SandboxObservation
from nemo_gym.sandbox.access import DirectSandboxConnection, SandboxAccess
from nemo_gym.task_materialization import materialize_task


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
    with pytest.raises(ValidationError, match="type"):
        BaseResourcesServerConfig(type="something", **told)


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
