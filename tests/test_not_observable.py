"""What a run could not show: no check passes on evidence that it does not have."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from junitparser import JUnitXml, Skipped
from rich.console import Console

from analysis.findings import CheckStatus, FindingKind, Verdict, VerdictWord
from analysis.report import write_outputs
from analysis.schema import ExpectInfo, FaultRuleInfo, Observation, ResultInfo, RunInfo
from analysis.verdict import judge, write_verdict
from loadtest.terminal import print_verdict
from tests.histories import RUN, write_history

NO_CALLS = {
    Observation.CALLS: "Calls are not recorded in a deployed function.",
    Observation.RESULTS: "Results are not recorded in a deployed function.",
    Observation.OTHER_ITEMS: "Only the run's own items are read.",
}
NO_STREAM = {**NO_CALLS, Observation.WRITES: "Table orders has no stream."}
NO_IDS = {**NO_STREAM, Observation.DELIVERIES: "The log lines name no message."}
# With a stream: writes by nobody known (/by=0), two invocations at the same time.
GOOD = "1<A4 2<A4 1+/by=0 1>. 2>."


def _run(hidden: dict[Observation, str]) -> RunInfo:
    expect = ExpectInfo(contended_orders=0.5)
    return replace(RUN, target="aws", result=ResultInfo(), expect=expect, not_observable=hidden)


def _judged(tmp_path: Path, text: str, hidden: dict[Observation, str]) -> Verdict:
    write_history(tmp_path, text, _run(hidden))
    return judge(tmp_path)


def _kinds(verdict: Verdict, status: CheckStatus) -> set[FindingKind]:
    return {check.kind for check in verdict.checks if check.status is status}


def test_with_stream_and_attributed_messages_a_run_can_pass(tmp_path: Path) -> None:
    verdict = _judged(tmp_path, GOOD, NO_CALLS)
    assert verdict.verdict is VerdictWord.PASS
    # Overlap is that of the invocations, START to END: calls are not there to tell.
    assert verdict.exposure.overlapping_pairs == 1
    assert _kinds(verdict, CheckStatus.CLEAN) == {
        FindingKind.OVERWRITE,
        FindingKind.PHANTOM_WRITE,
        FindingKind.LOST_ORDER,
        FindingKind.CONFLICT_ACKNOWLEDGED,
        FindingKind.POISON_ACKNOWLEDGED,
        FindingKind.POISON_STORED,
        FindingKind.DUPLICATE_FAILED,
        FindingKind.DEAD_LETTERED_ORDER,
    }


def test_that_faults_were_asked_for_is_not_that_none_fired(tmp_path: Path) -> None:
    run = replace(_run(NO_CALLS), faults=(FaultRuleInfo("lost-reply", "lost-reply"),))
    write_history(tmp_path, GOOD, run)
    verdict = judge(tmp_path)
    assert verdict.exposure.faults == ()
    said = "Which faults fired is not known: Calls are not recorded in a deployed function."
    assert said in verdict.notes
    assert not any("never fired" in note for note in verdict.notes)


def test_one_after_the_other_is_no_exposure(tmp_path: Path) -> None:
    verdict = _judged(tmp_path, "1<A4 1+/by=0 1>. 2<A4 2>.", NO_CALLS)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    assert [rule.name for rule in verdict.rules if not rule.passed] == ["exposure"]


def test_an_overwrite_with_other_details_is_found_without_its_writer(tmp_path: Path) -> None:
    verdict = _judged(tmp_path, "1<A4 2<A5 1+/by=0 2+/by=0/any 1>. 2>.", NO_CALLS)
    assert verdict.verdict is VerdictWord.FAIL
    found = _kinds(verdict, CheckStatus.FOUND)
    assert found == {FindingKind.OVERWRITE, FindingKind.CONFLICT_ACKNOWLEDGED}
    (overwrite,) = (check for check in verdict.checks if check.kind is FindingKind.OVERWRITE)
    assert overwrite.findings[0].invocation_ids == ()


def test_a_write_that_may_be_a_step_or_an_overwrite_is_an_open_question(tmp_path: Path) -> None:
    text = "1<A4 2<A4 1+/by=0/state=new 2+/by=0/any/state=done 1>. 2>."
    verdict = _judged(tmp_path, text, NO_CALLS)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    assert any("may be a copy's or a further step" in reason for reason in verdict.reasons)


def test_a_second_insert_by_nobody_known_is_an_open_question(tmp_path: Path) -> None:
    text = "1<A4 2<A4 1+/by=0 1+/by=0/delete 2+/by=0 1>. 2>."
    verdict = _judged(tmp_path, text, NO_CALLS)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    assert any(reason.startswith("resolved:") for reason in verdict.reasons)


def test_without_a_stream_a_lost_order_is_found_and_nothing_passes(tmp_path: Path) -> None:
    good = "1<A4 2<A4 1>. 2>. =A4"
    verdict = _judged(tmp_path, good, NO_STREAM)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    assert verdict.reasons == (
        "observed: Table orders has no stream; required: accepted writes, the end of every "
        "message and the final items can be observed.",
    )
    verdict = _judged(tmp_path / "lost", "1<A4 2<A4 1>. 2>.", NO_STREAM)
    assert _kinds(verdict, CheckStatus.FOUND) == {FindingKind.LOST_ORDER}


def test_every_output_says_what_was_not_observable(tmp_path: Path) -> None:
    verdict = _judged(tmp_path, GOOD, NO_IDS)
    assert verdict.verdict is VerdictWord.INCONCLUSIVE
    write_verdict(tmp_path, verdict)
    outputs = write_outputs(tmp_path, verdict)
    text = io.StringIO()
    print_verdict(Console(file=text, width=200), verdict, tmp_path, outputs.report)
    said = " ".join(text.getvalue().split())
    assert "- not observable: overwrite, duplicate-failed. Table orders has no stream." in said
    assert "pairs. The log lines name no message" in said
    assert "accepted writes - not observable" in said
    assert "Table orders has no stream." in outputs.report.read_text()
    summary = outputs.summary.read_text()
    assert "overwrite" in summary.partition("Not answered: ")[2]
    assert "2 messages of 1 order: 2 acknowledged, 0 dead-lettered, 0 not settled." in summary
    skipped = {
        case.name: case.result[0].message
        for suite in JUnitXml.fromfile(str(outputs.junit))
        for case in suite
        if case.result and isinstance(case.result[0], Skipped)
    }
    assert skipped["overwrite"] == "Table orders has no stream."
    assert skipped["unrelated-write"] == "Only the run's own items are read."
