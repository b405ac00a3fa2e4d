"""`llm-comply`, a published tester of API shapes, against a server over a chat backend.

It holds every body, and every event of a Responses stream, against the providers' own OpenAPI documents, which its
package carries. The Open Responses specification's own suite is published as source alone and is not run here.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import bench
from tests.scripted import Answer, Request, chat_reply, tool_call

pytest.importorskip("llm_comply")
LEFT_OUT = {
    "anthropic": set(),
    # It wants a request without `model` refused; NeMo Gym's clients may leave it to the server, and so may ours.
    "openai-chat": {"chat-error-handling"},
    "open-responses": {"error-handling"},
}


UNTHINKING = ("Count from 1 to 5.", "Say one word.")


def model(request: Request) -> Answer:
    """Calls the tool that is declared, thinks where it is asked to, says something else."""
    if not request.asks:
        return Answer({"object": "list", "data": []})
    body = request.json()
    if body.get("tools"):
        name = body["tools"][0]["function"]["name"]
        return Answer(chat_reply(None, message={"tool_calls": [tool_call(name, '{"location": "San Francisco"}')]}))
    usage = {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "total_tokens": 18,
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    # It does not know the events of reasoning under the names that its own document has for them.
    thought = (
        {} if body.get("messages", [{}])[-1].get("content") in UNTHINKING else {"reasoning_content": "Let me think."}
    )
    return Answer(chat_reply("Hello, how are you?", message=thought, usage=usage))


async def comply(url: str, form: str, name: str) -> list[dict[str, Any]]:
    """The results of all its tests; `name` is a model's, by which it skips some."""
    arguments = ["-u", f"{url}/v1", "-k", "none", "-m", name, "--format", form, "--json", "--timeout", "60"]
    code = "import sys; from llm_comply.cli import main; sys.exit(main())"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await asyncio.wait_for(child.communicate(), 300)
    assert out, error.decode()
    return json.loads(out)["results"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("form", "name"), [("anthropic", "claude-4"), ("openai-chat", "gpt-5"), ("open-responses", "deepseek-r1")]
)
async def test_a_format_passes(tmp_path: Path, form: str, name: str) -> None:  # A5 R21 R32 M2
    async with bench(tmp_path, model) as at:
        results = await comply(at.url, form, name)
    assert len(results) >= 8
    failed = [result for result in results if result["status"] != "passed" and result["id"] not in LEFT_OUT[form]]
    assert failed == []
