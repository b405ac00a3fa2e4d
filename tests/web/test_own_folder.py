"""An environment runs in its own folder; what a configuration names is found where it was before."""

from pathlib import Path

import pytest

from nemo_gym.config import paths
from nemo_gym.web.service import ServerContext, enter_own_folder


def test_files_of_its_own_and_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "more" / "resources_servers" / "poems"
    own.mkdir(parents=True)
    (own / "prompt.txt").write_text("mine")
    for folder in ("work", "more"):
        (tmp_path / folder / "rows.jsonl").parent.mkdir(exist_ok=True)
    (tmp_path / "work" / "rows.jsonl").write_text("named in the configuration")
    monkeypatch.setenv(paths.EXTRA_ROOTS, "../more")
    monkeypatch.chdir(tmp_path / "work")
    enter_own_folder(ServerContext(name="env", kind="resources_servers", implementation="poems", settings={}))
    assert Path("prompt.txt").read_text() == "mine"
    assert Path.cwd() == own
    assert paths.locate("rows.jsonl") == tmp_path / "work" / "rows.jsonl"
    assert paths.locate("resources_servers/poems") == tmp_path / "work" / ".." / "more" / "resources_servers" / "poems"
    assert paths.locate("resources_servers/mcqa") == paths.project_root() / "resources_servers" / "mcqa"
