"""Does the verdict rest on luck? Many seeds of correct handlers and of wrong ones.

    python -m benchmarks.soak [--seeds 50] [--planted-seeds 20] [--fault-seeds 20]
        [--matrix-seeds 5] [--first-seed 1]

The reference handler must PASS every time; two planted bugs under the default flood must
FAIL every time with ``overwrite`` and ``conflict-acknowledged``; and ``loadtest mutants``
must catch every planted bug and blame no twin: those that need a fault, which must stay
hidden without it, and then all of them. Exit 1 at the first that does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.planted import PLANTED as BUGS

PLANTED = Path(__file__).parent.parent / "consumer" / "planted"

# Short waits for what fails on purpose; the flood itself is the default one.
_CONFIG = """
[handler]
code = "{code}"
handler = "{handler}"
timeout = 1
[handler.environment]
TABLE_NAME = "{{table:orders}}"
[queue]
visibility_timeout = 1
max_receive_count = 2
[[table]]
name = "orders"
key = "id"
[order]
key = "id"
body = '{{"id": "{{id}}", "quantity": {{quantity}}}}'
conflict = ["quantity"]
[order.quantity]
integer = [1, 10]
[result]
processed = "processed"
duplicate = "duplicate"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--planted-seeds", type=int, default=20)
    parser.add_argument("--fault-seeds", type=int, default=20)
    parser.add_argument("--matrix-seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    asked = parser.parse_args()
    cases = [
        (PLANTED.parent, "app.handler", asked.seeds, set[str]()),
        (PLANTED, "read_then_write.handler", asked.planted_seeds, _EXPECTED),
        (PLANTED, "unconditional.handler", asked.planted_seeds, _EXPECTED),
    ]
    with tempfile.TemporaryDirectory() as directory:
        ends = [_case(Path(directory), *case, asked.first_seed) for case in cases]
    need_a_fault = [bug.name for bug in BUGS if bug.faults]
    ends.append(_matrix(asked.fault_seeds, asked.first_seed, need_a_fault))
    return max(*ends, _matrix(asked.matrix_seeds, asked.first_seed, []))


_EXPECTED = {"overwrite", "conflict-acknowledged"}


def _case(
    directory: Path, code: Path, handler: str, seeds: int, expected: set[str], first: int
) -> int:
    config = directory / f"{handler}.toml"
    config.write_text(_CONFIG.format(code=code, handler=handler))
    began = time.monotonic()
    fewest: int | None = None
    for seed in range(first, first + seeds):
        argv = [sys.executable, "-m", "loadtest", "run", "--config", str(config)]
        argv += ["--seed", str(seed), "--out", str(directory), "--json"]
        ended = subprocess.run(argv, capture_output=True, text=True, check=False)
        verdict = json.loads(ended.stdout or "{}")
        found = {check["kind"] for check in verdict.get("checks", ()) if check["count"]}
        word = verdict.get("verdict", "no verdict")
        if word != ("FAIL" if expected else "PASS") or not expected <= found:
            print(f"{handler} seed {seed}: {word}, found {sorted(found)}\n{ended.stderr}")
            return 1
        pairs = verdict["exposure"]["overlapping_pairs"]
        fewest = pairs if fewest is None else min(fewest, pairs)
    what = f"FAIL with {', '.join(sorted(expected))}" if expected else "PASS"
    if seeds == 0:
        return 0
    print(
        f"{handler}: {what} for {seeds} seeds in a row; at least {fewest} overlapping pairs "
        f"a run; {(time.monotonic() - began) / seeds:.1f} s a run",
        flush=True,
    )
    return 0


def _matrix(seeds: int, first: int, only: Sequence[str]) -> int:
    for seed in range(first, first + seeds):
        argv = [sys.executable, "-m", "loadtest", "mutants", "--json", "--seed", str(seed)]
        for name in only:
            argv += ["--only", name]
        ended = subprocess.run(argv, capture_output=True, text=True, check=False)
        if ended.returncode:
            print(f"mutants seed {seed}: exit {ended.returncode}\n{ended.stderr}")
            return 1
        matrix = json.loads(ended.stdout)
        print(
            f"mutants seed {seed}: {matrix['caught']} bugs caught, no twin blamed, "
            f"{matrix['seconds']:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
