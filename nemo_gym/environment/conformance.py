"""The contract of sessions that a caller opens under an id of its own, tried on an environment's app by its routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from .episodes import (
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionRequest,
    ResourcesSeedSessionResponse,
)


def check_resources_session_contract(app: FastAPI, seed: ResourcesSeedSessionRequest, *, keeps_state: bool) -> None:
    """Seeds twice and closes twice, and closes what was never seeded. Raises AssertionError for what does not hold.

    Args:
        seed: under an id that the app has not seen.
        keeps_state: whether a seed that comes after its close must be refused.
    """
    from fastapi.testclient import TestClient  # needs httpx, which tests have

    client = TestClient(app, raise_server_exceptions=False)
    stranger = seed.model_copy(update={"resources_session_id": f"{seed.resources_session_id}-never-seeded"})

    def post(path: str, body: ResourcesSeedSessionRequest | ResourcesCloseSessionRequest) -> Any:
        return client.post(path, json=body.model_dump(mode="json"))

    for time in ("first", "second"):
        answer = post("/seed_session", seed)
        assert answer.status_code == 200, f"the {time} seed answered {answer.status_code}: {answer.text}"
        seeded = ResourcesSeedSessionResponse.model_validate(answer.json())
        assert seeded.resources_session_id == seed.resources_session_id, f"the {time} seed named another session"
    for session, times in ((seed, ("first", "second")), (stranger, ("stranger's",))):
        for time in times:
            asked = ResourcesCloseSessionRequest(
                resources_session_id=session.resources_session_id, episode_id=session.episode_id
            )
            answer = post("/close_session", asked)
            assert answer.status_code == 200, f"the {time} close answered {answer.status_code}: {answer.text}"
            closed = ResourcesCloseSessionResponse.model_validate(answer.json())
            assert closed.resources_session_id == session.resources_session_id, f"the {time} close named another"
    for late in (seed, stranger) if keeps_state else ():
        answer = post("/seed_session", late)
        assert answer.status_code >= 400, f"{late.resources_session_id} was seeded after its close"
