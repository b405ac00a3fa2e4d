"""What scripts and agents import beside the servers: the profiler's files, a prompt with its picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from nemo_gym.profiling import Profiler
from nemo_gym.prompt import PromptConfig
from nemo_gym.vision_input import build_image_input


def busy_with_sums() -> int:
    return sum(number * number for number in range(1000))


def test_functions_are_in_the_log_that_bear_the_word(tmp_path: Path) -> None:
    profiler = Profiler(name="server", base_profile_dir=tmp_path / "profiles", required_str="busy_with_sums")
    profiler.start()
    busy_with_sums()
    len("other")
    profiler.stop()
    log = (tmp_path / "profiles" / "server.log").read_text()
    assert "busy_with_sums" in log
    assert "cumtime" in log
    assert "built-in method builtins.len" not in log
    assert (tmp_path / "profiles" / "server.pstats").stat().st_size > 0
    with pytest.raises(ValidationError, match="without spaces"):
        Profiler(name="my server", base_profile_dir=tmp_path)


@pytest.mark.parametrize(("image", "url"), [("AAAA", "data:image/png;base64,AAAA"), ("data:x", "data:x")])
def test_a_picture_stands_beside_the_question(image: str, url: str) -> None:
    config = PromptConfig(system="Be brief.", user="Q: {question}")
    assert build_image_input(config, "What is it?", image) == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Q: What is it?"},
                {"type": "input_image", "image_url": url, "detail": "high"},
            ],
        },
    ]
    assert build_image_input(config, "What is it?", "")[1] == {"role": "user", "content": "Q: What is it?"}
