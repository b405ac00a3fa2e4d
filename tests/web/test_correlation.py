"""A call's rollout, as the caller said it (C4)."""

import pytest

from nemo_gym.web.correlation import api_key, rollout_path, session_id, split_rollout


def test_nothing_said():
    assert split_rollout("/v1/responses", {}) == (None, "/v1/responses")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/ng-rollout/r-1/v1/responses", {}),
        ("/v1/responses", {"x-ng-rollout-id": "r-1"}),
        ("/v1/responses", {"authorization": "Bearer ng-rollout:r-1"}),
        ("/v1/responses", {"authorization": "bearer ng-rollout:r-1:sk-abc"}),
        ("/v1/responses", {"x-api-key": "ng-rollout:r-1:sk:with:colons"}),
        ("/ng-rollout/r-1/v1/responses", {"x-ng-rollout-id": "r-1", "authorization": "Bearer ng-rollout:r-1"}),
    ],
)
def test_each_place_and_all_at_once(path, headers):  # C4
    assert split_rollout(path, headers) == ("r-1", "/v1/responses")
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert split_rollout(path, raw) == ("r-1", "/v1/responses")


def test_prefix_alone():
    assert split_rollout("/ng-rollout/r-1", {}) == ("r-1", "/")
    assert split_rollout("/ng-rollout/r-1/", {}) == ("r-1", "/")


@pytest.mark.parametrize("bad", ["", "a b", "a/../b", "..", "ä", "x" * 129, "a%2fb", "a\n"])
def test_bad_ids_are_the_callers_fault(bad):  # C4
    with pytest.raises(ValueError, match="rollout id"):
        split_rollout("/v1/responses", {"x-ng-rollout-id": bad})
    if bad:
        with pytest.raises(ValueError, match="may only have"):
            rollout_path(bad, "/v1/responses")


def test_disagreement():  # C4
    with pytest.raises(ValueError, match="the path names rollout 'r-1', but the header x-ng-rollout-id names 'r-2'"):
        split_rollout("/ng-rollout/r-1/v1/responses", {"x-ng-rollout-id": "r-2"})
    with pytest.raises(ValueError, match="but the API key names 'r-2'"):
        split_rollout("/ng-rollout/r-1/v1/responses", {"authorization": "Bearer ng-rollout:r-2:key"})


def test_other_keys_say_nothing_of_rollouts():
    assert split_rollout("/v1/responses", {"authorization": "Bearer sk-abc"}) == (None, "/v1/responses")
    assert api_key({"authorization": "Bearer sk-abc"}) == "sk-abc"
    assert api_key({"authorization": "Bearer ng-rollout:r-1:sk-abc"}) == "sk-abc"
    assert api_key({"authorization": "Bearer ng-rollout:r-1"}) is None
    assert api_key({}) is None


def test_path_within_a_rollout():
    assert rollout_path("r-1", "/v1/responses") == "/ng-rollout/r-1/v1/responses"
    assert rollout_path(None, "/v1/responses") == "/v1/responses"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([(b"x-claude-code-session-id", b"0b1c-2")], "0b1c-2"),
        ([(b"session-id", b"codex-1"), (b"thread-id", b"t")], "codex-1"),
        ([(b"x-session-id", b"ses_1")], "ses_1"),
        ([(b"x-session-id", b"a b"), (b"session_id", b"good")], "good"),
        ([(b"x-session-id", b"../etc")], None),
        ([(b"traceparent", b"00-1-2-01")], None),
        ([], None),
    ],
)
def test_a_clients_own_session(headers, found):  # C4
    assert session_id(headers) == found
