"""What all commands do alike with what stands on their line."""

import pytest

from nemo_gym.cli import aggregate, captures, compare, environment, export, profile, serve

PATHS = [
    (compare, ["", "b"], "ng_compare: argument A"),
    (compare, ["a", " "], "ng_compare: argument B"),
    (aggregate, ["", "-o", "all"], "ng_aggregate_rollouts: argument SHARD"),
    (aggregate, ["a", "-o", ""], "ng_aggregate_rollouts: argument --output/-o"),
    (profile, [""], "ng_reward_profile: argument RUN"),
    (profile, ["a", "--tasks", ""], "ng_reward_profile: argument --tasks"),
    (profile, ["a", "--report", ""], "ng_reward_profile: argument --report"),
    (profile, ["a", "--inputs", ""], "ng_reward_profile: argument --inputs"),
    (export, [""], "ng_export: argument output"),
    (export, ["a", "--captures", ""], "ng_export: argument --captures"),
    (export, ["a", "--to", ""], "ng_export: argument --to"),
    (serve, ["--model", "m", "--captures", ""], "ng_serve: argument --captures"),
    (captures, ["export", "a", "--output", ""], "ng_captures export: argument --output"),
    (captures, ["upload", "a", "--to", ""], "ng_captures upload: argument --to"),
]


@pytest.mark.parametrize(("command", "args", "says"), PATHS, ids=lambda value: str(value)[:40])
def test_an_empty_path_is_named_by_its_argument(command, args, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        command.main(args)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"{says}: expected a path, got '")
    assert list(tmp_path.iterdir()) == []


def test_so_is_an_empty_name_of_a_server(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert environment.try_main([""]) == 2
    assert capsys.readouterr().err == "expected a NAME, got ''\n"
    assert environment.init_main([""]) == 2
    assert capsys.readouterr().err.startswith("expected one NAME, got ''\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "key"),
    [(profile, "rollouts_jsonl_fpath"), (aggregate, "input_glob"), (compare, "baseline_rollouts_jsonl_fpath")],
)
def test_a_key_without_a_value_is_named(command, key, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([f"+{key}=''"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"+{key}: expected a value, there is none after the =\n"


@pytest.mark.parametrize(
    ("command", "args", "lacks"),
    [
        (export, [], "output"),
        (compare, ["a"], "B"),
        (profile, [], "RUN"),
        (aggregate, ["a"], "--output/-o"),
        (serve, [], "--model"),
        (captures, ["show"], "id"),
    ],
)
def test_what_is_missing_is_one_line(command, args, lacks, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(args)
    assert ended.value.code == 2
    name, _, words = capsys.readouterr().err.partition(": ")
    assert words == f"the following arguments are required: {lacks} ({name} --help says what there is)\n"
