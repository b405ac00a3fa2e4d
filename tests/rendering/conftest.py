import os
from pathlib import Path

import pytest

MODEL = Path(os.environ.get("NEMO_GYM_TEST_MODEL", Path(__file__).parents[2] / "models" / "tiny_policy"))


@pytest.fixture(scope="session")
def renderer():
    pytest.importorskip("tokenizers")
    from nemo_gym.rendering.renderer import TemplateRenderer

    return TemplateRenderer(MODEL)
