"""What a call costs: CPU of a model server a call, beside a bare pass-through before the same canned backend.

    python -m benchmarks.server                 # every case
    python -m benchmarks.server --quick         # fewer calls
    python -m benchmarks.server --only chat     # cases whose name has the word
    python -m benchmarks.server --profile chat  # cProfile of our server in that case

The model server runs as `ng_run` runs it: uvicorn, capture on, every record synced before its answer leaves, calls in
rollouts. The bare one is twenty lines on the same uvicorn and the same HTTP client. Both are processes, and
so is the backend; the figures are their CPU times. Ratios are what counts, absolute times are one machine's.

The bare one is there twice, since a pass-through may mean either. `bytes` reads nothing: it passes a reply on as it
came, whatever is in it. `json` reads the request and the reply and writes both anew, with orjson, the fastest library
there is for that. Ours reads both, records both and writes an answer of its own; in `8,000 tokens with ids`
it takes in 811 KB and finds two columns of 8,000 numbers in them (the client, that asked for no log-probs, gets 35 KB).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
from msgspec import Struct

from benchmarks.capture import sync_ms

HOST = "127.0.0.1"
TURNS = 6
"""The two servers are measured in turns, so that what else the machine does burdens both; medians are shown."""
_SENTENCE = "the quick brown fox jumps over the lazy dog and so on for a good while until it is done"
WORDS = _SENTENCE.split()


class Case(Struct):
    name: str
    body: dict[str, Any]
    reply: bytes
    asked: float
    """The highest ratio to the bare server that we ask for."""
    concurrent: int = 64
    calls: int = 6000
    path: str = "/v1/chat/completions"
    ids: bool = False


def text(tokens: int) -> str:
    return " ".join(WORDS[place % len(WORDS)] for place in range(tokens))


def reply(content: str, tokens: int | None = None) -> bytes:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": content},
        "finish_reason": "stop",
        "logprobs": None,
    }
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "m"}
    usage = {"prompt_tokens": 64, "completion_tokens": 200, "total_tokens": 264}
    whole: dict[str, Any] = {**body, "choices": [choice], "usage": usage}
    if tokens is not None:
        choice["logprobs"] = {"content": [entry(n) for n in range(tokens)]}
        choice["token_ids"] = [1000 + n % 30000 for n in range(tokens)]
        whole["prompt_token_ids"] = list(range(64))
    return msgspec.json.encode(whole)


def entry(place: int) -> dict[str, Any]:
    """A token's log-prob as vLLM writes it: with the token's bytes, and a float32 with all the digits of a float64."""
    token = f" {WORDS[place % len(WORDS)]}"
    (logprob,) = array("f", [-0.123456 - place / 1e4])
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}


def cases() -> list[Case]:
    hello = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": text(40)}]
    small = {"model": "m", "messages": hello, "temperature": 1.0}
    tool = {
        "type": "object",
        "properties": {name: {"type": "string", "description": text(8)} for name in ("path", "text", "mode")},
    }
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "description": text(30), "parameters": tool}}
        for n in range(6)
    ]
    turns: list[Any] = [{"role": "system", "content": text(300)}, {"role": "user", "content": text(60)}]
    for n in range(19):
        function = {"name": "tool_1", "arguments": '{"path": "/tmp/x"}'}
        turns.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"c{n}", "type": "function", "function": function}],
            }
        )
        turns.append({"role": "tool", "tool_call_id": f"c{n}", "content": text(80)})
    agent = {"model": "m", "messages": turns, "tools": tools}
    plain = reply(text(200))
    asked = {"model": "m", "max_tokens": 400, "system": "Be kind.", "messages": hello[1:]}
    streamed = {**small, "stream": True}
    spoken = {"model": "m", "input": text(40), "stream": True}
    return [
        Case("chat", small, plain, 2.5),
        Case("chat, streamed", streamed, plain, 2.8),
        Case("chat, streamed, 200 pieces", streamed, reply("x" * 25_600), 5.0),
        Case("agent, 40 messages and 6 tools", agent, plain, 3.0, calls=4000),
        Case("200 tokens with ids", small, reply(text(200), 200), 2.0, calls=4000, ids=True),
        Case("8,000 tokens with ids", small, reply(text(8000), 8000), 1.0, concurrent=16, calls=300, ids=True),
        Case("chat, one at a time", small, plain, 3.0, concurrent=1, calls=1500),
        Case("responses, streamed", spoken, plain, 3.0, path="/v1/responses"),
        Case("responses, streamed, 200 deltas", spoken, reply("x" * 25_600), 5.5, path="/v1/responses"),
        Case("messages", asked, plain, 2.8, path="/v1/messages"),
        Case("messages, streamed", {**asked, "stream": True}, plain, 3.0, path="/v1/messages"),
        Case("messages, agent, streamed", messages_agent(), called(), 3.0, calls=4000, path="/v1/messages"),
    ]


def messages_agent() -> dict[str, Any]:
    """A turn as Claude Code asks for it."""
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "description": text(8)} for name in ("path", "text", "mode")},
    }
    turns: list[Any] = [{"role": "user", "content": [{"type": "text", "text": text(60)}]}]
    for n in range(19):
        call = {"type": "tool_use", "id": f"toolu_{n}", "name": "tool_1", "input": {"path": "/tmp/x"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": text(80), "is_error": False}
        turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return {
        "model": "m",
        "max_tokens": 32000,
        "system": [{"type": "text", "text": text(300), "cache_control": {"type": "ephemeral"}}],
        "messages": turns,
        "tools": [{"name": f"tool_{n}", "description": text(30), "input_schema": schema} for n in range(6)],
        "thinking": {"type": "adaptive"},
        "stream": True,
    }


def called() -> bytes:
    """A reply that thinks and calls a tool."""
    function = {"name": "tool_1", "arguments": '{"path": "/tmp/x", "text": "hello"}'}
    message = {
        "role": "assistant",
        "content": text(20),
        "reasoning_content": text(100),
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}
    usage = {"prompt_tokens": 64, "completion_tokens": 200, "total_tokens": 264}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "m"}
    return msgspec.json.encode({**head, "choices": [choice], "usage": usage})


# ---- the three processes


class Canned(asyncio.Protocol):
    """Answers every request with the same bytes; one that looks at a request's head has an `answered` of its own."""

    answer = b""

    def answered(self, head: bytes) -> bytes:
        return self.answer

    def connection_made(self, transport: Any) -> None:
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            place = head.find(b"content-length:")
            size = int(head[place + 15 :].split(b"\r\n")[0]) if place >= 0 else 0
            if len(self.data) < end + 4 + size:
                return
            self.data = self.data[end + 4 + size :]
            self.transport.write(self.answered(head))


async def backend(sock: socket.socket) -> None:
    data = sys.stdin.buffer.read()
    Canned.answer = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data
    )
    server = await asyncio.get_running_loop().create_server(Canned, sock=sock, backlog=1024)
    await server.serve_forever()


def bare(url: str, parses: bool) -> Any:
    """The yardstick, of bytes or of JSON."""
    from nemo_gym.web.client import close, session

    async def passed(body: bytes) -> tuple[int, bytes]:
        async with session().post(f"{url}/chat/completions", data=body) as response:
            return response.status, await response.read()

    async def parsed(body: bytes) -> tuple[int, bytes]:
        told = orjson.dumps(orjson.loads(body))
        async with session().post(f"{url}/chat/completions", data=told) as response:
            return response.status, orjson.dumps(orjson.loads(await response.read()))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                kind = (await receive())["type"]
                if kind == "lifespan.shutdown":
                    await close()
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message.get("more_body"):
                break
        status, data = await (parsed if parses else passed)(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    return app


def ours(url: str, captures: str, ids: bool) -> Any:
    from nemo_gym.model_server.app import ModelApp
    from nemo_gym.web.peers import ServerClient
    from nemo_gym.web.service import ServerContext
    from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig

    config = VLLMModelConfig(name="policy_model", base_url=url, model="m", return_token_ids=ids)
    context = ServerContext(
        "policy_model", "responses_api_models", "vllm_model", {}, run_id="bench", capture={"dir": captures}
    )
    return ModelApp(VLLMModel(config=config, server_client=ServerClient({})), context)


def role(arguments: argparse.Namespace) -> None:
    import uvloop

    from nemo_gym.web.serve import serve

    sock = socket.socket(fileno=arguments.fd)
    if arguments.role == "backend":
        uvloop.run(backend(sock))
        return
    if arguments.role == "ours":
        app = ours(arguments.url, arguments.captures, arguments.ids)
    else:
        app = bare(arguments.url, parses=arguments.role == "json")
    if not arguments.profile:
        serve(app, sock)
        return
    import cProfile
    import pstats

    profile = cProfile.Profile()
    with contextlib.suppress(SystemExit):
        profile.runcall(serve, app, sock)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)


@contextlib.contextmanager
def process(kind: str, *arguments: str, stdin: bytes = b"") -> Iterator[tuple[int, int]]:
    """Its port and its pid."""
    sock = socket.socket()
    sock.bind((HOST, 0))
    sock.listen(1024)
    argv = [sys.executable, "-m", "benchmarks.server", "--role", kind, "--fd", str(sock.fileno()), *arguments]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[sock.fileno()])
    assert child.stdin is not None
    child.stdin.write(stdin)
    child.stdin.close()
    try:
        yield sock.getsockname()[1], child.pid
    finally:
        sock.close()
        child.terminate()
        child.wait()


# ---- load


def cpu(pid: int) -> float:
    """Seconds of all its threads, in user and system."""
    return sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


async def client(port: int, requests: Iterator[bytes], times: list[float]) -> None:
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 24)
    for request in requests:
        begun = time.perf_counter()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        place = head.find(b"content-length:")
        if place >= 0:
            await reader.readexactly(int(head[place + 15 :].split(b"\r\n")[0]))
        else:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        times.append(time.perf_counter() - begun)
    writer.close()


async def load(port: int, case: Case, calls: int, times: list[float], turn: int) -> None:
    data = msgspec.json.encode(case.body)
    heads = [
        f"POST /ng-rollout/r{turn}-{n}{case.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n".encode()
        for n in range(max(1, calls // 5))
    ]
    requests = (heads[n % len(heads)] + data for n in range(calls))
    await asyncio.gather(*(client(port, requests, times) for _ in range(case.concurrent)))


def measure(port: int, pid: int, case: Case, calls: int, turn: int) -> tuple[float, float]:
    """Milliseconds of CPU a call, and the median of the latency."""
    times: list[float] = []
    begun = cpu(pid)
    asyncio.run(load(port, case, calls, times, turn))
    spent = cpu(pid) - begun
    return spent / calls * 1000, sorted(times)[len(times) // 2] * 1000


def columns(turns: list[list[tuple[float, float]]]) -> tuple[list[list[float]], list[list[float]]]:
    """Of each turn the costs, and of each the latencies."""
    return [[cost for cost, _ in turn] for turn in turns], [[latency for _, latency in turn] for turn in turns]


def run(case: Case, calls: int, profile: bool = False) -> None:
    with contextlib.ExitStack() as stack:
        captures = stack.enter_context(tempfile.TemporaryDirectory())
        port, _ = stack.enter_context(process("backend", stdin=case.reply))
        url = f"http://{HOST}:{port}/v1"
        mine = ["--url", url, "--captures", captures, *(["--ids"] if case.ids else [])]
        served = stack.enter_context(process("ours", *mine, *(["--profile"] if profile else [])))
        if profile:
            measure(*served, case, calls, 0)
            return
        three = [stack.enter_context(process(kind, "--url", url)) for kind in ("bytes", "json")] + [served]
        for one in three:
            measure(*one, case, max(50, calls // 5), 0)
        turns = [[measure(*one, case, calls // TURNS, turn) for one in three] for turn in range(1, TURNS + 1)]
        sync = sync_ms(Path(captures)) if case.concurrent == 1 else 0.0
    costs, latencies = ([statistics.median(of) for of in zip(*column, strict=True)] for column in columns(turns))
    ratios = [statistics.median(turn[2][0] / turn[place][0] for turn in turns) for place in (0, 1)]
    (at_base, _, at_made), beside = latencies, zip(ratios, ("bytes", "json"), strict=True)
    above = " and ".join(kind for ratio, kind in beside if ratio > case.asked)
    print(
        f"{case.name:32s}" + "".join(f" {cost:7.3f}" for cost in costs) + "".join(f" {ratio:7.2f}" for ratio in ratios),
        f"{case.asked:7.1f}   {at_base:7.2f} {at_made:7.2f}{above and f'   above, beside {above}'}",
        flush=True,
    )
    if case.concurrent == 1:
        beyond = at_made - at_base - sync
        print(f"    latency beyond the bare one's and a sync of {sync:.2f} ms: {beyond:.2f} ms (asked for: 0.50)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--profile", nargs="?", const="", default=None, metavar="CASE")
    for hidden in ("--role", "--url", "--captures"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ids", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        arguments.profile = arguments.profile is not None
        role(arguments)
        return
    if arguments.profile is not None:
        run(next(case for case in cases() if case.name == (arguments.profile or "chat")), 2000, profile=True)
        return
    names = ("bytes", "json", "ours", "ratio", "json's", "asked")
    print(f"{'CPU of the server a call, ms':32s} " + " ".join(f"{name:>7s}" for name in names) + "   latency, ms")
    for case in cases():
        if arguments.only in case.name:
            run(case, case.calls // 6 if arguments.quick else case.calls)


if __name__ == "__main__":
    main()
