"""Compressed request bodies: Codex sends zstd."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import httpx
import pyarrow as pa

from tests.bench import HELLO, bench
from tests.scripted import Answer, chat_reply

BODY = json.dumps({"model": "m", "input": "Grüße " * 1000}).encode()


def packed(codec: str, data: bytes = BODY) -> bytes:
    return bytes(pa.compress(data, codec=codec, asbytes=True))


SOUND = [
    ("zstd", packed("zstd")),
    ("ZSTD", packed("zstd", BODY[:50]) + packed("zstd", BODY[50:])),  # two frames
    ("gzip", gzip.compress(BODY)),
    ("br", packed("brotli")),
    ("identity, gzip , zstd", packed("zstd", gzip.compress(BODY))),
    ("", BODY),
    ("identity", BODY),
]


async def test_a_compressed_body_is_read_as_it_was(tmp_path: Path) -> None:
    async with bench(tmp_path, [Answer(chat_reply())]) as at, httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        for encoding, data in SOUND:
            answer = await client.post("/v1/responses", content=data, headers={"content-encoding": encoding})
            assert answer.status_code == 200, encoding
        records = at.records()
    assert len(records) == len(SOUND)
    assert all(record.received.origin.body == json.loads(BODY) for record in records)


BROKEN = [
    ("zstd", BODY, 400),
    ("zstd", packed("zstd")[:-3], 400),
    ("compress", BODY, 415),
    ("gzip, " * 5 + "gzip", gzip.compress(BODY), 400),
    ("zstd", packed("zstd", b" " * 100_000), 413),
]


async def test_what_cannot_be_unpacked_is_refused_and_recorded(tmp_path: Path) -> None:
    settings = {"max_body_bytes": 20_000}
    async with (
        bench(tmp_path, [Answer(chat_reply())], **settings) as at,
        httpx.AsyncClient(base_url=at.url, timeout=60) as client,
    ):
        for encoding, data, status in BROKEN:
            headers = {"content-encoding": encoding}
            chat = await client.post("/v1/chat/completions", content=data, headers=headers)
            responses = await client.post("/v1/responses", content=data, headers=headers)
            assert chat.status_code == status
            assert responses.status_code == (400 if status in (413, 415) else status)  # A5
            assert "content-encoding" in chat.text or status == 413
        empty = await client.post("/v1/responses", content=b"", headers={"content-encoding": "gzip"})
        assert empty.status_code == 400
        assert at.backend.calls == []
        assert {record.status for record in at.records()} == {"rejected"}
        data = packed("zstd", json.dumps({"messages": HELLO}).encode())
        answer = await client.post("/v1/chat/completions", content=data, headers={"content-encoding": "zstd"})
        assert answer.status_code == 200
