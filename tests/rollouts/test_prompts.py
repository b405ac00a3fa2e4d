import json

import pytest

from nemo_gym.prompt import (
    PromptConfig,
    apply_prompt_to_row,
    fill_prompt,
    load_prompt_config,
    materialize_prompts,
    validate_prompt_compatibility,
)

PROMPT = PromptConfig(system="You {{know}} {subject}.", user="{question}")
ROW = {"question": "2+2?", "subject": "sums", "responses_create_params": {"temperature": 0.5}}


def test_fields_of_the_row_are_filled_in_and_braces_can_be_meant():
    messages = fill_prompt(PROMPT, ROW)
    assert messages == [{"role": "system", "content": "You {know} sums."}, {"role": "user", "content": "2+2?"}]
    assert fill_prompt(PromptConfig(user="{question}"), ROW) == [{"role": "user", "content": "2+2?"}]
    made = apply_prompt_to_row(ROW, PROMPT)
    assert made["responses_create_params"] == {"temperature": 0.5, "input": messages}
    assert "input" not in ROW["responses_create_params"]


def test_what_does_not_fit_is_named():
    with pytest.raises(KeyError, match="'answer', the row has question, subject"):
        fill_prompt(PromptConfig(user="{answer}"), ROW)
    rows = [ROW, {"responses_create_params": {"input": "x"}}, {}, {"responses_create_params": {"input": [1]}}]
    with pytest.raises(ValueError, match=r"rows \[1, 3\] .* mutually exclusive"):
        validate_prompt_compatibility(rows, PROMPT)


def test_a_file_of_rows_is_materialized(tmp_path):
    prompt, rows, output = tmp_path / "p.yaml", tmp_path / "in.jsonl", tmp_path / "new" / "out.jsonl"
    prompt.write_text("user: 'Grüße, {question}'\n", encoding="utf-8")
    rows.write_text(json.dumps(ROW) + "\n\n" + json.dumps(ROW) + "\n")
    materialize_prompts(str(rows), str(prompt), str(output))
    made = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["responses_create_params"]["input"][0]["content"] for row in made] == ["Grüße, 2+2?"] * 2
    assert made[0]["prompt_config_used"] == str(prompt)
    prompt.write_text("system: only\n")
    load_prompt_config.cache_clear()
    with pytest.raises(ValueError, match="user"):
        load_prompt_config(str(prompt))
