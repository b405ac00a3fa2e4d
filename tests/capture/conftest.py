"""`records` is imported by its bare name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def no_sealer(monkeypatch):
    """Closed shards stay streams."""
    from nemo_gym.capture.sealing import Sealer

    monkeypatch.setattr(Sealer, "put", lambda self, path: None)
