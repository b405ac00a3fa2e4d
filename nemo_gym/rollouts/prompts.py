"""Prompt files: a YAML of templates that become a row's input, so that one data set is run with many prompts.

A row has an input of its own or is given a prompt, never both. `{field}` stands for a field of the row; braces that are
meant literally are doubled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from ..config import paths


class PromptConfig(BaseModel):
    user: str
    system: str | None = None


@lru_cache(maxsize=64)
def load_prompt_config(path: str) -> PromptConfig:
    """The file's templates; a relative path is looked for where all files of a configuration are."""
    with paths.locate(path).open(encoding="utf-8") as file:
        return PromptConfig.model_validate(yaml.safe_load(file))


def fill_prompt(prompt_config: PromptConfig, row: Mapping[str, Any]) -> list[dict[str, str]]:
    """The messages for a row. Raises KeyError that names the field that the row lacks."""
    roles = (("system", prompt_config.system), ("user", prompt_config.user))
    try:
        return [{"role": role, "content": template.format_map(row)} for role, template in roles if template is not None]
    except KeyError as error:
        raise KeyError(f"the prompt names the field {error}, the row has {', '.join(row)}") from None


def validate_prompt_compatibility(rows: Sequence[Mapping[str, Any]], prompt_config: PromptConfig) -> None:
    """Raises ValueError that names every row that has an input already."""
    both = [n for n, row in enumerate(rows) if (row.get("responses_create_params") or {}).get("input")]
    if both:
        raise ValueError(
            f"rows {both} have responses_create_params.input already, which is mutually exclusive with a prompt file"
        )


def apply_prompt_to_row(row: Mapping[str, Any], prompt_config: PromptConfig) -> dict[str, Any]:
    """A copy of the row with the prompt as its input; all other parameters stay."""
    params = row.get("responses_create_params")
    params = params if isinstance(params, Mapping) else {}
    return {**row, "responses_create_params": {**params, "input": fill_prompt(prompt_config, row)}}


def materialize_prompts(input_jsonl: str, prompt_config: str, output_jsonl: str) -> None:
    """Writes each row of a JSONL file with its prompt filled in."""
    prompt = load_prompt_config(prompt_config)
    lines = Path(input_jsonl).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    validate_prompt_compatibility(rows, prompt)
    output = Path(output_jsonl)
    output.parent.mkdir(parents=True, exist_ok=True)
    used = str(paths.locate(prompt_config))
    with output.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({**apply_prompt_to_row(row, prompt), "prompt_config_used": used}) + "\n")
