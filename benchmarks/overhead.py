"""What does a whole run cost beside its own drain time?

    python -m benchmarks.overhead [--rounds 3]

Wall time of ``loadtest run`` (start, flood, dead letters, judging, report) over the time
from its first send to its last settled message, which the verdict states. Once with the
default plan, whose conflicts and poison wait for their visibility timeouts, and once
without them, where the drain is short and the fixed cost shows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time


def one(out: str, *flags: str) -> tuple[float, float]:
    """Seconds of the whole run, and of its drain."""
    began = time.perf_counter()
    argv = [sys.executable, "-m", "loadtest", "run", "--json", "--out", out, *flags]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True)
    wall_s = time.perf_counter() - began
    return wall_s, json.loads(ended.stdout)["timing"]["duration_ns"] / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    plain = ("--conflicts", "0", "--poison", "0")
    for name, flags in (("default plan", ()), ("no conflicts, no poison", plain)):
        with tempfile.TemporaryDirectory() as out:
            measured = [one(out, *flags) for _ in range(asked.rounds)]
        wall_s, drain_s = (statistics.median(column) for column in zip(*measured, strict=True))
        print(
            f"{name:24} whole run {wall_s:5.1f} s, drain {drain_s:5.1f} s, "
            f"beside it {wall_s - drain_s:4.1f} s, ratio {wall_s / drain_s:.2f}"
        )


if __name__ == "__main__":
    main()
