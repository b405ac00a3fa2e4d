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
        (tmp_path / "run.yaml").write_text(CONFIG.format(url=backend.url))
        target = backend.url if by == "url" else str(tmp_path / "run.yaml")
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
        (["http://127.0.0.1:9/v1"], "does not list what is served (ClientConnectorError); say --model NAME"),
        (["ftp://h"], "expected a URL such as"),
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


async def test_one_of_several_models_must_be_named() -> None:
    listed = Answer({"object": "list", "data": [{"id": "b"}, {"id": "a"}]})
    async with scripted(lambda request: listed) as backend:
        with pytest.raises(doctor._Wrong, match="--model: expected one of a, b"):
            await examined(backend.url)
