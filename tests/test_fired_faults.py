"""Faults as evidence: counted against what was asked, and named beside what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from junitparser import JUnitXml

from analysis.__main__ import text_of
from analysis.findings import FaultCount, Finding, FindingKind, Verdict, VerdictWord
from analysis.lanes import Lanes, lanes_text, order_lanes
from analysis.report import write_outputs
from analysis.schema import FaultRuleInfo, RunInfo, RunStatus, TableInfo, TableRole
from analysis.store import open_evidence
from analysis.verdict import judge, read_verdict, write_verdict
from tests.histories import EFFECTS, RUN, TABLE_INFOS, write_history

EFFECTING = replace(RUN, effects=EFFECTS)
LOST = "1<A4 1+/reply=unknown/fault 1- 1>d"


def judged(run_dir: Path, text: str, run: RunInfo = RUN) -> Verdict:
    return judge(write_history(run_dir, text, run, step_ns=1_000_000))


def only(verdict: Verdict) -> Finding:
    (finding,) = (finding for check in verdict.checks for finding in check.findings)
    return finding


@contextmanager
def lanes_of(run_dir: Path, key: str) -> Iterator[Lanes]:
    with open_evidence(run_dir) as evidence:
        yield order_lanes(evidence, key)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LOST, ["lost-reply on call 1 of invocation 1"]),
        # of the invocation, whatever its calls
        (
            "1<A4 1+/any 1>p 2<A4/fault=cold-start 2+/any 2>p",
            ["cold-start on invocation 2"],
        ),
        # of another receive of the message, and of one that led to no run
        (
            "1<A4 1+/any 1>p send#A4 skip#2 2<#2 2!/fault=throttle 2>f 3<#2 3+/any 3>p",
            [
                "receive-without-run on receive 1 of message 2",
                "throttle on call 2 of invocation 2",
            ],
        ),
        # of the message alone
        ("1<A4 1+ 1>p 2<A4 2- 2>f dlq#2 redrive#2 3<#2/resent 3- 3>f dlq#2/resent",
         ["redrive on message 2"]),
        # of all messages at once
        ("1<A4 1+/any 1>p resend#0 2<#1/resent 2+/any 2>p", ["resend"]),
        # not of other orders
        ("1<B4 1+/fault=slow 1>p 2<A4 2>.", []),
    ],
)  # fmt: skip
def test_a_finding_names_the_faults_on_its_way(tmp_path: Path, text: str, told: list[str]) -> None:
    finding = only(judged(tmp_path, text))
    assert [fault.text for fault in finding.faults] == told
    assert finding.fault_count == len(told)


def test_many_faults_are_counted_and_the_first_named(tmp_path: Path) -> None:
    failing = " ".join(["1!/fault=throttle"] * 11)
    verdict = judged(tmp_path, f"1<A4 {failing} 1>f dlq#1 redrive#1 2<#1/resent 2>.")
    finding = only(verdict)
    assert (finding.kind, finding.fault_count) == (FindingKind.LOST_ORDER, 12)
    assert len(finding.faults) == 8


def test_faults_stand_in_every_output(tmp_path: Path) -> None:
    verdict = judged(tmp_path, LOST)
    write_verdict(tmp_path, verdict)
    assert read_verdict(tmp_path) == verdict
    written = write_outputs(tmp_path, verdict)
    told = "lost-reply on call 1 of invocation 1"
    text = text_of(verdict, "RUN")
    assert f"Faults on the way: {told}" in text
    assert "% injected fault" in text
    assert f"Faults on the way: {told}" in written.report.read_text(encoding="utf-8")
    failures = [
        result.text or ""
        for suite in JUnitXml.fromfile(str(written.junit))
        for case in suite
        for result in case.result
    ]
    assert any(f"faults on the way: {told}" in failure for failure in failures)
    (group,) = (group for check in verdict.checks for group in check.groups)
    assert group.example.proof is not None
    assert [step.fault for step in group.example.proof.steps] == ["lost-reply", None, None]


def test_a_rule_that_never_fired_is_said(tmp_path: Path) -> None:
    rules = (
        FaultRuleInfo("lost-reply", "lost-reply=0.5", 0.5, opportunities=3),
        FaultRuleInfo("throttle", "throttle=0.01", 0.01, opportunities=7),
        FaultRuleInfo("redrive", "redrive", opportunities=0),
    )
    run = replace(RUN, faults=rules)
    verdict = judged(tmp_path, "1<A4 1+/reply=unknown/fault 1- 1>p", run)
    assert verdict.verdict is VerdictWord.PASS
    assert verdict.exposure.faults == (
        FaultCount("lost-reply", "lost-reply=0.5", 3, 1),
        FaultCount("throttle", "throttle=0.01", 7, 0),
        FaultCount("redrive", "redrive", 0, 0),
    )
    assert verdict.notes == (
        "The fault throttle=0.01 never fired, so nothing of it was tried: it could have struck "
        "7 times.",
        "The fault redrive never fired, so nothing of it was tried: there was no place where it "
        "could strike.",
    )
    text = text_of(verdict, "RUN")
    assert "  lost-reply=0.5: fired 1 time, could have struck 3 times\n" in text
    written = write_outputs(tmp_path, verdict)
    page = written.report.read_text(encoding="utf-8")
    assert "throttle=0.01: never fired, could have struck 7 times" in page
    assert "throttle=0.01: never fired" in written.summary.read_text().replace("\\", "")


def test_a_run_without_faults_says_nothing_of_them(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "1<A4 1+ 1>p")
    written = write_outputs(tmp_path, verdict)
    assert verdict.exposure.faults == ()
    assert "aults" not in text_of(verdict, "RUN") + written.summary.read_text()


def test_lanes_mark_faults_with_a_sign(tmp_path: Path) -> None:
    judged(tmp_path, "send#A4 skip#1 1<#1 1.&1+/fault=slow 1>crash/fault=crash-before-answer")
    with lanes_of(tmp_path, "A") as lanes:
        text = lanes_text(lanes)
    tracks = [line for line in text.splitlines() if line.startswith(("inv", "not invoked"))]
    assert all("%" in track for track in tracks)
    assert "not invoked fault receive-without-run" in text
    assert "invocation 1 fault crash-before-answer" in text


def test_plots_mark_each_kind_of_fault_on_a_line_of_its_own(tmp_path: Path) -> None:
    text = "1<A4 1!/fault=throttle 1>f 2<#1 2+/fault=slow 2>p"
    outputs = write_outputs(tmp_path, judged(tmp_path, text))
    (over_time,) = (plot for plot in outputs.plots if plot.name == "over-time")
    assert all(f">{name}<" in over_time.svg for name in ("throttle", "slow", "faults"))
    assert "each kind of fault" in over_time.caption


def test_a_missing_table_of_faults_keeps_the_handler_from_blame(tmp_path: Path) -> None:
    write_history(tmp_path, "1<A4 1!/fault=throttle 1>f dlq#1")
    assert judge(tmp_path).verdict is VerdictWord.PASS
    (tmp_path / "evidence" / "faults.jsonl").unlink()
    verdict = judge(tmp_path)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    (unjudged,) = (note for note in verdict.notes if "could not be judged" in note)
    assert "dead-lettered-order" in unjudged


def test_tables_that_nobody_asked_for_are_not_missed(tmp_path: Path) -> None:
    """Runs of earlier versions have neither."""
    write_history(tmp_path, "1<A4 1+ 1>p")
    for name in ("faults", "effects"):
        (tmp_path / "evidence" / f"{name}.jsonl").unlink()
    assert judge(tmp_path).verdict is VerdictWord.PASS


@pytest.mark.parametrize(
    "text",
    [
        "1<A4 1+ 1@sns/effect=unknown 1>p",
        "1<A4 1+ 1@sns/effect 1@sns/effect=unknown 1>p",
        "1<A4 1@sns/effect=unknown 1@sns/effect=unknown 1>f dlq#1",
    ],
)
def test_an_effect_that_may_have_happened_is_left_open(tmp_path: Path, text: str) -> None:
    verdict = judged(tmp_path, text, EFFECTING)
    assert any("1 side effect(s) may or may not" in reason for reason in verdict.reasons)
    kinds = {check.kind for check in verdict.checks if check.count}
    assert kinds <= {FindingKind.DEAD_LETTERED_ORDER}


@pytest.mark.parametrize(("key_type", "missing"), [("N", 0), ("S", 2)])
def test_equal_numbers_are_one_key_where_keys_are_numbers(
    tmp_path: Path, key_type: str, missing: int
) -> None:
    tables = (TableInfo("orders", TableRole.ORDERS, "id", key_type=key_type), *TABLE_INFOS[1:])
    run = replace(EFFECTING, tables=tables, batch_size=2)
    text = "1<7.4,8.3 1+/of=7. 1+/of=8. 1@sns/effect/key=7 1@sns/effect/key=8 1>."
    found = {check.kind: check.count for check in judged(tmp_path, text, run).checks}
    assert found[FindingKind.MISSING_EFFECT] == missing


def test_what_was_moved_back_is_not_settled(tmp_path: Path) -> None:
    run = replace(RUN, status=RunStatus.NOT_DRAINED)
    assert judged(tmp_path / "dead", "1<A4 1! 1>f dlq#1", run).counts.unsettled == 0
    for which in ("1", "0"):
        text = f"1<A4 1! 1>f dlq#1 2<B4 2! 2>f redrive#{which} dlq#2"
        assert judged(tmp_path / which, text, run).counts.unsettled == 1
