import json
import socket
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from resources_servers.code_tests import sandbox
from resources_servers.code_tests.app import CodeTestsConfig, CodeTestsServer, read_code, same
from resources_servers.code_tests.data import generate
from resources_servers.code_tests.sandbox import Limits

DATA = Path(generate.__file__).with_name("example.jsonl")
LIMITS = Limits(2.0, 256)


@pytest.fixture
def client():
    server = CodeTestsServer(config=CodeTestsConfig(name="env", time_limit_s=2), server_client=ServerClient({}))
    with TestClient(server.asgi()) as client:
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


def test_how_code_is_read():
    assert read_code("a ```python\nprint(1)\n``` b ```py\nprint(2)\n```") == "print(2)\n"
    assert read_code("```\nprint(1)\n```") == "print(1)\n"
    assert read_code("print(1)") is None
    assert read_code("```python\n\n```") is None


def test_how_output_is_compared():
    assert same("a \nb\n\n", "a\nb\n")
    assert not same(" a", "a")
    assert not same("a\n\nb", "a\nb")


def test_reference_programs_pass_and_others_do_not(client):
    every = list(zip(generate.rows(), generate.tasks(), strict=True))
    for row, task in every[::25]:
        told = verify(client, row, f"Here:\n```python\n{task.program}\n```")
        assert (told["reward"], told["passed"], told["verdict"]) == (1.0, 5, "passed")
    row = every[0][0]
    for text, verdict in [
        ("no code at all", "no code"),
        ("```python\nprint('?')\n```", "wrong"),
        ("```python\nraise SystemExit(3)\n```", "error"),
        ("```python\nprint(\n```", "error"),
    ]:
        told = verify(client, row, text)
        assert (told["reward"], told["passed"], told["verdict"]) == (0.0, 0, verdict)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("while True: pass", "time"),
        ("x = 'a' * (1 << 30)", "error"),
        ("while True: print('a' * 1000)", "output"),
        ("open('big', 'wb').write(b'a' * (1 << 22))", "error"),
        ("import sys; sys.stdin.close(); print('ok')", None),
    ],
)
async def test_limits(code, failure):
    assert (await sandbox.run(code, "x" * 100_000, LIMITS)).failure == failure


@pytest.mark.ci
async def test_a_program_that_sleeps_is_ended(monkeypatch):
    monkeypatch.setattr(sandbox, "_START_S", 3.0)
    assert (await sandbox.run("import time; time.sleep(600)", "", Limits(0.5, 256))).failure == "time"


@pytest.mark.ci
async def test_one_that_writes_faster_than_it_is_read_is_ended():
    # asyncio stops reading a pipe that is ahead of its reader, and never sees the end of it by itself
    code = "import os\nwhile True: os.write(1, b'a' * (1 << 16))"
    assert [(await sandbox.run(code, "", LIMITS)).failure for _ in range(5)] == ["output"] * 5


@pytest.mark.ci
async def test_what_it_started_ends_with_it(tmp_path):
    left = str(tmp_path / "left")
    code = f"import os, time\nif os.fork() == 0:\n    time.sleep(1.5)\n    open({left!r}, 'w').close()\n"
    assert (await sandbox.run(code, "", LIMITS)).failure is None
    await sandbox.run("import time; time.sleep(2)", "", Limits(5.0, 256))
    assert not (tmp_path / "left").exists()


async def test_it_reaches_no_server_of_this_machine():
    probe = "import os; print(os.getpid())"
    if (await sandbox.run(probe, "", LIMITS)).output.strip() != "1":
        pytest.skip("this kernel gives no namespaces to this user")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout=2)"
        assert (await sandbox.run(code, "", LIMITS)).failure == "error"
