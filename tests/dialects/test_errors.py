"""Errors in and out: a backend's words pass, internals do not."""

import pytest

from nemo_gym.dialects import chat, failures, responses
from nemo_gym.exchange.errors import ModelError

OPENAI = b'{"error": {"message": "slow down", "type": "requests", "param": null, "code": "rate_limit_exceeded"}}'


@pytest.mark.parametrize("dialect", [chat, responses])
def test_a_backends_words_pass(dialect):  # A5
    error = dialect.read_error(429, {"Retry-After": "7"}, OPENAI)
    assert (error.status, error.kind, error.retry_after) == (429, "rate_limit", 7.0)
    written = dialect.write_error(error)["error"]
    assert (written["message"], written["type"], written["code"]) == ("slow down", "requests", "rate_limit_exceeded")


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (
            400,
            b'{"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}',
            "invalid",
            "too long",
        ),
        (401, b'{"detail": "no key"}', "auth", "no key"),
        (404, b'{"error": "model not found"}', "not_found", "model not found"),
        (422, b'{"detail": [{"loc": ["body"]}]}', "invalid", '[{"loc":["body"]}]'),
        (500, b"<html>nginx at 10.0.0.3</html>", "backend", "The backend answered with status 500."),
        (503, b"", "overloaded", "The backend answered with status 503."),
        (504, b"[1]", "timeout", "The backend answered with status 504."),
    ],
)
def test_every_shape_of_a_backends_error(status, body, kind, message):
    error = chat.read_error(status, {}, body)
    assert (error.status, error.kind, error.message) == (status, kind, message)


def test_our_own_errors():
    written = responses.write_error(ModelError(404, "not_found", "no such response", param="previous_response_id"))
    assert written == {
        "error": {
            "message": "no such response",
            "type": "not_found_error",
            "param": "previous_response_id",
            "code": None,
            "status": 404,
        }
    }


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0.5", "Retry-After-Ms": "1500"}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:10 GMT"}, 10.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:27:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "1e999"}, None),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
    ],
)
def test_when_to_come_back(headers: dict[str, str], seconds: float | None) -> None:  # A5
    assert failures.retry_after(headers, now=1445412480.0) == seconds
