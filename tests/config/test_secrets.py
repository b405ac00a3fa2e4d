"""No secret is in a dump, however it came into the configuration."""

from nemo_gym.config.secrets import MASK, masked, secret_name


def test_names():
    for name in (
        "api_key",
        "policy_api_key",
        "api-key",
        "hf_token",
        "admin_key",
        "Authorization",
        "password",
        "x-api-key",
    ):
        assert secret_name(name), name
    for name in (
        "max_tokens",
        "max_output_tokens",
        "return_token_ids",
        "tokenizer",
        "keepalive_s",
        "model",
        "token_rows",
    ):
        assert not secret_name(name), name


def test_masked_by_name_by_origin_and_by_content():
    config = {
        "m": {
            "api_key": "sk-abcdef",
            "api_keys": ["k-1", "k-2"],
            "base_url": "http://user:pw@host/v1?x=sk-abcdef",
            "org": "from-the-environment",
            "note": "uses from-the-environment",
            "max_output_tokens": 128,
            "default_headers": {"Authorization": "Bearer zzz", "X-Trace": "1"},
            "token": None,
        },
    }
    written = {"m": {**config["m"], "org": "${oc.env:ORG}"}}
    assert masked(config, written) == {
        "m": {
            "api_key": MASK,
            "api_keys": [MASK, MASK],
            "base_url": f"http://{MASK}@host/v1?x={MASK}",
            "org": MASK,
            "note": f"uses {MASK}",
            "max_output_tokens": 128,
            "default_headers": {"Authorization": MASK, "X-Trace": "1"},
            "token": None,
        },
    }
