"""TRL's own functions and trainers take the rows; nothing is trained."""

import json

import pytest

from nemo_gym.export.exporter import export
from tests.export.made import Job, two_turns
from tests.project import ROOT

pytestmark = pytest.mark.ci  # torch, transformers and TRL are a quarter of a minute to import


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    job.rollout("good", *two_turns("good"), reward=1.0, task=0)
    job.rollout("bad", *two_turns("bad", "It is night."), reward=0.0, task=0)
    job.rollout("other", *two_turns("other", city="Rome"), reward=0.5, task=1)
    return job


@pytest.fixture(scope="module")
def tokenizer():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(ROOT / "models" / "tiny_policy"))


def loaded(folder, name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    return datasets.load_dataset(str(folder / "exports"), name, split="train", cache_dir=str(folder / "cache" / name))


def test_trl_reads_sft_rows(job, tokenizer, monkeypatch):
    data_utils = pytest.importorskip("trl.data_utils")
    job.write()
    export(job.folder, ["sft"])
    rows = loaded(job.folder, "sft", monkeypatch)
    assert rows.num_rows == 3
    for row in rows:
        assert data_utils.is_conversational(row)
        text = data_utils.apply_chat_template({"messages": row["messages"]}, tokenizer, tools=json.loads(row["tools"]))
        assert "get_weather" in text["text"] and "Be brief." in text["text"] and "sun" in text["text"]


def test_trl_reads_preference_pairs(job, tokenizer, monkeypatch):
    data_utils = pytest.importorskip("trl.data_utils")
    job.rollout("better", *two_turns("better", "Sunny, and warm."), reward=0.7, task=0)
    job.write()
    export(job.folder, ["preferences"])
    rows = loaded(job.folder, "preferences", monkeypatch)
    (row,) = rows
    assert (row["chosen_rollout_id"], row["rejected_rollout_id"]) == ("good", "bad")
    assert [message["content"] for message in row["prompt"]] == ["Be brief.", "Weather in Prague?"]
    assert data_utils.is_conversational(row)
    sides = {name: row[name] for name in ("prompt", "chosen", "rejected")}
    text = data_utils.apply_chat_template(sides, tokenizer, tools=json.loads(row["tools"]))
    assert "It is sunny." in text["chosen"] and "It is night." in text["rejected"]


def test_trl_reads_prompts(job, tokenizer, monkeypatch):
    data_utils = pytest.importorskip("trl.data_utils")
    job.write()
    export(job.folder, ["prompts"])
    rows = loaded(job.folder, "prompts", monkeypatch)
    assert rows["task_id"][:] == ["0", "1"]
    text = data_utils.apply_chat_template({"prompt": rows[0]["prompt"]}, tokenizer, tools=json.loads(rows[0]["tools"]))
    assert "Weather in Prague?" in text["prompt"] and "sunny" not in text["prompt"]


def test_trls_trainers_make_their_tokens_of_the_rows(job, tokenizer, monkeypatch, tmp_path):
    trl = pytest.importorskip("trl")
    transformers = pytest.importorskip("transformers")
    job.write()
    export(job.folder, ["sft", "preferences"])
    model = transformers.AutoModelForCausalLM.from_pretrained(str(ROOT / "models" / "tiny_policy"))
    common = {"output_dir": str(tmp_path / "out"), "use_cpu": True, "bf16": False, "report_to": "none"}
    sft = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**common),
        train_dataset=loaded(job.folder, "sft", monkeypatch),
        processing_class=tokenizer,
    )
    assert tokenizer.decode(sft.train_dataset[0]["input_ids"]).rstrip().endswith("It is sunny.<|im_end|>")
    dpo = trl.DPOTrainer(
        model=model,
        args=trl.DPOConfig(**common),
        train_dataset=loaded(job.folder, "preferences", monkeypatch),
        processing_class=tokenizer,
    )
    row = dpo.train_dataset[0]
    assert "It is sunny." in tokenizer.decode(row["chosen_ids"])
    assert "It is night." in tokenizer.decode(row["rejected_ids"])
