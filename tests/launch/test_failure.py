"""What a server said of its own failure is found in its log, as people and as machines read that."""

import logging

import pytest

from nemo_gym.launch.failure import own_reason
from nemo_gym.web.logs import Lines


def written(form, message, **fields):
    record = logging.makeLogRecord({"name": "nemo_gym.model_server", "levelname": "CRITICAL", "msg": message, **fields})
    return Lines((), form).format(record)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_server_s_own_reason_is_told_in_its_lines(form):
    told = "RuntimeError: Ray has no room for vllm-0: it wants {'GPU': 1.0}\nno GPU: num_gpus: 0 runs vLLM's CPU build"
    last = written(form, f"policy_model could not start: {told}", _ray_timestamp_ns=17, call_id="c1")
    assert "_ray_timestamp_ns" not in last
    assert own_reason(f"INFO: begun\n{last}\nINFO: Shutting down\n") == told


@pytest.mark.parametrize("log", ["", "Traceback\nRuntimeError: no", "{not json", '{"level": "INFO", "message": "x"}'])
def test_a_log_that_tells_none_has_none(log):
    assert own_reason(log) == ""
    assert own_reason("2026-01-01T00:00:00.000Z WARNING x: y could not start: z") == ""
