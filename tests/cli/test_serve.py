"""`ng_serve`: one line is a recording proxy, and what it prints is what clients need."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tomllib
from pathlib import Path

import openai
import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.cli import clients, export, serve
from tests.project import ROOT
from tests.scripted import Answer, chat_reply, scripted


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://h:1/v1/", "http://h:1/v1"),
        ("https://h/v1/chat/completions", "https://h/v1"),
        ("https://h/api/openai/v1/responses/", "https://h/api/openai/v1"),
        ("http://[::1]:8000/", "http://[::1]:8000/v1"),
    ],
)
def test_an_endpoint_by_any_of_its_addresses(given: str, base: str) -> None:
    assert serve.upstream(given) == base


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--model", "no-such-folder"], "--model: expected a model's folder with a config.json, found none"),
        (["--upstream", "ftp://h", "--model", "m"], "--upstream: expected a URL such as"),
        (["--upstream", "http://h/v1?key=1", "--model", "m"], "--upstream: expected a URL without a query"),
        (["--upstream", "http://u:p@h", "--model", "m"], "--upstream: expected a URL without a user and a password"),
        (["--upstream", "http://h", "--model", ""], "--model: "),
        (["--upstream", "http://h", "--model", "m", "--key-env", "sk-x"], "--key-env: expected the name of an env"),
        (
            ["--upstream", "http://h", "--model", "m", "--key-env", "NG_UNSET"],
            "--key-env: the environment variable NG_UNSET is not set",
        ),
        (["--upstream", "http://h", "--model", "m", "--host", "0.0.0.0"], "--host: other machines reach 0.0.0.0"),
        (["--model", "models/tiny_policy", "--key-env", "A"], "--key-env: is about an endpoint"),
        (["--model", "models/tiny_policy", "--api", "chat"], "--api: is about an endpoint"),
        (["--provider", "togehter", "--model", "m"], "--provider: there is none called 'togehter'; did you mean 'tog"),
        (["--provider", "zzz", "--model", "m"], "there are openai, anthropic, "),
        (["--provider", "groq", "--upstream", "http://h", "--model", "m"], "--provider: says where the endpoint is"),
        (["--provider", "openai", "--model", "m", "--api", "messages"], "--api"),
        (["--upstream", "http://h", "--upstream", "h/v1/", "--model", "m"], "--upstream: expected each URL once"),
    ],
)
def test_faults_are_told_in_the_words_of_the_line(
    capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    assert serve.main(args) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert "policy_model" not in err
    assert out == ""


def test_a_host_by_its_name_brings_its_address_and_the_name_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_gym.config.compose import compose

    for variable in ("TOGETHER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(variable, f"the-{variable}")
    found = {}
    for name in ("together", "openai"):
        line = serve.read(serve._parser().parse_args(["--provider", name, "--model=m"]))
        (instance,) = compose(line.overrides()).instances
        found[name] = (instance.implementation, instance.settings.get("provider"), instance.settings["api_key"])
    assert found == {
        "together": ("inference_provider", "together", "the-TOGETHER_API_KEY"),
        "openai": ("openai_model", None, "the-OPENAI_API_KEY"),
    }


def test_any_text_survives_the_grammar_of_overrides() -> None:
    from nemo_gym.config.compose import compose

    for name in ("Qwen/Qwen3-8B", "a'b\\c,d]", "x=y {z}", "gpt: 5 #", "\\'"):
        line = serve.read(serve._parser().parse_args(["--upstream", "http://h", f"--model={name}"]))
        (instance,) = compose(line.overrides()).instances
        assert instance.settings["model"] == name


@pytest.mark.parametrize("variable", [None, "GYM_KEY"])
def test_each_text_is_whole_in_its_own_language(variable: str | None) -> None:
    url = "http://127.0.0.1:8001"
    pasted = {one.client: one for one in clients.settings(url, "m", context=2048, key_variable=variable)}
    codex = tomllib.loads(pasted["Codex"].text)
    provider = codex["model_providers"][codex["model_provider"]]
    assert provider["base_url"] == f"{url}/ng-rollout/task-1/v1"
    assert provider["wire_api"] == "responses"
    assert provider.get("env_key") == variable
    assert codex["model_context_window"] == 2048
    openclaw = json.loads(pasted["OpenClaw"].text)
    (name,) = openclaw["models"]["providers"]
    (model,) = openclaw["models"]["providers"][name]["models"]
    assert openclaw["agents"]["defaults"]["model"]["primary"] == f"{name}/{model['id']}"
    assert model["contextWindow"] == 2048 > model["maxTokens"]
    assert f"export ANTHROPIC_BASE_URL={url}/ng-rollout/task-1\n" in pasted["Claude Code"].text
    assert f"export OPENAI_BASE_URL={url}/ng-rollout/task-1/v1\n" in pasted["OpenAI SDK"].text
    for one in pasted.values():
        assert (variable in one.text) if variable else ("none" in one.text or one.client == "Codex")


async def test_one_line_serves_and_records(tmp_path: Path) -> None:
    async with scripted([Answer(chat_reply("Hello from far away."))]) as backend:
        args = ["serve", "--upstream", backend.url.removesuffix("/v1"), "--model", "scripted-model", "--port", "0"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nemo_gym.cli.main", *args, "--key-env", "UPSTREAM_KEY"),
            *("--captures", str(tmp_path / "captures")),
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "UPSTREAM_KEY": "sk-upstream-secret",
                "NEMO_GYM_RUNTIME_DIR": str(tmp_path / "runtime"),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            said = ""
            while "Ctrl-C" not in said:
                line = await asyncio.wait_for(process.stdout.readline(), 120)
                assert line, (await process.stderr.read()).decode()
                said += line.decode()
            (base,) = set(re.findall(r"OPENAI_BASE_URL=(\S+)", said))
            client = openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0)
            reply = await client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "Is anybody there?"}]
            )
            assert reply.choices[0].message.content == "Hello from far away."
        finally:
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.communicate(), 60)
        # What the backend can do is asked beside it.
        (call,) = [one for one in backend.calls if "Is anybody there?" in str(one.json()["messages"])]
        assert call.headers["authorization"] == "Bearer sk-upstream-secret"
        assert call.json()["model"] == "scripted-model"
    assert "sk-upstream-secret" not in said
    (record,) = CaptureStore(tmp_path / "captures").calls("task-1")
    assert record.status == "answered"
    assert "ng_export captures" in said
    assert export.main([str(tmp_path / "captures"), "-f", "sft"]) == 0
    (row,) = map(json.loads, (tmp_path / "exports" / "sft" / "part-00000.jsonl").read_text().splitlines())
    assert (row["rollout_id"], row["messages"][-1]["content"]) == ("task-1", "Hello from far away.")
