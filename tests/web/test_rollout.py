"""The rollout under which an environment is called: taken off the path, and known while the route runs."""

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from nemo_gym.rollout_correlation import (
    RolloutContextMiddleware,
    current_rollout_id,
    maybe_rollout_id_from_run_body,
    rollout_context,
)


def test_a_prefix_is_taken_off_and_known_within():
    app = FastAPI()
    app.add_middleware(RolloutContextMiddleware)

    @app.get("/who")
    async def who():
        return current_rollout_id()

    with TestClient(app) as client:
        assert client.get("/ng-rollout/r-1/who").json() == "r-1"
        assert client.get("/who").json() is None
        assert client.get("/ng-rollout/b%20d/who").status_code == 404
    assert current_rollout_id() is None


def test_contexts_are_nested():
    with rollout_context("a"):
        with rollout_context("b"):
            assert current_rollout_id() == "b"
        assert current_rollout_id() == "a"


@pytest.mark.parametrize(
    ("body", "rollout_id"),
    [
        ({"_ng_rollout_id": "x.1", "_ng_task_index": 3}, "x.1"),
        ({"_ng_task_index": 3, "_ng_rollout_index": 0}, "3-0"),
        ({"_ng_task_index": 3, "_ng_rollout_index": 0, "_ng_attempt_index": 2}, "3-0-a2"),
        ({"_ng_task_index": 3}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_id_of_a_run_body(body, rollout_id):
    assert maybe_rollout_id_from_run_body(body) == rollout_id


def test_an_id_that_no_path_carries_is_refused():
    with pytest.raises(ValueError, match="_ng_rollout_id: expected letters"):
        maybe_rollout_id_from_run_body({"_ng_rollout_id": "a/b"})
