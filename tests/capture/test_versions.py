"""A shard of each version that was ever written is read, from now on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nemo_gym.capture import CaptureStore, from_json
from nemo_gym.capture.schema import VERSION

SHARDS = Path(__file__).parent / "shards"


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_shard_of_each_version_is_read(tmp_path, version):
    shutil.copy(SHARDS / f"v{version}.arrows", tmp_path / "policy-1-0.arrows")
    store = CaptureStore(tmp_path)
    written = [from_json(one) for one in json.loads((SHARDS / f"v{version}.json").read_text())]
    read = list(store.calls())
    assert read == written
    assert [one.received and one.received.origin.body for one in read] == [
        one.received and one.received.origin.body for one in written
    ]
    report = store.verify()
    assert (report.problems, report.open, report.unsealed) == ([], [], [])
    assert report.incomplete == {"r2": "backend_error"}
    assert store.table(["prompt_ids"], "r1").column(0).to_pylist()[2] == list(written[2].reply.prompt_ids)
    assert all(receipt.delivered for receipt in store.receipts().values())
    assert len(store.receipts()) == len(written)
