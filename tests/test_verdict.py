"""Verdict, rules, counts and exposure, and ``python -m analysis``."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import checks
from analysis.__main__ import main
from analysis.errors import EvidenceError
from analysis.exposure import measure_exposure
from analysis.findings import (
    MAX_SHOWN,
    CheckStatus,
    Counts,
    Exposure,
    FindingKind,
    Verdict,
    VerdictWord,
)
from analysis.schema import Call, Decision, ExpectInfo, ResultInfo, RunInfo, RunStatus
from analysis.store import finish_evidence, open_evidence
from analysis.verdict import judge, read_verdict, write_verdict
from tests.histories import RUN, write_history
from tests.sample_run import Sample, write_run
from tests.test_checks import add_row

GOOD = "1<A4 2<A4 1.&2. 1+ 2- 1>p 2>d"
BAD = "1<A4 1+/any 1>p 2<A4 2+/any 2>p"
EXPECTED = replace(RUN, expect=ExpectInfo(contended_orders=0.5))


def verdict_on(run_dir: Path, text: str, run: RunInfo = RUN) -> Verdict:
    return judge(write_history(run_dir, text, run))


def failed_rules(verdict: Verdict) -> set[str]:
    return {rule.name for rule in verdict.rules if not rule.passed}


# --- words ----------------------------------------------------------------------------


def test_pass(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, GOOD, EXPECTED)
    assert verdict.verdict is VerdictWord.PASS
    assert verdict.reasons == ()
    assert verdict.notes == ()
    assert {check.status for check in verdict.checks} == {CheckStatus.CLEAN}
    assert {check.kind for check in verdict.checks} == set(FindingKind)


def test_a_finding_fails_the_run(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, BAD)
    assert verdict.verdict is VerdictWord.FAIL
    assert verdict.reasons == ("findings: overwrite 1.",)
    (overwrite,) = (check for check in verdict.checks if check.kind is FindingKind.OVERWRITE)
    (finding,) = overwrite.findings
    assert finding.order_key == "A"
    assert finding.message_nos == (2,)
    assert finding.invocation_ids == (1, 2)
    assert finding.call_ids == (1, 2)
    assert finding.flags == ("identical",)
    assert finding.explanation == (
        'Call 2 replaced an item in orders: id="A", quantity=4 became id="A", quantity=4.'
    )


@pytest.mark.parametrize(
    ("text", "run", "rule"),
    [
        pytest.param("1<A4 1+ 1>p 2<A4 2- 2>d", EXPECTED, "exposure", id="no overlap"),
        pytest.param("1<A4 1+ 1>p", EXPECTED, "exposure", id="no copies"),
        pytest.param(GOOD, replace(RUN, status=RunStatus.RUNNING), "drained", id="killed"),
        pytest.param(GOOD, replace(RUN, status=RunStatus.INTERRUPTED), "drained", id="interrupted"),
        pytest.param(
            GOOD,
            replace(RUN, status=RunStatus.NOT_DRAINED, left_over=("Message 9 is hidden.",)),
            "drained",
            id="not drained",
        ),
        pytest.param(
            GOOD,
            replace(RUN, status=RunStatus.FAILED, error="the endpoint went away"),
            "drained",
            id="failed",
        ),
        pytest.param(GOOD + " send#A4", RUN, "drained", id="a message left"),
        pytest.param(
            "1<A4 1?/any 1>timeout 2<#1 2- 2>d =A4", RUN, "resolved", id="unknown overwrite"
        ),
        pytest.param(
            "1<A4 1?/cond=attribute_not_exists(id)OR(n<:n)/did 1>timeout 2<#1 2- 2>d",
            RUN,
            "resolved",
            id="unknown write that may have replaced",
        ),
        pytest.param("1<A4 1?/delete 1>f 2<#1 2+ 2>p", RUN, "resolved", id="unknown delete"),
        pytest.param(
            "1<A4 1? 1>f 2<#1 2+ 2+/delete 2+ 2>p",
            RUN,
            "resolved",
            id="unknown insert beside a delete",
        ),
        pytest.param(
            "1<A4 1?/any/status=X 1>timeout 2<#1 2+/delete/before=? 2+ 2>p",
            RUN,
            "resolved",
            id="unknown write, and a delete of nobody knows what",
        ),
        pytest.param("1<A4 1+/any/before=? 1>p", RUN, "resolved", id="unknown image"),
        pytest.param("1<A4 1>. =A4", RUN, "resolved", id="item without a write"),
    ],
)
def test_a_rule_that_is_not_met_is_inconclusive(
    tmp_path: Path, text: str, run: RunInfo, rule: str
) -> None:
    verdict = verdict_on(tmp_path, text, run)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    assert failed_rules(verdict) == {rule}
    (reason,) = verdict.reasons
    assert reason.startswith(f"{rule}: ")
    for told in (*run.left_over, run.error or ""):
        assert told in reason


@pytest.mark.parametrize(
    "text",
    [
        "1<A4 1? 1>timeout 2<#1 2- 2>d =A4",  # it happened: nothing else made the item
        "1<A4 1? 1>timeout 2<#1 2+ 2>p",  # it did not: the next one found nothing
        "1<A4 1?/any/status=X 1>timeout 2<#1 2+/any/status=Y 2>p",  # never seen anywhere
        "1<A4 1?/cond=attribute_not_exists(id)AND(n<:n)/did 1>timeout 2<#1 2- 2>d",
        "1<A4 1?/any/on=guard/status=COMPLETED/did 1+ 1>p",  # no item of an order
        "1<A4 1+ 1+/delete/before=? 1+ 1>p",  # a delete replaces nothing
        "1<A4 1+ 1>p =digest-A9/on=guard",  # as above
        "1<A4 1+/before=? 1>p",  # its condition says what was there before
    ],
)
def test_unknown_writes_that_the_evidence_settles(tmp_path: Path, text: str) -> None:
    assert verdict_on(tmp_path, text).verdict is VerdictWord.PASS


@pytest.mark.parametrize(
    ("service", "operation", "decision", "word"),
    [
        ("dynamodb", "BatchWriteItem", Decision.ACCEPTED, VerdictWord.INCONCLUSIVE),
        ("dynamodb", "PutItem", Decision.UNKNOWN, VerdictWord.INCONCLUSIVE),
        ("dynamodb", "PutItem", Decision.FAILED, VerdictWord.PASS),
        ("dynamodb", "DescribeTable", Decision.ACCEPTED, VerdictWord.PASS),
        ("sqs", "PutItem", Decision.ACCEPTED, VerdictWord.PASS),
    ],
)
def test_a_write_of_which_the_items_are_not_known(
    tmp_path: Path, service: str, operation: str, decision: Decision, word: VerdictWord
) -> None:
    write_history(tmp_path, GOOD)
    add_row(tmp_path, Call(9, 1, 1, None, service, operation, None, None, 6, 6, decision))
    assert judge(tmp_path).verdict is word


def test_a_message_that_the_queue_never_took(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, GOOD + " plan#A4")
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    assert failed_rules(verdict) == {"sending", "drained"}


@pytest.mark.parametrize(("late", "passed"), [(1, True), (3, False)])
def test_send_lag_counts_at_a_given_rate_only(tmp_path: Path, late: int, passed: bool) -> None:
    """Message n is sent at n ns and was wanted at 0; the budget lets 1 in 100 be later."""
    text = " ".join(f"{n}<A4&{n}+&{n}>p" if n == 1 else f"{n}<A4&{n}-&{n}>d" for n in range(1, 101))
    expect = ExpectInfo(contended_orders=0, send_lag_s=(100 - late) / 1e9)
    paced = replace(RUN, expect=expect, plan=replace(RUN.plan, rate_per_s=10.0))
    verdict = verdict_on(tmp_path / "paced", text, paced)
    assert failed_rules(verdict) == (set() if passed else {"send lag"})
    free = replace(RUN, expect=expect)
    assert verdict_on(tmp_path / "free", text, free).verdict is VerdictWord.PASS


def test_a_finding_outweighs_every_rule(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, BAD, replace(EXPECTED, status=RunStatus.RUNNING))
    assert verdict.verdict is VerdictWord.FAIL
    assert failed_rules(verdict) == {"findings", "drained", "exposure"}
    assert len(verdict.reasons) == 3


# --- checks that cannot answer ----------------------------------------------------------


def test_a_check_that_crashes_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checks.sql_of
    monkeypatch.setattr(
        checks, "sql_of", lambda name: "SELECT nonsense" if name == "lost-order" else real(name)
    )
    verdict = verdict_on(tmp_path, GOOD)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    crashed = {check.kind for check in verdict.checks if check.status is CheckStatus.CRASHED}
    assert crashed == {FindingKind.LOST_ORDER}
    assert verdict.reasons == ("checks: crashed: lost-order; required: every check ran.",)
    assert judge(write_history(tmp_path / "bad", BAD)).verdict is VerdictWord.FAIL


def test_views_that_crash_crash_every_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "sql_of", lambda name: "SELECT nonsense")
    verdict = verdict_on(tmp_path, GOOD)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    assert {check.status for check in verdict.checks} == {CheckStatus.CRASHED}


def test_without_result_fields_results_are_not_judged(tmp_path: Path) -> None:
    text = "1<A4 1+ 1>p 2<A4 2- 2>p/says=9"
    verdict = verdict_on(tmp_path, text, replace(RUN, result=ResultInfo()))
    assert verdict.verdict is VerdictWord.PASS
    unseen = {c.kind for c in verdict.checks if c.status is CheckStatus.NOT_OBSERVABLE}
    assert unseen == {FindingKind.RESULT_MISMATCH, FindingKind.DIVERGENT_RESULT}
    assert verdict.notes == (
        "result-mismatch, divergent-result could not be judged: [result] names no fields, so "
        "results are not attributed.",
    )


def test_checks_that_rest_on_missing_rows_do_not_guess(tmp_path: Path) -> None:
    write_history(tmp_path, BAD + " 3<B4 3+ 3>p")
    (tmp_path / "evidence" / "acks.jsonl").unlink()
    (tmp_path / "evidence" / "items.jsonl").unlink()
    verdict = judge(tmp_path)
    assert {check.kind for check in verdict.checks if check.count} == {FindingKind.OVERWRITE}
    assert "evidence" in failed_rules(verdict)
    (tmp_path / "evidence" / "calls.jsonl").write_bytes(b"rubbish\n")
    verdict = judge(tmp_path)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    assert {check.count for check in verdict.checks} == {0}


def test_shown_findings_are_bounded_and_the_count_is_exact(tmp_path: Path) -> None:
    copies = MAX_SHOWN + 20
    text = " ".join(f"{n}<A4 {n}+/any {n}>p" for n in range(1, copies + 1))
    (overwrite,) = (c for c in verdict_on(tmp_path, text).checks if c.count)
    assert overwrite.count == copies - 1
    assert len(overwrite.findings) == MAX_SHOWN
    assert overwrite.findings[0].message_nos == (2,)


# --- counts and exposure ----------------------------------------------------------------


def test_counts(tmp_path: Path) -> None:
    text = "1<A4 1! 1>f 2<#1 2+ 2>p 3<A4 3- 3>d 4<A5 4- 4>f dlq#3 5<X! 5>f send#B1 plan#B1 6<B2 6?"
    assert verdict_on(tmp_path, text, replace(RUN, status=RunStatus.INTERRUPTED)).counts == Counts(
        messages=7,
        accepted_messages=6,
        orders=2,
        copies=2,
        conflicts=2,
        poison=1,
        deliveries=6,
        redeliveries=1,
        invocations=6,
        calls=5,
        accepted_writes=1,
        rejected_writes=2,
        failed_writes=1,
        unknown_writes=1,
        processed=1,
        duplicates=1,
        failed=3,
        deleted=2,
        dead_lettered=1,
        unsettled=4,
        stored_items=1,
    )


@pytest.mark.parametrize(
    ("text", "exposure"),
    [
        ("", Exposure(0, 0, 0, 0, None)),
        ("1<A4 1+ 1>p", Exposure(0, 0, 0, 1, None)),
        ("1<A4 1+ 1>p 2<A4 2- 2>d", Exposure(0, 0, 1, 1, None)),
        ("1<A4 2<A4 1+ 2- 1>p 2>d", Exposure(0, 0, 1, 1, None)),  # calls apart
        ("1<A4 2<A4 1. 1+&2. 2- 1>p 2>d", Exposure(1, 1, 1, 2, "A")),  # they touch
        ("1<A4 2<A4 3<B1 4<B1 1.&2. 3+ 1+ 2- 4-", Exposure(1, 1, 2, 2, "A")),
        ("1<A4,B1 2<B1,A4 1.&2. 1+ 2-", Exposure(2, 2, 2, 2, "B")),
        ("1<A4 2<#1 1.&2. 1+ 2-", Exposure(1, 1, 0, 2, "A")),  # one message, received twice
        ("1<X! 2<#1 1.&2. 1! 2!", Exposure(0, 0, 0, 0, None)),
        ("1<A4 1? 2<A4 2- 1>timeout 2>d", Exposure(1, 1, 1, 2, "A")),  # open until it ended
    ],
)
def test_exposure(tmp_path: Path, text: str, exposure: Exposure) -> None:
    with open_evidence(write_history(tmp_path, text)) as evidence:
        assert measure_exposure(evidence) == exposure


@settings(max_examples=15, deadline=None)
@given(
    windows=st.lists(
        st.tuples(st.integers(1, 12), st.integers(0, 6), st.sampled_from("AB")),
        min_size=1,
        max_size=12,
    )
)
def test_exposure_counts_every_overlapping_pair(windows: list[tuple[int, int, str]]) -> None:
    spans = [(first, first + length, key) for first, length, key in windows]
    ticks: dict[int, list[str]] = {}
    for number, (first, last, key) in enumerate(spans, start=1):
        ticks.setdefault(0, []).append(f"{number}<{key}4")
        ticks.setdefault(first, []).append(f"{number}.")
        ticks.setdefault(last, []).append(f"{number}-")
    text = " ".join(
        "&".join(sorted(ticks.get(t, ["send#Z1"]), key=lambda w: not w.endswith(".")))
        for t in range(20)
    )
    pairs = [
        key
        for (a, b, key), (c, d, other) in combinations(spans, 2)
        if key == other and a <= d and c <= b
    ]
    with (
        TemporaryDirectory() as directory,
        open_evidence(write_history(Path(directory), text)) as evidence,
    ):
        exposure = measure_exposure(evidence)
    assert exposure.overlapping_pairs == len(pairs)
    assert exposure.contended_orders == len(set(pairs))
    assert exposure.most_in_flight == max(
        sum(a <= at <= b and key == other for a, b, other in spans) for at, _, key in spans
    )


# --- files and the command --------------------------------------------------------------


def test_the_same_evidence_gives_the_same_bytes(tmp_path: Path) -> None:
    write_run(tmp_path, Sample(orders=30, overwrites=2))
    first = write_verdict(tmp_path, judge(tmp_path)).read_bytes()
    assert write_verdict(tmp_path, judge(tmp_path)).read_bytes() == first
    finish_evidence(tmp_path)
    assert write_verdict(tmp_path, judge(tmp_path)).read_bytes() == first
    assert not list(tmp_path.glob("*.tmp"))


def test_judging_writes_nothing(tmp_path: Path) -> None:
    write_history(tmp_path, BAD)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    judge(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_verdict_reads_back_as_it_was(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, BAD)
    path = write_verdict(tmp_path, verdict)
    assert read_verdict(path) == read_verdict(tmp_path) == verdict
    path.write_bytes(b"{}")
    with pytest.raises(EvidenceError, match="is not a verdict"):
        read_verdict(path)
    path.unlink()
    with pytest.raises(EvidenceError, match="Judge the run first"):
        read_verdict(tmp_path)


@pytest.mark.parametrize(
    ("text", "run", "code"),
    [(GOOD, RUN, 0), (BAD, RUN, 1), ("1<A4 1+ 1>p", EXPECTED, 3)],
)
def test_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, run: RunInfo, code: int
) -> None:
    write_history(tmp_path, text, run)
    assert main([str(tmp_path), "--json"]) == code
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "verdict.json").read_text(encoding="utf-8")
    assert json.loads(printed)["run_id"] == "history"
    assert main([str(tmp_path)]) == code
    shown = capsys.readouterr().out
    assert shown.startswith(f"{json.loads(printed)['verdict']} history\n")
    assert ("✗" in shown) == (code != 0)
    assert ("So: B replaced the order that A had stored" in shown) == (code == 1)


def test_command_names_what_is_wrong_with_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "run.json: cannot be read" in captured.err


def test_escape_codes_in_the_evidence_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J"
    write_history(tmp_path, f"1<{evil}4 1+/any 1>p 2<{evil}4 2+/any 2>p")
    assert main([str(tmp_path)]) == 1
    assert "\x1b" not in capsys.readouterr().out
