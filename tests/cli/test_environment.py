"""An environment begun from nothing, its test, and data sets made ready, as the commands do it."""

from __future__ import annotations

import json

import pytest

from nemo_gym.cli import config
from nemo_gym.cli.environment import init_main, prepare_main, try_main
from nemo_gym.environment.scaffold import ScaffoldError, scaffold

CONFIG = """
env:
  resources_servers:
    env:
      entrypoint: app.py
      datasets:
        - {name: theirs, type: train, jsonl_fpath: theirs.jsonl, license: MIT}
agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: env}
      datasets:
        - {name: ours, type: train, jsonl_fpath: ours.jsonl, license: Apache 2.0, num_repeats: 2}
        - {name: few, type: example, jsonl_fpath: few.jsonl, prompt_config: prompt.yaml}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(CONFIG)
    (tmp_path / "prompt.yaml").write_text("user: 'Say {word}.'\n")
    write(tmp_path / "ours.jsonl", {"responses_create_params": {"input": "hi", "tools": []}, "n": 1})
    write(tmp_path / "theirs.jsonl", {"responses_create_params": {"input": [{"role": "user", "content": "é"}]}})
    write(tmp_path / "few.jsonl", {"word": "yes"})
    return tmp_path


def write(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def prepared(project, *args):
    return prepare_main(["+config_paths=[a.yaml]", f"+output_dirpath={project}/out", *args])


@pytest.mark.ci
def test_a_new_environment_passes_its_own_test_at_once(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert init_main(["my_env2"]) == 0
    folder = tmp_path / "resources_servers" / "my_env2"
    assert "next: ng_test resources_servers/my_env2" in capfd.readouterr().out
    assert len(rows(folder / "data" / "example.jsonl")) == 5
    assert try_main(["my_env2", "--", "-q"]) == 0
    assert "4 passed" in capfd.readouterr().out
    model = ["++policy_base_url=http://127.0.0.1:9/v1", "++policy_model_name=m", "++policy_api_key=none"]
    paths = "responses_api_models/vllm_model/configs/vllm_model.yaml,resources_servers/my_env2/configs/my_env2.yaml"
    assert config.validate_main([f"+config_paths=[{paths}]", *model]) == 0, capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "like"),
    [("My-Env", "my_env"), ("1st", "my_env"), ("env.x", "env_x"), ("class", "class_env"), ("MCQA", "mcqa")],
)
def test_a_name_that_is_none_writes_nothing(tmp_path, name, like):
    with pytest.raises(ScaffoldError, match=f"expected small letters, digits and _, as in {like}$"):
        scaffold(tmp_path / "resources_servers" / name)
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_environment_is_looked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert init_main(["deep/env"]) == 2
    assert "a path that ends in resources_servers/env" in capsys.readouterr().err
    assert init_main(["one", "two"]) == 2
    assert "expected one NAME, got one two" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert init_main(["+entrypoint=resources_servers/env"]) == 0
    (tmp_path / "resources_servers" / "env" / "app.py").write_text("mine")
    assert init_main(["env"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "resources_servers" / "env" / "app.py").read_text() == "mine"


def test_a_server_that_is_not_there_is_guessed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert try_main(["mcqq"]) == 2
    assert "did you mean 'mcqa'?" in capsys.readouterr().err


def test_data_sets_of_a_kind_are_put_together(project, capsys):
    assert prepared(project) == 0
    made = rows(project / "out" / "train.jsonl")
    agent = {"type": "responses_api_agents", "name": "agent"}
    assert [row["agent_ref"] for row in made] == [agent] * 3
    assert [row.get("n") for row in made] == [1, 1, None]
    figures = json.loads((project / "out" / "train_metrics.json").read_text())
    assert figures["datasets"] == {"ours": 1, "theirs": 1} and figures["rows"] == 3
    assert not (project / "out" / "example.jsonl").exists()
    assert "3 rows (ours 1, theirs 1)" in capsys.readouterr().out
    assert prepared(project, "+mode=example_validation") == 0
    (row,) = rows(project / "out" / "example.jsonl")
    assert row["responses_create_params"]["input"] == [{"role": "user", "content": "Say yes."}]


def test_all_faults_are_told_and_nothing_is_written(project, capsys):
    write(
        project / "ours.jsonl",
        "{",
        '["a"]',
        {},
        {"responses_create_params": {"input": 5}},
        {"responses_create_params": []},
    )
    (project / "theirs.jsonl").unlink()
    assert prepared(project) == 2
    told = capsys.readouterr().err
    for fault in (
        "ours.jsonl:1: Expecting property name",
        "ours.jsonl:2: expected a JSON object, got list",
        "ours.jsonl:3: responses_create_params: is missing",
        "ours.jsonl:4: responses_create_params.input",
        "ours.jsonl:5: responses_create_params: expected a JSON object, got list",
        "agent.datasets.theirs: theirs.jsonl does not exist",
    ):
        assert fault in told
    assert not (project / "out").exists()
    write(project / "few.jsonl", {"word": "x", "responses_create_params": {"input": "y"}}, {"other": 1})
    assert prepared(project, "+mode=example_validation") == 2
    told = capsys.readouterr().err
    assert "few.jsonl:1: responses_create_params.input: the data set has a prompt_config" in told
    assert "few.jsonl:2: the prompt names the field 'word'" in told


def test_a_folder_that_cannot_be_made_and_a_kind_that_is_not_declared(project, capsys):
    (project / "out").write_text("a file")
    assert prepared(project) == 2
    assert capsys.readouterr().err.startswith("+output_dirpath: cannot be written to: ")
    (project / "out").unlink()
    (project / "a.yaml").write_text((project / "a.yaml").read_text().replace("type: train", "type: example"))
    assert prepared(project) == 2
    told = "no data set of the kind train or validation; +mode=example_validation is for example"
    assert told in capsys.readouterr().err
    assert not (project / "out").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["+mode=all"], "mode: expected train_preparation or example_validation, got 'all'"),
        (["~agent"], "env.datasets.theirs: expected one agent that plays env, there is none"),
        (["++x=???"], "x: is required"),
    ],
)
def test_what_is_asked_wrongly(project, capsys, args, words):
    assert prepared(project, *args) == 2
    assert words in capsys.readouterr().err


def test_a_licence_is_required_to_train_on_it(project):
    from nemo_gym.config_types import DatasetConfig

    with pytest.raises(ValueError, match="license: is required for a"):
        DatasetConfig(name="a", type="train", jsonl_fpath="a.jsonl")
    assert DatasetConfig(name="a", type="example", jsonl_fpath="a.jsonl").license is None


def test_a_hugging_face_data_set_is_fetched_into_its_file(project, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(project / "hf"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(project / "hf"))
    hub = project / "hub"
    hub.mkdir()
    write(hub / "rows.jsonl", *({"responses_create_params": {"input": f"q{n}"}, "n": n} for n in range(3)))
    source = f"{{type: huggingface, repo_id: '{hub}', artifact_fpath: rows.jsonl}}"
    entry = f"{{name: far, type: train, jsonl_fpath: '{project}/far.jsonl', license: MIT, source: {source}}}"
    args = [f"++agent.responses_api_agents.simple_agent.datasets=[{entry}]", "~env.resources_servers.env.datasets"]
    assert prepared(project, *args) == 2
    assert prepared(project, *args, "+should_download=true") == 0
    assert [row["n"] for row in rows(project / "out" / "train.jsonl")] == [0, 1, 2]


def test_what_cannot_be_fetched_is_told_once(project, monkeypatch, capsys):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(project / "hf"))
    hub = project / "hub"
    hub.mkdir()
    source = f"{{repo_id: '{hub}', artifact_fpath: rows.jsonl}}"
    (project / "resources_servers" / "env").mkdir(parents=True)
    file = "resources_servers/env/data/far.jsonl"
    entry = f"{{name: far, type: train, jsonl_fpath: {file}, license: MIT, huggingface_identifier: {source}}}"
    args = [f"++agent.responses_api_agents.simple_agent.datasets=[{entry}]", "~env.resources_servers.env.datasets"]
    assert prepared(project, *args, "+should_download=true") == 2
    told = capsys.readouterr().err
    assert f"far: {hub} cannot be fetched: " in told
    assert "does not exist (its source" not in told
    write(hub / "rows.jsonl", {"responses_create_params": {"input": "q"}})
    assert prepared(project, *args, "+should_download=true") == 0
    assert len(rows(project / file)) == 1  # beside the environment, wherever that is
