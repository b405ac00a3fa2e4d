"""Made-up rollouts: calls by difference for the forest, and whole jobs with real captures for the export."""

from __future__ import annotations

import asyncio
import itertools
import json
from array import array

import pyarrow.parquet as pq

from nemo_gym.capture import CallRecord, ShardWriter, Times
from nemo_gym.exchange.parts import Message, Reasoning, Text, ToolCall, ToolResult
from nemo_gym.exchange.reply import Choice, ModelReply, TokenTrace, Usage
from nemo_gym.exchange.request import ModelRequest, Sampling
from nemo_gym.exchange.tools import Tool
from nemo_gym.export.captured import CapturedCall, Spoken
from nemo_gym.export.exporter import export
from nemo_gym.export.options import Options

CLOCK = itertools.count(1)


def spoken(ids, index=0, versions=((0, 7),)):
    logprobs = array("f", [-float(token) for token in ids])
    return Spoken(index, array("i", ids).tobytes(), logprobs.tobytes(), versions, b"")


def captured(prompt, *said, call=None, parent=None, shared=0, choice=0, relation="first", **fields):
    """A call whose prompt goes on from the first `shared` tokens of its parent's choice."""
    moment = next(CLOCK)
    values = {
        "call_id": call or f"call-{moment}",
        "run_id": "run",
        "rollout_id": "r",
        "parent_call_id": parent,
        "relation": relation,
        "server": "policy_model",
        "trainable": True,
        "status": "answered",
        "model": "tiny",
        "received_at": float(moment),
        "usage": (None, None, None),
        "messages": 1,
        "shared": shared,
        "shared_choice": choice,
        "new_prompt": array("i", prompt).tobytes(),
        "choices": tuple(one if isinstance(one, Spoken) else spoken(one, index) for index, one in enumerate(said)),
        "prefix_break": None,
        "shard": None,
        "writer": "policy_model-1",
    }
    return CapturedCall(**(values | fields))


def record(rollout_id, prompt, ids, *, messages=None, said=None, tools=(), version=3, **more):
    """One call as a model server records it."""
    moment = float(next(CLOCK))
    tokens = None
    if ids is not None:
        tokens = TokenTrace(array("i", ids), array("f", [-0.25] * len(ids)), ((0, version),))
    reply = ModelReply(
        f"resp_{moment}",
        "tiny",
        1,
        (Choice(0, (Text("said"),) if said is None else tuple(said), "stop", tokens),),
        usage=Usage(None if prompt is None else len(prompt), None if ids is None else len(ids), cached=0),
        prompt_ids=None if prompt is None else array("i", prompt),
    )
    asked = tuple(messages) if messages is not None else (Message("user", (Text("hi"),)),)
    request = ModelRequest(asked, tuple(tools), sampling=Sampling(temperature=0.7))
    fields = {
        "call_id": f"call-{moment}",
        "run_id": "run",
        "rollout_id": rollout_id,
        "attempt": 1,
        "session_id": None,
        "parent_call_id": None,
        "relation": "first",
        "server": "policy_model",
        "dialect": "responses",
        "backend_dialect": None,
        "streamed": False,
        "times": Times(moment, moment, moment, moment),
        "attempts": (),
        "status": "answered",
        "trainable": True,
        "received": request,
        "sent": request,
        "reply": reply,
        "error": None,
        "logprobs_mode": "processed",
    }
    return CallRecord(**(fields | more))


TOOL = Tool("get_weather", "Get the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
ASK = Message("user", (Text("Weather in Prague?"),))
SYSTEM = Message("developer", (Text("Be brief."),))


def called(rollout_id, city="Prague"):
    return ToolCall("get_weather", json.dumps({"city": city}), f"call_{rollout_id}")


def two_turns(rollout_id, said="It is sunny.", city="Prague"):
    """A call of a tool, then an answer; the second prompt continues the first, id by id."""
    call = called(rollout_id, city)
    first = record(rollout_id, [1, 2], [3, 4], messages=[SYSTEM, ASK], said=[Reasoning("hm"), call], tools=[TOOL])
    history = [SYSTEM, ASK, Message("assistant", (call,)), Message("tool", (ToolResult(call.call_id, (Text("sun"),)),))]
    second = record(
        *(rollout_id, [1, 2, 3, 4, 5], [6, 7]),
        messages=history,
        said=[Text(said)],
        tools=[TOOL],
        parent_call_id=first.call_id,
        relation="turn",
    )
    return first, second


class Job:
    """A job's folder: its journal and its captures."""

    def __init__(self, folder):
        self.folder = folder
        self.rows = []
        self.steps = []
        """(writer, a record, or a rollout's id to be sealed)."""

    def rollout(self, rollout_id, *records, reward=1.0, task=0, calls=None, incomplete=None, **more):
        self.steps += [("policy_model", one) for one in records]
        said = {"calls": len(records) if calls is None else calls, "incomplete": incomplete, "seconds": 1.5}
        row = {
            "_ng_task_index": task,
            "_ng_rollout_index": 0,
            "_ng_rollout_id": rollout_id,
            "_ng_rollout": said,
            "agent_ref": {"name": "agent"},
            "reward": reward,
        }
        self.rows.append(row | more)

    def record(self, *records, writer="policy_model"):
        self.steps += [(writer, one) for one in records]

    def seal(self, rollout_id, writer="policy_model"):
        self.steps.append((writer, rollout_id))

    def write(self):
        async def commit():
            writers = {}
            for name, one in self.steps:
                if name not in writers:
                    writers[name] = ShardWriter(str(self.folder / "captures" / name), name, "run", "none")
                await (writers[name].seal(one) if isinstance(one, str) else writers[name].commit(one))
            for writer in writers.values():
                writer.close()

        (self.folder / "captures").mkdir(exist_ok=True)
        asyncio.run(commit())
        (self.folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def export(self, **options):
        """The summary, and the token rows."""
        self.write()
        return self.again(**options)

    def again(self, **options):
        summary = export(self.folder, ["token_rows"], options=Options(**options))
        return summary, pq.read_table(self.folder / "exports" / "token_rows").to_pylist()

    def lines(self, name, **options):
        """The rows of a format of JSON lines."""
        self.write()
        export(self.folder, [name], options=Options(**options))
        return read_lines(self.folder / "exports" / name)


def read_lines(folder):
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
