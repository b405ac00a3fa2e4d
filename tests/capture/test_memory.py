"""What a writer remembers is bounded: a long run of calls takes no more memory than a short one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_PROGRAM = """
import json, pathlib, sys
from benchmarks.capture import resident_after
print(json.dumps(resident_after(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))))
"""


@pytest.mark.nightly
def test_a_long_run_of_small_calls_takes_no_more_memory(tmp_path):
    argv = [sys.executable, "-c", _PROGRAM, str(tmp_path), "[10000, 20000, 200000]"]
    first, settled, last = json.loads(subprocess.run(argv, check=True, capture_output=True, timeout=3000).stdout)
    assert last - settled < 8 << 20  # digests that were kept for ever would be over 30 MiB
    assert last - first < 24 << 20
