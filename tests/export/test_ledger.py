"""Rollouts judged before their calls are read: advantages, filters, samples, splits."""

import json
import statistics

import pytest

from nemo_gym.export.ledger import Ledger, Survey
from nemo_gym.export.options import ExportError, Options, check
from tests.export.made import Job, record


def ledger(folder, rows, options=None, surveys=None, newest=None, usage=False):
    path = folder / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = Ledger(folder / "ledger.sqlite")
    made.read_results(path, usage=usage)
    made.add(surveys or {row["_ng_rollout_id"]: Survey(rows=1, calls=1) for row in rows})
    made.judge(options or Options(), newest)
    return made


def row(rollout_id, reward=1.0, task=0, **more):
    return {"_ng_rollout_id": rollout_id, "_ng_task_index": task, "reward": reward, "agent_ref": {"name": "a"}} | more


def kept(made, rows):
    return [one["_ng_rollout_id"] for one in rows if made.get(one["_ng_rollout_id"]).reason is None]


REWARDS = {0: [1.0, 0.0, 0.5, 0.25], 1: [0.1, 0.1, 0.1], 2: [0.7]}


@pytest.fixture
def groups():
    return [row(f"{task}-{n}", reward, task) for task, some in REWARDS.items() for n, reward in enumerate(some)]


def advantages(made, task):
    return [made.get(f"{task}-{n}").advantage for n in range(len(REWARDS[task]))]


def test_grpo_is_normalised_within_the_group(tmp_path, groups):
    made = ledger(tmp_path, groups, Options(advantage="grpo"))
    mean, deviation = statistics.mean(REWARDS[0]), statistics.stdev(REWARDS[0])
    assert advantages(made, 0) == pytest.approx([(one - mean) / (deviation + 1e-6) for one in REWARDS[0]])
    assert advantages(made, 1) == pytest.approx([0, 0, 0], abs=1e-6)
    assert advantages(made, 2) == [0]


def test_rloo_is_held_against_the_others(tmp_path, groups):
    made = ledger(tmp_path, groups, Options(advantage="rloo"))
    others = [statistics.mean(REWARDS[0][:n] + REWARDS[0][n + 1 :]) for n in range(4)]
    assert advantages(made, 0) == pytest.approx([one - other for one, other in zip(REWARDS[0], others, strict=True)])
    assert advantages(made, 2) == [0]


def test_plain_is_the_reward_and_nothing_is_said_unasked(tmp_path, groups):
    assert advantages(ledger(tmp_path, groups, Options(advantage="plain")), 0) == REWARDS[0]
    (tmp_path / "ledger.sqlite").unlink()
    assert advantages(ledger(tmp_path, groups), 0) == [None] * 4


def test_a_baseline_is_over_what_holds_not_over_what_is_wanted(tmp_path, groups):
    groups[1] |= {"mask_sample": True}
    made = ledger(tmp_path, groups, Options(advantage="rloo", min_reward=0.9))
    assert made.get("0-1").advantage is None
    assert made.get("0-0").advantage == pytest.approx(1.0 - (0.5 + 0.25) / 2)
    assert kept(made, groups) == ["0-0"]


def test_rewards_that_hardly_differ_do_not_cancel_out(tmp_path):
    rows = [row(f"r{n}", 1e6 + n * 1e-3) for n in range(3)]
    made = ledger(tmp_path, rows, Options(advantage="grpo"))
    assert [made.get(f"r{n}").advantage for n in range(3)] == pytest.approx([-1, 0, 1], abs=2e-3)


def test_the_reasons_are_told_apart(tmp_path):
    said = {"calls": 2, "incomplete": None}
    rows = [
        row("good", _ng_rollout={"calls": 1, "incomplete": None}),
        row("masked", mask_sample=True),
        row("cut", _ng_rollout={"calls": 1, "incomplete": "deadline"}),
        row("lost", _ng_rollout=said),
        row("raw"),
        row("old"),
        row("untold"),
    ]
    surveys = {one["_ng_rollout_id"]: Survey(rows=1, calls=1, oldest=9) for one in rows[:-1]}
    surveys |= {"raw": Survey(1, 1, 9, True), "old": Survey(1, 1, 6), "strange": Survey(1, 1)}
    made = ledger(tmp_path, rows, Options(max_staleness=2), surveys, newest=9)
    reasons = {name: made.get(name).reason for name in (*surveys, "untold", "unheard_of")}
    assert reasons == {
        "good": None,
        "masked": "masked",
        "cut": "incomplete_deadline",
        "lost": "calls_missing",
        "raw": "raw_logprobs",
        "old": "off_policy",
        "strange": "no_result",
        "untold": None,
        "unheard_of": "no_result",
    }
    assert made.without_calls() == {"no_calls": 1}


def test_surveys_of_several_shards_add_up(tmp_path):
    made = ledger(tmp_path, [row("r", _ng_rollout={"calls": 3})], surveys={"r": Survey(2, 1, 5)})
    made.add({"r": Survey(2, 2, 4, True), "s": Survey(1, 1)})
    made.judge(Options(max_staleness=0, include=frozenset({"raw_logprobs"})), 5)
    assert (made.get("r").rows, made.get("r").reason) == (4, "calls_missing")  # judged when there was one


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("reward > 0.4 AND task = 0", ["0-0", "0-2"]),
        ("row ->> '$.level' = 'hard'", ["0-1"]),
        ("seconds > 5", []),
        ("agent = 'a' -- so far", None),
        ("prompt_tokens > 10", ["0-0"]),
    ],
)
def test_an_expression_chooses(tmp_path, groups, where, ids):
    groups[1] |= {"level": "hard"}
    groups[0] |= {"response": {"output": [{"type": "message"}], "usage": {"input_tokens": 11, "output_tokens": 2}}}
    made = ledger(tmp_path, groups, Options(where=where), usage=True)
    assert kept(made, groups) == ([one["_ng_rollout_id"] for one in groups] if ids is None else ids)


@pytest.mark.parametrize("where", ["rewrd > 1", "reward >", "1; DROP TABLE rollout", "row ->> 'bad'("])
def test_an_expression_that_is_none_is_told(tmp_path, groups, where):
    with pytest.raises(ExportError, match=r"^where: .*there are id, task"):
        ledger(tmp_path, groups, Options(where=where))


def test_agents_and_rewards_choose(tmp_path, groups):
    groups[0] |= {"agent_ref": {"name": "b"}}
    made = ledger(tmp_path, groups, Options(agents=("a", "c"), min_reward=0.25, max_reward=0.5))
    assert kept(made, groups) == ["0-2", "0-3"]


def test_agents_that_played_nothing_are_told(tmp_path, groups):
    with pytest.raises(ExportError, match=r"^agent: no rollout is of nobody, c; there is a$"):
        ledger(tmp_path, groups, Options(agents=("nobody", "c")))


def test_a_sample_is_the_seeds(tmp_path):
    rows = [row(f"r{n}", task=n) for n in range(200)]
    drawn = []
    for number, (order, seed) in enumerate([(rows, 0), (rows[::-1], 0), (rows, 1)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        drawn.append(set(kept(ledger(folder, order, Options(sample=50, seed=seed)), rows)))
    assert len(drawn[0]) == 50 and drawn[0] == drawn[1] != drawn[2]


def test_a_task_is_in_one_split(tmp_path):
    rows = [row(f"{task}-{n}", task=task) for task in range(400) for n in range(2)]
    made = ledger(tmp_path, rows, Options(splits=(("train", 0.75), ("test", 0.25))))
    splits = {(one["_ng_task_index"], made.get(one["_ng_rollout_id"]).split) for one in rows}
    assert len(splits) == 400
    assert 270 < sum(split == "train" for _, split in splits) < 330


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"branches": "some"}, "branches: there is no 'some'; there is all, main, last, calls"),
        ({"advantage": "ppo"}, "advantage: there is no 'ppo'"),
        ({"include": frozenset({"bad"})}, "include: there is no 'bad'"),
        ({"sample": -1}, "sample: -1 is negative"),
        ({"rows_per_file": 0}, "rows_per_file: 0"),
        ({"min_reward": float("nan")}, "min_reward: nan"),
        ({"splits": (("train", 0.5), ("test", 0.4))}, "add up to 0.9"),
        ({"splits": (("train", 0.5), ("train", 0.5))}, "twice"),
        ({"splits": (("../up", 1.0),)}, "is not a name"),
        ({"splits": (("train", 1.5),)}, "the share of train is 1.5"),
    ],
)
def test_options_that_make_no_sense_are_told(options, words):
    with pytest.raises(ExportError, match=words.replace("..", r"\.\.")):
        check(Options(**options))


# ---- through an export


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    for number in range(12):
        name = f"r-{number}"
        job.rollout(
            name, record(name, list(range(number + 1)), [50 + number % 4]), reward=number / 12, task=number // 2
        )
    return job


def test_splits_and_files_of_bounded_size(job, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    summary, rows = job.export(splits=(("train", 0.5), ("test", 0.5)), rows_per_file=3)
    files = summary.formats["token_rows"].files
    assert len(rows) == 12 and sum(one.rows for one in files) == 12 and max(one.rows for one in files) == 3
    assert {one.path.split("-")[0] for one in files} == {"train", "test"}
    card = (job.folder / "exports" / "README.md").read_text()
    assert 'path: "token_rows/train-*"' in card and "split: test" in card


def test_the_manifest_has_digests_counts_and_options(job):
    import hashlib

    job.export(sample=5, seed=3)
    manifest = json.loads((job.folder / "exports" / "manifest.json").read_text())
    (file,) = manifest["formats"]["token_rows"]["files"]
    data = (job.folder / "exports" / "token_rows" / file["path"]).read_bytes()
    assert (file["bytes"], file["sha256"], file["rows"]) == (len(data), hashlib.sha256(data).hexdigest(), 5)
    assert manifest["options"]["sample"] == 5 and manifest["options"]["seed"] == 3
    assert manifest["left_out"] == {"not_sampled": 7}
    assert manifest["captured"] == manifest["trained"] + manifest["context"] + sum(manifest["discarded"].values())


def test_the_same_seed_gives_the_same_files(job):
    first, _ = job.export(sample=7, splits=(("train", 0.5), ("test", 0.5)))
    second, _ = job.again(sample=7, splits=(("train", 0.5), ("test", 0.5)))
    assert first == second


def test_lengths_choose(job):
    summary, rows = job.export(min_tokens=4, max_tokens=8)
    assert {len(row["input_ids"]) for row in rows} == {4, 5, 6, 7, 8}
    assert summary.left_out == {"too_short": 2, "too_long": 5}


def test_of_rollouts_that_said_the_same_the_first_is_kept(tmp_path):
    job = Job(tmp_path)
    for name, said, task in (("a", [9], 0), ("b", [9], 0), ("c", [8], 0), ("d", [9], 1)):
        job.rollout(name, record(name, [1, 2], said), task=task)
    summary, rows = job.export(dedupe=True)
    assert [row["rollout_id"] for row in rows] == ["a", "c", "d"]
    assert summary.left_out == {"duplicate": 1} and summary.discarded == {"duplicate": 3}


def test_advantages_are_in_the_rows(job):
    _, rows = job.export(advantage="rloo")
    by_rollout = {row["rollout_id"]: row["advantage"] for row in rows}
    assert by_rollout["r-0"] == pytest.approx(-1 / 12) and by_rollout["r-1"] == pytest.approx(1 / 12)


def test_two_exports_to_one_folder_do_not_mix(job):
    import fcntl

    job.export()
    with (job.folder / "exports" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ExportError, match="another export is writing"):
            job.again()
    assert job.again()[0].rollouts == 12
