"""Is the judge right? Simulated runs of known truth, judged by the SQL and by the oracle.

    python -m benchmarks.ground_truth [--worlds 200000] [--set 500] [--seed 1]

Half of the sets hold planted bugs (on half of their orders), a quarter are clean, a quarter
were cut off at any moment. All of them meet faults (lost replies and requests, throttling,
crashes, receives without a run, redrives, a message twice in a batch, items that somebody
deleted), and half of them declare a side effect. Exactly what was planted must be found,
nothing in clean sets, and the oracle must agree with the SQL on every set. Exit 1 with the
places of whatever is not so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from analysis.checks import run_checks, sql_of
from analysis.findings import CheckStatus
from analysis.schema import RunStatus
from analysis.store import Evidence, open_evidence
from tests import oracle
from tests.histories import write_rows
from tests.plants import PLANTS
from tests.simulator import EvidenceSet, Found, random_set

CUT_OFF = (RunStatus.RUNNING, RunStatus.INTERRUPTED, RunStatus.NOT_DRAINED)
WHOLE = (RunStatus.FINISHED,)


def judged(evidence_set: EvidenceSet) -> tuple[set[Found], set[str]]:
    """What the SQL finds, and the keys of the items about which it leaves a question open."""
    found: set[Found] = set()
    with tempfile.TemporaryDirectory() as directory:
        write_rows(Path(directory), evidence_set.rows, evidence_set.run)
        with open_evidence(Path(directory)) as evidence:
            assert not evidence.notes, evidence.notes
            for report in run_checks(evidence):
                assert report.status is not CheckStatus.CRASHED, report.note
                if report.status is not CheckStatus.FOUND:
                    continue
                # All of them: a report shows no more than the first hundred.
                rows = evidence.rows(sql_of(report.kind))
                found |= {(report.kind, key_of(row)) for row in rows}
            return found, open_items(evidence)


def key_of(row: dict[str, Any]) -> str:
    """What a finding is about: the order, or the item where there is no order."""
    return str(row["order_key"] or row.get("item_key", ""))


def open_items(evidence: Evidence) -> set[str]:
    return {str(row["item_key"]) for row in evidence.rows("SELECT item_key FROM unresolved")}


@dataclass(slots=True)
class Score:
    """``misses`` and ``extras`` are against what was planted, of sets that were not cut off."""

    planted: Counter[str] = field(default_factory=Counter)
    misses: set[Found] = field(default_factory=set)
    extras: set[Found] = field(default_factory=set)
    disagreements: set[tuple[str, str]] = field(default_factory=set)

    @property
    def faults(self) -> list[str]:
        return [
            f"{what}: {kind}, {key}"
            for what in ("misses", "extras", "disagreements")
            for kind, key in sorted(getattr(self, what))
        ]


def score(evidence_set: EvidenceSet) -> Score:
    found, questions = judged(evidence_set)
    other_found, other_open = oracle.judge(evidence_set.run, evidence_set.rows)
    result = Score()
    if evidence_set.run.status is RunStatus.FINISHED:
        result.planted.update(str(kind) for kind, _ in evidence_set.expected)
        result.misses = set(evidence_set.expected - found)
        result.extras = found - evidence_set.expected
    result.disagreements = {(str(kind), key) for kind, key in found ^ other_found}
    result.disagreements |= {("unresolved", item_key) for item_key in questions ^ other_open}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--worlds", type=int, default=200_000)
    parser.add_argument("--set", type=int, default=500, help="worlds in one evidence set")
    parser.add_argument("--seed", type=int, default=1, help="of the first set")
    asked = parser.parse_args()
    began = time.monotonic()
    planted: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    sets = max(1, asked.worlds // asked.set)
    rows = 0
    for seed in range(asked.seed, asked.seed + sets):
        plants = PLANTS if seed % 4 < 2 else ()
        statuses = CUT_OFF if seed % 4 == 3 else WHOLE
        evidence_set = random_set(Random(seed), asked.set, plants, statuses)
        result = score(evidence_set)
        rows += len(evidence_set.rows)
        planted += result.planted
        for what in ("misses", "extras", "disagreements"):
            wrong[what] += len(getattr(result, what))
        for fault in result.faults:
            print(f"seed {seed}: {fault}", flush=True)
    for kind, count in sorted(planted.items()):
        print(f"{kind:24}{count:8} planted")
    print(
        f"{sets} sets, {sets * asked.set} worlds, {rows} rows: {wrong['misses']} misses, "
        f"{wrong['extras']} extras, {wrong['disagreements']} disagreements; "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if wrong.total() else 0


if __name__ == "__main__":
    sys.exit(main())
