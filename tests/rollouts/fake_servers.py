"""One process that plays agent and model server, over real HTTP, by the wishes in each row.

As a script it prints its URL and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse


class Fake:
    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.calls: Counter[str] = Counter()
        self.runs: list[tuple[int, int]] = []
        self.plays: Counter[tuple[int, int]] = Counter()
        self.seals: dict[str, Any] = {}
        self.sealing: Any = None
        self.capabilities: dict[str, Any] = {"status": "ready"}
        self.running = 0
        self.most_running = 0
        self.cancelled = 0

    def app(self) -> FastAPI:
        app = FastAPI()
        app.post("/run")(self.run)
        app.post("/ng-rollout/{rollout_id}/seal")(self.seal)
        app.get("/ready")(self.ready)
        app.get("/seals")(self.all_seals)
        return app

    async def run(self, request: Request) -> Any:
        row = await request.json()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._play(row)
        finally:
            self.running -= 1

    async def _play(self, row: dict[str, Any]) -> Any:
        task, repeat = row["_ng_task_index"], row["_ng_rollout_index"]
        self.runs.append((task, repeat))
        self.calls[row["_ng_rollout_id"]] += row.get("model_calls", 2)
        wish = row.get("wish")
        self.plays[task, repeat] += 1
        if self.plays[task, repeat] > row.get("fails", 1 << 30):
            wish = None
        if wish == "hang":
            await asyncio.sleep(60)
        if wish == "500":
            return PlainTextResponse("Internal Server Error", status_code=500)
        if wish == "model":
            return JSONResponse({"error": {"kind": "model", "message": "overloaded"}}, status_code=502)
        if wish == "garbage":
            return PlainTextResponse("\x00<html>")
        if wish == "list":
            return JSONResponse([1])
        if wish == "no reward":
            return JSONResponse({"response": {}})
        if wish == "judge":
            failed = {"_ng_failure_class": "judge_failed", "failure_reason": "TimeoutError: too slow"}
            return JSONResponse({"reward": 0.0, "mask_sample": True, **failed})
        if wish == "nan":
            return PlainTextResponse('{"reward": NaN}', media_type="application/json")
        if wish == "say":
            return PlainTextResponse(row["say"], media_type="application/json")
        if wish == "cut":
            return PlainTextResponse("x" * 10, headers={"content-length": "1000"})
        await asyncio.sleep(self.delay)
        usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
        reward = row.get("rewards", [1.0])[repeat % len(row.get("rewards", [1.0]))]
        response = {"output": row.get("output", []), "usage": usage, "model": row.get("model", "m")}
        return {"reward": reward, "response": response, "mask_sample": row.get("mask", False)}

    async def seal(self, rollout_id: str, request: Request) -> Any:
        body = await request.json()
        self.seals[rollout_id] = body["incomplete"]
        if self.sealing is not None:
            return self.sealing
        calls = [f"{rollout_id}/{number}" for number in range(self.calls[rollout_id])]
        return {"rollout_id": rollout_id, "call_ids": calls, "digest": "d", "incomplete": body["incomplete"]}

    async def ready(self) -> Any:
        return self.capabilities

    async def all_seals(self) -> Any:
        return self.seals


def main() -> None:
    from tests.loopback import listening

    sock = listening()
    print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    config = uvicorn.Config(Fake(float(sys.argv[1])).app(), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main()
