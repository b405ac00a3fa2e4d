"""A folder of skills is read, told apart by what is in it, and put where an agent looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_gym.skills import SkillMetadata, hash_skill_dir, load_skill_directory, parse_skill_md, stage_skills

TEXT = "---\nname: sums\ndescription: How to add.\nmetadata: {version: 2}\n---\n# Sums\n"


@pytest.fixture
def skills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "skills" / "sums").mkdir(parents=True)
    (tmp_path / "skills" / "sums" / "SKILL.md").write_text(TEXT)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    return tmp_path / "skills"


def test_what_there_is(skills: Path, tmp_path: Path) -> None:
    found = load_skill_directory("skills")
    assert found.skills == [SkillMetadata(name="sums", description="How to add.", version="2")]
    assert (found.path, found.hash) == ("skills", hash_skill_dir(skills))
    stage_skills("skills", tmp_path / "home" / "skills")
    assert (tmp_path / "home/skills/sums/SKILL.md").read_text() == TEXT
    with pytest.raises(FileExistsError):
        stage_skills("skills", tmp_path / "home" / "skills")


def test_another_file_or_another_byte_is_another_folder(skills: Path) -> None:
    first = hash_skill_dir(skills)
    assert len(first) == 12
    (skills / "sums" / "SKILL.md").write_text(TEXT + "more")
    second = hash_skill_dir(skills)
    (skills / "sums" / "notes.md").touch()
    assert len({first, second, hash_skill_dir(skills)}) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Sums\n", "between two lines of ---"),
        ("---\nname: sums\n", "between two lines of ---"),
        ("---\nname: [\n---\n", "is not YAML"),
        ("---\ndescription: x\n---\n", "needs a name"),
        ("---\n- a\n---\n", "needs a name"),
    ],
)
def test_a_skill_that_is_none(skills: Path, text: str, message: str) -> None:
    (skills / "sums" / "SKILL.md").write_text(text)
    with pytest.raises(ValueError, match=message):
        parse_skill_md(skills / "sums" / "SKILL.md")


def test_a_folder_that_has_none(skills: Path, tmp_path: Path) -> None:
    (skills / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has no SKILL\.md"):
        load_skill_directory("skills")
    (tmp_path / "bare").mkdir()
    for name, message in (
        ("bare", "contains no skills"),
        ("nowhere", "does not exist"),
        ("skills/sums/SKILL.md", "file"),
    ):
        with pytest.raises(ValueError, match=message):
            load_skill_directory(name)
