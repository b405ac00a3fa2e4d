"""Skills that an agent may use, as agents import them; names only."""

from nemo_gym.environment.skills import (
    SKILL_MD_FILENAME,
    SkillMetadata,
    SkillsConfig,
    SkillsRef,
    hash_skill_dir,
    load_skill_directory,
    parse_skill_md,
    stage_skills,
)

__all__ = [
    "SKILL_MD_FILENAME",
    "SkillMetadata",
    "SkillsConfig",
    "SkillsRef",
    "hash_skill_dir",
    "load_skill_directory",
    "parse_skill_md",
    "stage_skills",
]
