"""Does a long run with all faults at once lose anything, or leak?

    python -m benchmarks.fault_soak [--messages 50000] [--seed 1]

The reference handler under a mix of every fault that its calls can meet, at rates as they
are in production and somewhat above, with a redrive and the whole plan sent again at the
end. It must PASS, or be INCONCLUSIVE for what cannot be known; nothing may be lost. Prints
what fired, the time, and the tester's memory, open descriptors and processes: while it was
going, and what was left when it had ended. Exit 1 for a finding, a loss or a leak.

Linux: memory and descriptors are read from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_SAMPLE_EVERY_S = 1.0
_COPIES = 5

# partial-batch-write and the three faults of transactions need calls that the reference
# handler does not make, a stale read needs a read, and the message cannot stand twice in a
# batch of one.
_FAULTS = """
[faults]
lost-reply = 0.01
lost-request = 0.01
throttle = 0.01
server-error = [{ rate = 0.005 }, { rate = 0.005, option = "applied" }]
access-denied = 0.001
slow = { rate = 0.02, seconds = [0.01, 0.2], option = "tail" }
crash = 0.003
timeout = 0.0005
freeze = { rate = 0.002, seconds = 0.2 }
cold-start = 0.001
clock = 0.1
redeliver-during = 0.01
redeliver-after = 0.01
short-visibility = 0.005
receive-without-run = 0.005
out-of-order = 0.02
delete-fails = 0.005
long-delay = { rate = 0.01, seconds = 2 }
redrive = true
resend = true
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        return _soak(Path(directory), asked.messages // _COPIES, asked.seed)


def _soak(directory: Path, orders: int, seed: int) -> int:
    faults = directory / "faults.toml"
    faults.write_text(_FAULTS)
    argv = [sys.executable, "-m", "loadtest", "run", "--faults", str(faults), "--json"]
    argv += ["--orders", str(orders), "--seed", str(seed), "--out", str(directory / "runs")]
    began = time.monotonic()
    samples: list[tuple[float, int, int, int]] = []
    log = directory / "log"
    with (directory / "out").open("wb") as out, log.open("wb") as err:
        environment = {**os.environ, "ONCEPROOF_SOAK": str(directory)}
        tester = subprocess.Popen(argv, stdout=out, stderr=err, env=environment)
        while tester.poll() is None:
            if (sample := _sample(tester.pid)) is not None:
                samples.append((time.monotonic() - began, *sample))
            time.sleep(_SAMPLE_EVERY_S)
    took_s = time.monotonic() - began
    print(f"exit {tester.returncode} after {took_s:.0f} s")
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        at_s, rss_mb, descriptors, children = samples[int(share * len(samples))]
        print(
            f"at {at_s:5.0f} s: {rss_mb} MB, {descriptors} descriptors, {children} child processes"
        )
    text = (directory / "out").read_text()
    if not text:
        print(log.read_text()[-4000:])
        return 1
    verdict = json.loads(text)
    print(verdict["verdict"], *verdict["reasons"])
    for name, count in verdict["counts"].items():
        print(f"  {name} {count}")
    for rule in verdict["exposure"]["faults"]:
        print(f"  fault {json.dumps(rule)}")
    found = {check["kind"]: check["count"] for check in verdict["checks"] if check["count"]}
    left = _processes(str(directory))
    print(f"findings {found or 'none'}; processes left {len(left)}")
    return 0 if not found and verdict["verdict"] != "FAIL" and not left else 1


def _sample(pid: int) -> tuple[int, int, int] | None:
    """Resident memory in MB, open descriptors and children; None when it has just ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - no Path per entry
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20, descriptors, len(children)


def _processes(directory: str) -> set[int]:
    """Processes that name this soak's directory: helpers inherit it, a handler's HOME is in it."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes()
            except OSError:
                continue
            if directory.encode() in variables:
                found.add(int(entry.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
