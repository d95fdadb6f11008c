"""The judge against simulated runs of known truth, and against an independent oracle.

A bounded share; ``python -m benchmarks.ground_truth`` judges as many worlds as one likes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings

from analysis import base
from analysis.findings import FindingKind, VerdictWord
from analysis.schema import Message, RunStatus
from analysis.verdict import judge
from benchmarks.ground_truth import CUT_OFF, WHOLE, judged, score
from tests import oracle
from tests.histories import write_history, write_rows
from tests.plants import PLANTS
from tests.share import SHARE
from tests.simulator import EvidenceSet, Setup, evidence_set, evidence_sets

WORLDS = 110


def examples(count: int) -> settings:
    """A seed says nothing about its size, so there is nothing to be gained by shrinking it."""
    return settings(
        max_examples=count * SHARE, deadline=None, phases=[Phase.explicit, Phase.generate]
    )


@examples(3)
@given(evidence_sets(WORLDS, statuses=WHOLE))
def test_a_correct_consumer_is_never_blamed(clean: EvidenceSet) -> None:
    assert score(clean).faults == []


@examples(4)
@given(evidence_sets(WORLDS, PLANTS, WHOLE))
def test_exactly_what_was_planted_is_found(planted: EvidenceSet) -> None:
    assert score(planted).faults == []


@pytest.mark.parametrize("status", CUT_OFF)
def test_the_oracle_agrees_on_runs_that_were_cut_off(status: RunStatus) -> None:
    @examples(1)
    @given(evidence_sets(WORLDS, PLANTS, [status]))
    def agrees(cut: EvidenceSet) -> None:
        assert score(cut).faults == []

    agrees()


def test_every_plant_is_found_also_beside_another() -> None:
    """Every order of these worlds has a plant, most of the worlds have two."""
    used: Counter[str] = Counter()
    kinds: set[FindingKind] = set()
    for report in (True, False):
        setup = Setup(3 if report else 1, report_failures=report, effects=True)
        planted = evidence_set(1, setup, 250, PLANTS, share=1)
        assert score(planted).faults == []
        used += planted.planted
        kinds |= {kind for kind, _ in planted.expected}
    assert set(used) == {plant.name for plant in PLANTS}
    assert kinds == set(FindingKind)


@examples(5)
@given(evidence_sets(2, statuses=WHOLE))
def test_passes_exactly_when_nothing_is_left_open(clean: EvidenceSet) -> None:
    _, open_items = oracle.judge(clean.run, clean.rows)
    last = {row.message_no: row for row in clean.rows if isinstance(row, Message)}
    all_taken = all(message.accepted_at is not None for message in last.values())
    with TemporaryDirectory() as directory:
        write_rows(Path(directory), clean.rows, clean.run)
        verdict = judge(Path(directory))
    expected = VerdictWord.INCONCLUSIVE if open_items or not all_taken else VerdictWord.PASS
    assert verdict.verdict is expected, verdict.reasons


@pytest.mark.parametrize(
    "text",
    [
        # Both may have happened, either, or none: then a copy was stored.
        "1<A4 1?/any 1>timeout 2<#1 2?/any 2>timeout 3<#1 3- 3>d =A4",
        "1<A4 1?/any/did 1>timeout 2<A4 2?/any/did 2>timeout 3<#1 3- 3>d 4<#2 4- 4>d",
        "1<A4 1?/any/did 1>timeout 2<A5 2?/any/did 2>timeout 3<#1 3- 3>f dlq#1 4<#2 4- 4>d",
        "1<A4 1?/update/any 1>timeout 2<#1 2?/delete 2>timeout 3<#1 3+ 3>p",
        "1<A4 1+ 1>p 2<A4 2?/any/after=? 2>timeout 3<#2 3?/any/after=? 3>timeout 4<#2 4- 4>d",
    ],
)
def test_several_unknown_writes_prove_nothing(tmp_path: Path, text: str) -> None:
    verdict = judge(write_history(tmp_path, text))
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    assert any("may or may not have happened" in reason for reason in verdict.reasons)


def test_the_id_of_an_order_may_be_in_its_sort_key() -> None:
    """The same runs, but what was the partition key is the sort key."""
    planted = evidence_set(5, Setup(effects=True), 120, PLANTS)
    tables = tuple(
        replace(
            table,
            key="sk",
            sort="id",
            items=tuple(replace(kind, key=kind.sort, sort=kind.key) for kind in table.items),
        )
        if table.items
        else table
        for table in planted.run.tables
    )
    # The condition that the simulated handlers use is on the other key attribute: what an
    # insert replaced is then told by its images alone.
    assert score(replace(planted, run=replace(planted.run, tables=tables))).disagreements == set()
    assert "own key in a single table" in planted.planted


def test_the_same_seed_gives_the_same_rows() -> None:
    first, second = (evidence_set(7, Setup(), 20, PLANTS) for _ in range(2))
    assert first == second


def test_the_order_of_the_rows_means_nothing() -> None:
    """Only the last version of a row counts, and which line follows which does not."""
    planted = evidence_set(3, Setup(), 100, PLANTS)
    last = list({(r.TABLE, *(getattr(r, n) for n in r.KEY)): r for r in planted.rows}.values())
    Random(1).shuffle(last)
    again = EvidenceSet(planted.run, last, planted.expected, planted.planted)
    assert judged(again) == judged(planted)


def test_no_seam_where_tables_are_joined_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = evidence_set(3, Setup(), 40, PLANTS, share=1)
    assert planted.planted["insert is a duplicate"]  # not found if a row is there twice
    write_rows(tmp_path, planted.rows, planted.run)
    whole = judge(tmp_path)
    monkeypatch.setattr(base, "SLICE", 30)
    assert judge(tmp_path) == whole
