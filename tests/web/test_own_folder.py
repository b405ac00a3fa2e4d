"""A server of any kind runs in its own folder; what a configuration names is found where it was before."""

import os
import sys
from pathlib import Path

import pytest

from nemo_gym.agent_server.install import cache_folder
from nemo_gym.backends.provider import TokenFile
from nemo_gym.config import paths
from nemo_gym.config.types import KINDS
from nemo_gym.web.service import ServerContext, enter_own_folder


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_its_own_and_of_the_configuration(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "more" / kind / "poems"
    own.mkdir(parents=True)
    (own / "prompt.txt").write_text("mine")
    for folder in ("work", "more"):
        (tmp_path / folder / "rows.jsonl").parent.mkdir(exist_ok=True)
    (tmp_path / "work" / "rows.jsonl").write_text("named in the configuration")
    monkeypatch.setenv(paths.EXTRA_ROOTS, "../more")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["../more", "/not/there"]))
    monkeypatch.setattr(paths, "_began_in", None)
    monkeypatch.setattr(sys, "path", ["../more", "the name of a hook", *sys.path])
    monkeypatch.chdir(tmp_path / "work")
    enter_own_folder(ServerContext(name="env", kind=kind, implementation="poems", settings={}))
    assert Path("prompt.txt").read_text() == "mine"
    assert Path.cwd() == own
    assert paths.locate("rows.jsonl") == tmp_path / "work" / "rows.jsonl"
    assert paths.locate(f"{kind}/poems") == tmp_path / "work" / ".." / "more" / kind / "poems"
    assert paths.locate("resources_servers/mcqa") == paths.project_root() / "resources_servers" / "mcqa"
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "more"), "/not/there"]
    assert sys.path[:2] == [str(tmp_path / "more"), "the name of a hook"]


def test_what_is_named_is_found_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "responses_api_models" / "poems").mkdir(parents=True)
    monkeypatch.setenv(paths.EXTRA_ROOTS, "")
    monkeypatch.setenv("NEMO_GYM_CACHE", "results/clients")
    monkeypatch.setattr(paths, "PARENT_DIR", Path("/python/site-packages"))  # installed, without a checkout
    monkeypatch.setattr(paths, "_began_in", None)
    monkeypatch.chdir(tmp_path)
    token = TokenFile("token.txt")
    enter_own_folder(ServerContext(name="m", kind="responses_api_models", implementation="poems", settings={}))
    (tmp_path / "token.txt").write_text("written later")
    with pytest.raises(ValueError, match="expected one token"):
        token()
    (tmp_path / "token.txt").write_text("one")
    assert token() == "one"
    assert cache_folder() == tmp_path / "results" / "clients" / "agents"
