"""Lines of a log: structured, with the ids of what they are about, and without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from pathlib import Path

import httpx
import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.web import logs
from tests.bench import HELLO
from tests.processes import process
from tests.scripted import Answer, chat_reply, scripted


def record(message: str, *values: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("nemo_gym.x", logging.WARNING, "file", 1, message, values, None)
    made.__dict__.update(fields)
    made.created = 1_700_000_000.25
    return made


def test_a_line() -> None:
    line = logs.Lines().format(record("slept %d s", 5, call_id="c1", words='a "b"', nothing=None))
    assert line == '2023-11-14T22:13:20.250Z WARNING nemo_gym.x: slept 5 s  call_id=c1 words="a \\"b\\""'


def test_a_json_line() -> None:
    line = logs.Lines(form="json").format(record("é\n%s", "x", call_id="c1", path=Path("/a")))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "WARNING",
        "logger": "nemo_gym.x",
        "message": "é\nx",
        "call_id": "c1",
        "path": "/a",
    }


def test_nobody_writes_a_second_line() -> None:
    line = logs.Lines().format(record("a\r\n2023 ERROR nemo_gym: forged"))
    assert len(line.splitlines()) == 1


def test_a_message_has_an_end() -> None:
    line = logs.Lines().format(record("x" * 100_000))
    assert len(line) < 5000
    assert line.endswith("… (95904 more characters)")


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_in_a_line(form: logs.Format) -> None:
    lines = logs.Lines(["sk-long-secret", "sk-long-secret-and-more", "none", ""], form)
    made = record(
        "asked with %s; none was right", "sk-long-secret-and-more", header="Bearer abc.def", n="ng-rollout:r1:k"
    )
    try:
        raise ValueError("http://me:pass@host/v1 said sk-long-secret")
    except ValueError:
        made.exc_info = sys.exc_info()
    line = lines.format(made)
    for secret in ("sk-long", "and-more", "abc.def", ":k", "me:pass"):
        assert secret not in line
    assert "none was right" in line
    assert "Bearer [redacted]" in line
    assert "ng-rollout:r1:[redacted]" in line
    assert "http://[redacted]@host/v1" in line


async def test_what_is_bound_stays_in_its_task(caplog: pytest.LogCaptureFixture) -> None:
    lines = logs.Lines()

    async def work(name: str) -> str:
        logs.bind(rollout_id=name)
        await asyncio.sleep(0)
        logs.bind(call_id=f"{name}-1", rollout_id=None if name == "b" else name)
        await asyncio.sleep(0)
        return lines.format(record("x", call_id="said" if name == "c" else None))

    told = [line.partition("x: x")[2] for line in await asyncio.gather(*map(work, "abc"))]
    assert told == ["  rollout_id=a call_id=a-1", "  call_id=b-1", "  rollout_id=c call_id=said"]
    assert lines.format(record("x")).endswith("x: x")


async def test_a_servers_lines_name_the_call_and_hide_its_keys(tmp_path: Path) -> None:
    key, admin = "sk-the-backends-own-key", "the-admin-key"

    def answer(request) -> Answer:
        if not request.asks:
            return Answer({"data": []})
        return Answer({"error": {"message": f"no: {key}\nERROR forged"}}, 500)

    async with (
        scripted(answer) as backend,
        process(tmp_path, backend.url, api_key=key, api_keys=["a-clients-key"], log_format="json") as at,
        httpx.AsyncClient(base_url=at.url, headers={"authorization": "Bearer a-clients-key"}, timeout=60) as client,
    ):
        assert (await client.post("/ng-rollout/r1/v1/chat/completions", json={"messages": HELLO})).status_code == 500
        assert (await client.post("/ng-rollout/r2/v1/chat/completions", json={"messages": 5})).status_code == 422
        refused = await client.post("/v1/responses", json={}, headers={"authorization": "Bearer a-wrong-key"})
        assert refused.status_code == 400
        text = at.log.read_text()
    records = {record.rollout_id: record for record in CaptureStore(tmp_path / "captures").calls()}
    lines = [json.loads(line) for line in text.splitlines()]
    about = {line.get("rollout_id"): line for line in lines if line["message"].startswith("call ")}
    assert {name: line["call_id"] for name, line in about.items()} == {
        name: record.call_id for name, record in records.items()
    }
    assert (about["r1"]["level"], about["r1"]["error_kind"], about["r1"]["dialect"]) == ("WARNING", "backend", "chat")
    assert (about["r2"]["level"], about["r2"]["error_kind"]) == ("INFO", "invalid")
    for secret in (key, admin, "a-clients-key", "a-wrong-key"):
        assert re.search(re.escape(secret), text) is None
    assert chat_reply()["id"] not in text
