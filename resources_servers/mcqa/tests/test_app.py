import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from resources_servers.mcqa.app import McqaConfig, McqaServer, read_answer
from resources_servers.mcqa.data import generate

DATA = Path(generate.__file__).with_name("example.jsonl")


@pytest.fixture
def client():
    with TestClient(McqaServer(config=McqaConfig(name="env"), server_client=ServerClient({})).asgi()) as client:
        yield client


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
    ("text", "letter"),
    [
        ("\\boxed{B}", "B"),
        ("so \\boxed{A}, no: \\boxed{ \\text{c} }", "C"),
        ("Answer: (D)", "D"),
        ("The answer is **b**.", "B"),
        ("answer A first, then Answer: C", "C"),
        ("\\boxed{A} and Answer: B", "A"),
        ("The answer is Banana", None),
        ("The answer is a's", None),
        ("\\boxed{AB}", None),
        ("B", None),
        ("", None),
    ],
)
def test_how_an_answer_is_read(text, letter):
    assert read_answer(text) == letter


def test_rewards(client):
    row = next(generate.rows())
    right = row["expected_answer"]
    wrong = "A" if right != "A" else "B"
    assert verify(client, row, f"\\boxed{{{right}}}")["reward"] == 1.0
    assert verify(client, row, f"Answer: {right.lower()}")["reward"] == 1.0
    assert verify(client, row, f"\\boxed{{{wrong}}}")["reward"] == 0.0
    told = verify(client, row, "\\boxed{Z}")
    assert (told["reward"], told["extracted_answer"], told["task_id"]) == (0.0, None, "mcqa-000")


def test_a_row_whose_answer_is_no_option_is_refused(client):
    row = next(generate.rows()) | {"expected_answer": "E", "response": said("")}
    answer = client.post("/verify", json=row)
    assert answer.status_code == 422
    assert "expected one of A, B, C, D" in answer.text


def test_figures(client):
    rows = [
        {"_ng_task_index": 0, "_ng_rollout_index": n, "reward": float(letter == "A"), "extracted_answer": letter}
        for n, letter in enumerate(["A", "B", "A"])
    ]
    key = client.post("/aggregate_metrics", json={"verify_responses": rows}).json()["key_metrics"]
    assert key["mean/reward"] == pytest.approx(2 / 3)
    assert key["majority@3/accuracy"] == 100.0
