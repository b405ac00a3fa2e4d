"""Verifying anew over real HTTP, against resources servers as an environment's author writes them."""

import asyncio
import functools
import json
from typing import Any, ClassVar

import pytest
from pydantic import ConfigDict

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.rollouts.manifest import Refused
from nemo_gym.rollouts.reverify import Options, reverify
from nemo_gym.web import client as pooled
from nemo_gym.web.peers import ServerClient
from tests.loopback import serving
from tests.rollouts import stored

pytestmark = pytest.mark.ci


class Config(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS


class NeedsMore(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNSUPPORTED


class Request(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow", populate_by_name=True)
    expected: str


class Response(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow", populate_by_name=True)
    expected: str
    found: str


class Server(SimpleResourcesServer):
    """Rewards a reply that ends with what is expected; its answer has all that it was asked, as is the custom."""

    config: BaseResourcesServerConfig

    async def verify(self, body: Request) -> Response:
        self.__dict__["seen"].append(body.model_dump())
        self.__dict__["running"] += 1
        self.__dict__["most"] = max(self.__dict__["most"], self.__dict__["running"])
        await asyncio.sleep(0.01)
        self.__dict__["running"] -= 1
        text = body.response.output[-1].content[0].text
        if text == "boom":
            raise ValueError("no such thing")
        if text == "nan":
            return Response(**body.model_dump(), found=text, reward=float("nan"))
        return Response(**body.model_dump(), found=text, reward=float(text.endswith(body.expected)))


def message(text: str) -> dict[str, Any]:
    return {"response": whole([stored.message(text)])}


def whole(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "m",
        "object": "response",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def rows(texts: list[str]) -> list[dict[str, Any]]:
    """As a job stored them: all of them wrong, with what the verifier said then."""
    said = {"found": "what it found then", "failure_reason": None, "mask_sample": False}
    return [stored.row(n, 0, 0.25, expected="four", **said, **message(text)) for n, text in enumerate(texts)]


class Bench:
    def __init__(self, folder, url, server):
        self.folder, self.server = folder, server
        self.client = ServerClient({"env": url})
        self.output = folder / "again"

    async def verify(self, source, options=None, **more):
        return await reverify(
            source,
            self.output,
            self.client,
            lambda row: "env",
            servers=["env"],
            identity={"config_digest": "c"},
            options=options or Options(concurrency=3),
            **more,
        )

    def read(self, name="rollouts.jsonl", output=None):
        lines = ((output or self.output) / name).read_text().splitlines()
        return sorted(map(json.loads, lines), key=lambda row: row["_ng_task_index"])


@functools.cache
def made(config):
    """Once for all tests: to make the schema of what a verifier is asked takes seconds."""
    server = Server(config=config(name="env", host="127.0.0.1", port=0), server_client=ServerClient({}))
    return server, server.asgi()


@pytest.fixture(params=[Config])
async def bench(tmp_path, request):
    server, app = made(request.param)
    server.__dict__.update(seen=[], running=0, most=0)
    async with serving(app) as url:
        yield Bench(tmp_path, url, server)
        await pooled.close()


async def test_rewards_are_those_that_the_verifier_gives_now(bench):
    source = stored.write(
        bench.folder / "first",
        rows(["It is four", "It is five", "four"]),
        run_id="the-run",
        input="d.jsonl",
        versions={},
        created=1.0,
    )
    found = await bench.verify(source)
    assert (found.verified, found.changed, found.failures, found.unsafe) == (3, 3, {}, [])
    again = bench.read()
    assert [row["reward"] for row in again] == [1.0, 0.0, 1.0]
    assert [row["found"] for row in again] == ["It is four", "It is five", "four"]
    assert {row["_ng_reward_before"] for row in again} == {0.25}
    first = rows(["It is four"])[0]
    for name in ("_ng_rollout_id", "agent_ref", "responses_create_params", "expected"):
        assert again[0][name] == first[name]
    assert again[0]["_ng_rollout"] == first["_ng_rollout"] | {"attempt": 0}
    asked = bench.server.__dict__["seen"][0]
    assert not {"found", "_ng_reward_before", "_ng_rollout"} & set(asked)
    assert "reward" not in asked
    manifest = json.loads((bench.output / "manifest.json").read_text())
    assert manifest["run_id"] == "the-run-reverified"
    assert manifest["identity"]["source"] == str(source)


async def test_no_more_at_a_time_than_allowed(bench):
    await bench.verify(stored.write(bench.folder / "first", rows(["four"] * 20)), Options(concurrency=3))
    assert bench.server.__dict__["most"] <= 3
    assert len(bench.read()) == 20


async def test_a_failure_is_no_reward_and_is_tried_anew(bench):
    source = stored.write(
        bench.folder / "first", [*rows(["four", "boom", "nan", "five"]), stored.row(4, 0, 1.0) | {"response": None}]
    )
    found = await bench.verify(source)
    assert (found.verified, found.failures) == (2, {"verifier": 2, "row": 1})
    assert [row["_ng_task_index"] for row in bench.read()] == [0, 3]
    failures = bench.read("failures.jsonl")
    assert [(row["_ng_task_index"], row["kind"]) for row in failures] == [(1, "verifier"), (2, "verifier"), (4, "row")]
    mended = stored.write(bench.folder / "first", rows(["four", "four", "four", "five"]))
    found = await bench.verify(mended, Options(resume=True))
    assert (found.verified, found.skipped) == (2, 2)
    assert [row["reward"] for row in bench.read()] == [1.0, 1.0, 1.0, 0.0]


async def test_nothing_is_overwritten_unasked(bench):
    source = stored.write(bench.folder / "first", rows(["four"]))
    await bench.verify(source)
    with pytest.raises(Refused, match=r"already holds a run; \+resume=true"):
        await bench.verify(source)
    assert (await bench.verify(source, Options(overwrite=True))).verified == 1
    assert len(bench.read()) == 1
    bench.output = source
    with pytest.raises(Refused, match="is the run that is verified anew"):
        await bench.verify(source, Options(overwrite=True))
    assert len(bench.read()) == 1


async def test_another_verifier_does_not_go_on(bench):
    source = stored.write(bench.folder / "first", rows(["four"]))
    await bench.verify(source)
    with pytest.raises(Refused, match="not the run that was started there: limit was None, is 1"):
        await bench.verify(source, Options(resume=True, limit=1))


async def test_the_first_rows_alone(bench):
    await bench.verify(stored.write(bench.folder / "first", rows(["four"] * 5)), Options(limit=2))
    assert [row["_ng_task_index"] for row in bench.read()] == [0, 1]


async def test_rows_that_were_asked_say_what_is_expected(bench):
    """In NeMo Gym's manner: the stored rollouts lack what the verifier needs, and the inputs have it."""
    bare = [{name: value for name, value in row.items() if name != "expected"} for row in rows(["five", "four"])]
    source = stored.write(bench.folder / "first", bare)
    inputs = bench.folder / "inputs.jsonl"
    asked = [
        {"responses_create_params": {"input": "?"}, "expected": "five"},
        {"responses_create_params": {"input": "?"}, "expected": "five"},
    ]
    inputs.write_text("".join(json.dumps(row) + "\n" for row in asked))
    found = await bench.verify(source, inputs=inputs)
    assert found.failures == {}
    assert [row["reward"] for row in bench.read()] == [1.0, 0.0]
    with pytest.raises(Refused, match="inputs: expected a JSONL file"):
        await bench.verify(source, Options(overwrite=True), inputs=bench.folder / "none.jsonl")


@pytest.mark.parametrize("bench", [NeedsMore], indirect=True)
async def test_a_verifier_that_needs_more_is_asked_only_when_it_is_insisted_on(bench):
    source = stored.write(bench.folder / "first", rows(["four"]))
    with pytest.raises(Refused, match="env: does not say that a stored rollout is enough"):
        await bench.verify(source)
    assert not bench.output.exists()
    found = await bench.verify(source, Options(force=True))
    assert found.unsafe == ["env"]
    assert found.output == str(bench.folder / "unsafe_again")
    assert bench.read(output=bench.folder / "unsafe_again")[0]["reward"] == 1.0


async def test_a_verifier_that_is_not_there(tmp_path):
    bench = Bench(tmp_path, "http://127.0.0.1:9", None)
    with pytest.raises(Refused, match="env: does not answer"):
        await bench.verify(stored.write(tmp_path / "first", rows(["four"])))
    await pooled.close()
