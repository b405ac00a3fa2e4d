"""`ng_doctor`: a URL or a configuration, examined; what is missing for token rows is an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_gym.cli import doctor
from tests.backends.test_probe import Endpoint
from tests.scripted import Answer, scripted

CONFIG = """\
policy_model:
  responses_api_models:
    vllm_model: {{entrypoint: app.py, base_url: {url}, api_key: none, model: m}}
"""


async def examined(*args: str) -> int:
    return await doctor._examined(doctor._parser().parse_args(list(args)))


@pytest.mark.parametrize("by", ["url", "config"])
async def test_json_says_what_each_answer_means(tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str) -> None:
    async with scripted(Endpoint(logprobs="raw")) as backend:
        (tmp_path / "a rün.yaml").write_text(CONFIG.format(url=backend.url))
        target = backend.url if by == "url" else str(tmp_path / "a rün.yaml")
        assert await examined(target, "--json") == 0
    ((name, told),) = json.loads(capsys.readouterr().out).items()
    assert name == (f"m at {backend.url}" if by == "url" else "policy_model")
    assert told["token ids"]["able"] is True
    assert told["log-prob mode"]["able"] is False
    assert "--logprobs-mode processed_logprobs" in told["log-prob mode"]["means"]


async def test_the_table_and_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    async with scripted(Endpoint(ids=False)) as backend:
        assert await examined(backend.url) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "token ids no" in out
    assert "no token rows" in out


async def test_an_endpoint_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    async with scripted([Answer({"error": {"message": "out of order"}}, 400)]) as backend:
        assert await examined(backend.url, "--model", "m", "--json") == 1
    ((_, told),) = json.loads(capsys.readouterr().out).items()
    assert told == {"error": "400: out of order"}


def test_every_finding_has_a_meaning() -> None:
    from nemo_gym.backends.probe import Finding

    for name, words in doctor.MEANS.items():
        for able, said in zip((True, False, None), words, strict=True):
            assert doctor.means(Finding(name, able)) == said


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["ftp://h"], "expected a URL such as"),
        (["http://h:99999"], "expected a URL such as"),
        (["http://[::1"], "expected a URL such as"),
        (["http://a b"], "expected a URL such as"),
        ([""], "expected a URL, or a configuration's file (.yaml), got ''"),
        (["./nowhere"], "expected a URL, or a configuration's file (.yaml), got './nowhere', which does not exist"),
        (
            ["tests"],
            "tests: expected a URL, or a configuration's file (.yaml), this is a folder; a host of that name is",
        ),
        (
            ["tests/bench.py"],
            "tests/bench.py: expected a URL, or a configuration's file (.yaml), this is another file\n",
        ),
        (["http://h", "--key-env", "NG_UNSET"], "--key-env: the environment variable NG_UNSET is not set"),
        (["http://h", "++a=1"], "++a=1: overrides belong to a configuration's file"),
        (["no.yaml"], "expected a file, 'no.yaml' does not exist"),
        (["no.yaml", "--model", "m"], "--model and --key-env belong to a URL"),
        (["configs/quickstart.yaml", "++job.repeats=x"], "job.repeats: expected a whole number"),
    ],
)
def test_a_wrong_line_ends_with_2(capsys: pytest.CaptureFixture[str], args: list[str], says: str) -> None:
    assert doctor.main(args) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert out == ""


def test_without_arguments_the_target_alone_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        doctor.main([])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "ng_doctor: the following arguments are required: target (ng_doctor --help says what there is)\n"
    )


@pytest.mark.parametrize("target", ["http://127.0.0.1:9", "127.0.0.1:9/v1"])
def test_who_cannot_be_reached_is_named_as_it_was_said(capsys: pytest.CaptureFixture[str], target: str) -> None:
    assert doctor.main([target]) == 1
    assert capsys.readouterr().err == f"ng_doctor: {target} cannot be reached: Connection refused\n"
    assert doctor.main([target, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {target: {"error": "cannot be reached: Connection refused"}}
    assert doctor.main([target, "--model", "m"]) == 1
    assert capsys.readouterr().err == f"m at {target}: cannot be reached\n"


async def test_what_an_endpoint_says_before_it_lists_anything(capsys: pytest.CaptureFixture[str]) -> None:
    async with scripted(lambda request: Answer({}, 503)) as backend:
        assert await examined(backend.url) == 1
    assert "answers 503" in capsys.readouterr().err
    async with scripted(lambda request: Answer({}, 401)) as backend:
        with pytest.raises(doctor._Wrong, match="needs a key: say --key-env NAME"):
            await examined(backend.url)
    async with scripted(lambda request: Answer({}, 404)) as backend:
        with pytest.raises(doctor._Wrong, match="/models does not list what is served; say --model NAME"):
            await examined(backend.url)


async def test_one_of_several_models_must_be_named() -> None:
    listed = Answer({"object": "list", "data": [{"id": "b"}, {"id": "a"}]})
    async with scripted(lambda request: listed) as backend:
        with pytest.raises(doctor._Wrong, match="--model: expected one of a, b"):
            await examined(backend.url)
