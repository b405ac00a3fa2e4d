"""A vLLM started by hand: its replies, streamed and not, read to token-exact values. # C3"""

import subprocess
import sys

import httpx
import pyarrow.parquet as pq
import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.dialects import chat, codec
from nemo_gym.exchange.increments import fold
from nemo_gym.exchange.parts import ToolCall
from tests.live.vllm import MODEL

pytestmark = [pytest.mark.live, pytest.mark.ci]

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
REQUEST = {
    "messages": [{"role": "user", "content": "What is 12 + 30?"}],
    "tools": [TOOL],
    "temperature": 0.0,
    "max_tokens": 120,
    "seed": 1,
}
CAPTURE = {"return_token_ids": True, "logprobs": True}


def body() -> dict:
    return {**chat.write_request(chat.read_request(REQUEST)), "model": "tiny-policy", **CAPTURE}


def test_a_reply_and_its_stream_are_one_and_token_exact(plain_vllm):
    answer = httpx.post(f"{plain_vllm}/v1/chat/completions", json=body(), timeout=120)
    assert answer.status_code == 200, answer.text
    whole = chat.read_reply(codec.decode(answer.content))
    (choice,) = whole.choices
    assert len(whole.prompt_ids) == whole.usage.prompt
    assert len(choice.tokens.ids) == len(choice.tokens.logprobs) == whole.usage.completion
    assert all(value <= 0 for value in choice.tokens.logprobs)

    reader, increments = chat.stream_reader(), []
    streamed = {**body(), "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{plain_vllm}/v1/chat/completions", json=streamed, timeout=120) as response:
        for data in response.iter_bytes(7):
            increments += reader.feed(data)
    again = reader.finish()
    assert again.prompt_ids == whole.prompt_ids
    assert again.choices[0].tokens.ids == choice.tokens.ids
    assert again.choices[0].tokens.logprobs == pytest.approx(list(choice.tokens.logprobs), abs=1e-4)
    assert again.usage == whole.usage
    assert again.choices[0].finish == choice.finish

    def meaning(parts):
        return [(part.name, part.arguments) if isinstance(part, ToolCall) else part.text.strip() for part in parts]

    assert meaning(again.choices[0].parts) == meaning(choice.parts)
    flowing = [part for part in again.choices[0].parts if not isinstance(part, ToolCall)]
    assert list(fold(increments).get(0, ())) == flowing


def test_what_vllm_says_of_a_bad_request(plain_vllm):
    answer = httpx.post(f"{plain_vllm}/v1/chat/completions", json={**body(), "max_tokens": -1}, timeout=60)
    error = chat.read_error(answer.status_code, answer.headers, answer.content)
    assert error.kind == "invalid"
    assert "max_tokens" in error.message


def test_the_quickstart_job_runs_against_it(plain_vllm, tmp_path):
    argv = [sys.executable, "-m", "nemo_gym.cli.main", "run", "+config_paths=[configs/quickstart_remote.yaml]"]
    argv += [f"++policy_base_url={plain_vllm}/v1", f"++job.output={tmp_path}/out", "++job.limit=8", "++job.repeats=2"]
    ended = subprocess.run(argv, cwd=MODEL.parents[1], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    calls = list(CaptureStore(tmp_path / "out" / "captures").calls())
    assert len({call.rollout_id for call in calls}) == 16
    for call in calls:
        assert (call.backend_dialect, call.dialect, call.logprobs_mode) == ("chat", "responses", "raw")
        assert call.reply.prompt_ids
        assert len(call.reply.choices[0].tokens.ids) == len(call.reply.choices[0].tokens.logprobs)
    rows = pq.read_table(tmp_path / "out" / "exports" / "token_rows").to_pylist()
    assert sum(sum(row["loss_mask"]) for row in rows) == sum(len(call.reply.choices[0].tokens.ids) for call in calls)
