import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

pytest.importorskip("math_verify")

from nemo_gym.server_utils import ServerClient
from resources_servers.math_equivalence.app import MathEquivalenceConfig, MathEquivalenceServer
from resources_servers.math_equivalence.data import generate
from resources_servers.math_equivalence.equivalence import compare

DATA = Path(generate.__file__).with_name("example.jsonl")


def said(text):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    return {
        "id": "resp_1",
        "created_at": 0,
        "model": "m",
        "object": "response",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": [message],
    }


def verify(client, row, text):
    answer = client.post("/verify", json=row | {"response": said(text)})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_data_set_is_what_its_generator_writes():
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    assert rows == list(generate.rows())
    assert len({row["task_id"] for row in rows}) == len(rows) == 50


@pytest.mark.parametrize(
    ("expected", "text", "equal"),
    [
        ("\\frac{1}{2}", "\\boxed{0.5}", True),
        ("\\frac{1}{2}", "\\boxed{\\dfrac{2}{4}}", True),
        ("x^{2} + 2 x + 1", "first \\boxed{x}, then \\boxed{(x+1)^2}", True),
        ("2 \\sqrt{2}", "\\boxed{\\sqrt{8}}", True),
        ("4", "\\boxed{x = 4}", True),
        ("4", "\\boxed{5}", False),
        ("4", "I do not know", False),
        ("4", "", False),
        ("x + 1", "\\boxed{x - 1}", False),
    ],
)
def test_equivalence(expected, text, equal):
    assert compare(expected, text)[0] is equal


def test_every_answer_of_the_data_set_is_its_own():
    assert all(compare(row["expected_answer"], f"\\boxed{{{row['expected_answer']}}}")[0] for row in generate.rows())


@pytest.mark.ci
def test_rewards_and_an_answer_that_takes_for_ever():
    config = MathEquivalenceConfig(name="env", processes=1, answer_timeout_s=20)
    server = MathEquivalenceServer(config=config, server_client=ServerClient({}))
    with TestClient(server.asgi()) as client:
        row = next(generate.rows())
        told = verify(client, row, f"\\boxed{{{row['expected_answer']}}}")
        assert (told["reward"], told["timed_out"]) == (1.0, False)
        told = verify(client, row, "none")
        assert (told["reward"], told["extracted_answer"]) == (0.0, None)
        server.config.answer_timeout_s = 0.0001
        assert verify(client, row, "\\boxed{1}")["timed_out"] is True
        server.config.answer_timeout_s = 20
        assert verify(client, row, f"\\boxed{{{row['expected_answer']}}}")["reward"] == 1.0  # in a new process
        assert server._pool is not None
        server._end(server._pool)
