"""``junit.xml``: the verdict as CI servers read it, one test case a check, a rule, a threshold."""

from __future__ import annotations

from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from analysis.baseline import Compared, Comparison, Status
from analysis.findings import CheckReport, CheckStatus, Rule, Verdict
from analysis.proofs import check_text, faults_text
from analysis.text import visible

JUNIT_FILE = "junit.xml"
EXPLAINED = 10  # findings told in one failure


def write_junit(run_dir: Path, verdict: Verdict, comparison: Comparison | None = None) -> Path:
    """Write ``junit.xml`` into the run directory.

    :param comparison: its thresholds become a suite of their own.
    """
    rules, checks = TestSuite("onceproof.rules"), TestSuite("onceproof.checks")
    rules.add_testcases([_rule_case(rule) for rule in verdict.rules])
    checks.add_testcases([_check_case(check) for check in verdict.checks])
    xml = JUnitXml(f"onceproof {verdict.run_id}")
    suites = [rules, checks]
    if comparison is not None:
        suites.append(TestSuite("onceproof.thresholds"))
        suites[-1].add_testcases([_threshold_case(one) for one in comparison.thresholds])
    for suite in suites:
        xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    path = run_dir / JUNIT_FILE
    xml.write(str(path), pretty=True)
    return path


def _rule_case(rule: Rule) -> TestCase:
    case = TestCase(visible(rule.name), classname="onceproof.rules", time=0)
    if not rule.passed:
        case.result = [Failure(visible(f"required {rule.required}, was {rule.actual}", 600))]
    return case


def _threshold_case(compared: Compared) -> TestCase:
    case = TestCase(compared.metric, classname="onceproof.thresholds", time=0)
    said = f"{compared.status}: {compared.actual}; required: {compared.required}"
    match compared.status:
        case Status.WORSE:
            case.result = [Failure(said, compared.status.value)]
        case Status.NOT_ENOUGH:
            case.result = [Error(said, compared.status.value)]
        case Status.FINE:
            pass
    return case


def _check_case(check: CheckReport) -> TestCase:
    case = TestCase(check.kind.value, classname="onceproof.checks", time=0)
    note = visible(check.note or "", 600)
    match check.status:
        case CheckStatus.FOUND:
            noun = "finding" if check.count == 1 else "findings"
            failure = Failure(f"{check.count:,} {noun}", check.kind.value)
            lines = []
            for finding in check.findings[:EXPLAINED]:
                faults = f" (faults on the way: {faults_text(finding)})" if finding.faults else ""
                lines.append(f"{visible(finding.explanation, 600)}{faults}")
            if check.count > len(lines):
                lines.append(f"{check.count - len(lines):,} more")
            proofs = check_text(check, "RUN", proved=len(check.groups))
            failure.text = "\n".join([*lines, *(["", *proofs] if proofs else [])])
            case.result = [failure]
        case CheckStatus.NOT_OBSERVABLE:
            case.result = [Skipped(note or "the evidence cannot show it")]
        case CheckStatus.CRASHED:
            case.result = [Error(note or "the check failed, nothing is known")]
        case CheckStatus.CLEAN:
            pass
    return case
