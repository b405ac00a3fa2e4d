"""How long the first hour's two runs take: `python -m benchmarks.quickstart`.

Clones the checkout into a fresh folder, runs `./quickstart` there twice, and prints the seconds of each and the ratio.
The package cache is whatever it is; say which when you quote a figure.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def timed(folder: Path) -> float:
    began = time.monotonic()
    subprocess.run(["./quickstart"], cwd=folder, check=True)
    return time.monotonic() - began


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        first, second = timed(clone), timed(clone)
    load = os.getloadavg()[0]
    print(f"first run {first:.0f} s, second run {second:.0f} s, ratio {first / second:.1f}; load {load:.1f}")


if __name__ == "__main__":
    main()
