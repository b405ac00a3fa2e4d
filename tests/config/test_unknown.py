"""A server's config class decides what becomes of a key that it does not have: refused, or a warning."""

import json

import pytest
from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.cli import config as command
from nemo_gym.config.compose import compose
from nemo_gym.config.problems import find_problems
from nemo_gym.config.unknown import find_warnings, misspelt, unknown
from tests import project

ENV = "env.resources_servers.tiny"
ARGS = ["+config_paths=[run.yaml]"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(project.make(tmp_path))
    return tmp_path


class Plain(BaseModel):
    size: int = 1
    judge_prompt_template_fpath: str = ""
    model: str = Field(default="", validation_alias="policy")


class Closed(Plain):
    model_config = ConfigDict(extra="forbid")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("siez", "size"),
        ("sise", "size"),
        ("sizes", "size"),
        ("polcy", "policy"),
        ("judge_prompt_tempalte_fpth", "judge_prompt_template_fpath"),
        ("judge_prompt_template", None),  # published, and NeMo Gym passes it over
        ("env", None),
        ("seed", None),
        ("sezi", None),
    ],
)
def test_a_slip_is_told_from_a_key_of_another_kind(key, meant):
    assert dict(misspelt(Plain, {key: 1})) == ({key: meant} if meant else {})
    assert unknown(Plain, {key: 1, "policy": "m", "name": "x", "type": "resources_servers"}) == [key]


def test_a_class_that_forbids_says_so_itself():
    assert unknown(Closed, {"siez": 1}) == []


def test_what_a_class_of_ones_own_does_not_know_is_a_warning(folder):
    composed = compose([*ARGS, f"++{ENV}.primary_service=x", f"++{ENV}.model_servers_of_mine=1"])
    assert find_problems(composed) == []
    assert [str(warning) for warning in find_warnings(composed)] == [
        f"command line: {ENV}.primary_service: is not a known key, and is passed over",
        f"command line: {ENV}.model_servers_of_mine: is not a known key, and is passed over; "
        "did you mean 'model_server'?",
    ]


def test_validate_tells_warnings_and_finds_no_fault(folder, capsys):
    args = [*ARGS, f"++{ENV}.primary_service=x"]
    assert command.validate_main(args) == 0
    out, err = capsys.readouterr()
    assert out == "no faults: 2 servers\n"
    assert err == f"warning: command line: {ENV}.primary_service: is not a known key, and is passed over\n"
    assert command.validate_main(["--json", *args]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["problems"]) == (True, [])
    assert told["warnings"][0]["key"] == f"{ENV}.primary_service"


AGENT = """
agent:
  responses_api_agents:
    codex_agent: {entrypoint: app.py, skip_verification: true, codex_version: 0.144.4, timeout: 900, sandbox_mode: null}
"""


def test_what_an_agent_of_that_name_has_at_nemo_gym_stops_nothing(folder, monkeypatch):
    (folder / "agent.yaml").write_text(AGENT)
    composed = compose(["+config_paths=[run.yaml,agent.yaml]"])
    assert find_problems(composed) == []
    assert [str(warning) for warning in find_warnings(composed)] == [
        "agent.yaml:4: agent.responses_api_agents.codex_agent.codex_version: has no effect here: "
        "the client's version is pinned here"
    ]


def test_a_default_reference_must_be_there_too(folder):
    (folder / "agent.yaml").write_text(AGENT)
    faults = find_problems(compose(["+config_paths=[agent.yaml]"]))
    assert [str(fault) for fault in faults] == [
        "agent.yaml:4: agent.responses_api_agents.codex_agent.model_server.name: "
        "there is no server 'policy_model' of responses_api_models; "
        "none is configured: responses_api_models/*/configs has some"
    ]


def test_this_projects_own_servers_refuse(folder):
    (folder / "agent.yaml").write_text(AGENT)
    composed = compose(["+config_paths=[run.yaml,agent.yaml]", "++agent.responses_api_agents.codex_agent.bogus=1"])
    assert [str(fault) for fault in find_problems(composed)] == [
        "command line: agent.responses_api_agents.codex_agent.bogus: is not a known key"
    ]
