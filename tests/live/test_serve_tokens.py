"""`ng_serve` in front of a vLLM: what SDKs and real agents ask through it is token rows at the end, without a job."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pyarrow.parquet as pq
import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.record import CallRecord
from nemo_gym.cli import export
from tests.live.test_serve import HEADS, ran
from tests.project import World

pytestmark = [pytest.mark.live, pytest.mark.ci]

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
]


class Served:
    """`ng_serve` in front of the vLLM, and what it has printed."""

    def __init__(self, url: str, said: str, captures: Path) -> None:
        self.url = url
        self.captures = captures
        pieces = HEADS.split(said.partition("\nEach task")[0])
        self.pasted = {name: text.strip() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}

    def exported(self) -> tuple[list[dict[str, Any]], list[CallRecord]]:
        """The token rows that `ng_export` makes of the captures alone, and the records that they are of."""
        assert export.main([str(self.captures)]) == 0
        return pq.read_table(self.captures.parent / "exports" / "token_rows").to_pylist(), [
            call for call in CaptureStore(self.captures).calls() if call.status == "answered"
        ]


@pytest.fixture
def served(plain_vllm: str, tmp_path: Path) -> Iterator[Served]:
    world = World(tmp_path)
    captures = tmp_path / "recorded" / "captures"
    # Log-probs are raw, so what is trained on is sampled at temperature 1.
    forced = "++policy_model.responses_api_models.vllm_model.sampling_overrides={temperature: 1.0, max_tokens: 48}"
    process = world.start(
        *("serve", "--upstream", plain_vllm, "--model", "tiny-policy", "--port", "0"),
        "--captures",
        str(captures),
        forced,
    )
    try:
        said = world.until_up(process)
        yield Served(re.findall(r"OPENAI_BASE_URL=(\S+)/ng-rollout/", said)[0], said, captures)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        world.end()


def check_rows(rows: list[dict[str, Any]], calls: list[CallRecord]) -> None:
    """Every token that vLLM generated is in one row, with the log-prob it was sampled with. # C3"""
    assert sum(sum(row["loss_mask"]) for row in rows) == sum(len(call.reply.choices[0].tokens.ids) for call in calls)
    trained = [
        (token, logprob)
        for row in rows
        for token, mask, logprob in zip(row["input_ids"], row["loss_mask"], row["logprobs"], strict=True)
        if mask
    ]
    tokens = [call.reply.choices[0].tokens for call in calls]
    recorded = [pair for one in tokens for pair in zip(one.ids, one.logprobs, strict=True)]
    assert sorted(trained) == sorted(recorded)


def test_what_sdks_ask_through_ng_serve_becomes_token_rows(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/ng-rollout/task-1/v1", api_key="none", timeout=240)
    said: list[Any] = [{"role": "user", "content": "What is 12 + 30?"}]
    for _ in range(2):
        reply = client.chat.completions.create(model="m", messages=said, tools=TOOLS)
        said += [{"role": "assistant", "content": reply.choices[0].message.content or "-"}]
        said += [{"role": "user", "content": "Are you sure?"}]
    by_session = openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="none", timeout=240, default_headers={"session-id": "s-1"}
    )
    for text in ("What is the weather in Prague?", "And in Rome?"):
        with by_session.responses.stream(model="m", input=text) as stream:
            assert stream.get_final_response().usage.output_tokens > 0
    lone = anthropic.Anthropic(base_url=served.url, api_key="none", timeout=240)
    assert lone.messages.create(model="m", max_tokens=20, messages=said[:1]).usage.output_tokens > 0

    rows, calls = served.exported()
    check_rows(rows, calls)
    assert len(calls) == 5
    (alone,) = [call for call in calls if call.dialect == "messages"]
    assert {row["rollout_id"] for row in rows} == {"task-1", "session s-1", f"call {alone.call_id}"}
    assert {row["reward"] for row in rows} == {None}


@pytest.mark.parametrize("client", ["codex", pytest.param("openclaw", marks=pytest.mark.nightly)])
def test_what_an_agent_asks_through_ng_serve_becomes_token_rows(served: Served, tmp_path: Path, client: str) -> None:
    """The model is too small to do what an agent asks of it; what it said is training data all the same."""
    home = tmp_path / "home"
    home.mkdir()
    if client == "codex":
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text(served.pasted["Codex"])
        flags = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    else:
        (home / "openclaw.json").write_text(served.pasted["OpenClaw"])
        flags = ["agent", "exec", "--config", f"{home}/openclaw.json", "--cwd", f"{home}/work", "--json"]
    ended = ran(client, home, flags)
    rows, calls = served.exported()
    assert calls, ended.stdout[-3000:] + ended.stderr[-3000:]
    check_rows(rows, calls)
    assert {row["rollout_id"] for row in rows} == {"task-1"}
    assert max(len(row["input_ids"]) for row in rows) > 2000  # the agent's own brief
