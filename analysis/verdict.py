"""From evidence to a verdict. Judging is a pure function of the run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from analysis.base import make_base
from analysis.checks import run_checks
from analysis.errors import EvidenceError
from analysis.exposure import measure_exposure
from analysis.faults import name_faults
from analysis.findings import (
    CheckReport,
    CheckStatus,
    Control,
    Counts,
    Exposure,
    FindingKind,
    Rule,
    Verdict,
    VerdictWord,
)
from analysis.proofs import prove_examples
from analysis.schema import Observation, RunInfo, RunStatus
from analysis.store import Evidence, load_run, open_evidence
from analysis.timing import measure

VERDICT_FILE = "verdict.json"
CONTROL_DIRECTORY = "control"

_COUNTS = """
WITH orders_writes AS (
    SELECT i.decision FROM call_items i JOIN run_tables t USING (resource)
    WHERE t.role = 'orders' AND i.action IN ('put', 'update', 'delete')
), dead AS (
    SELECT sqs_message_id, message_no, received_at FROM deliveries WHERE queue = 'dlq'
), redriven AS (
    -- Moved back to the queue: no longer dead.
    SELECT message_no, max("at") AS redriven_at FROM faults WHERE name = 'redrive' GROUP BY ALL
)
SELECT m.*, d.*, w.*, r.*,
    (SELECT count(*) FROM invocations) AS invocations,
    (SELECT count(*) FROM calls) AS calls,
    (SELECT count(*) FROM acks WHERE outcome = 'deleted') AS deleted,
    (SELECT count(DISTINCT sqs_message_id) FROM dead) AS dead_lettered,
    (SELECT count(*) FROM (FROM histories WHERE deleted_at IS NULL)
        ANTI JOIN (
            SELECT d.message_no FROM dead d
            LEFT JOIN redriven r USING (message_no)
            LEFT JOIN (FROM redriven WHERE message_no IS NULL) a ON true  -- of all at once
            GROUP BY d.message_no
            HAVING coalesce(
                greatest(max(r.redriven_at), max(a.redriven_at)) < max(d.received_at), true)
        ) dead USING (message_no)) AS unsettled,
    (SELECT count(*) FROM items JOIN run_tables USING (resource)
        WHERE phase = 'after' AND role = 'orders') AS stored_items
FROM (
    SELECT count(*) AS messages, count(accepted_at) AS accepted_messages,
        count(DISTINCT order_key) FILTER (kind = 'order') AS orders,
        count(*) FILTER (kind = 'copy') AS copies,
        count(*) FILTER (kind = 'conflict') AS conflicts,
        count(*) FILTER (kind = 'poison') AS poison
    FROM messages
) m, (
    SELECT count(*) AS deliveries, count(*) FILTER (receive_count > 1) AS redeliveries
    FROM deliveries WHERE queue = 'queue'
) d, (
    SELECT count(*) FILTER (decision = 'accepted') AS accepted_writes,
        count(*) FILTER (decision = 'rejected') AS rejected_writes,
        count(*) FILTER (decision = 'failed') AS failed_writes,
        count(*) FILTER (decision = 'unknown') AS unknown_writes
    FROM orders_writes
) w, (
    SELECT count(*) FILTER (result = 'processed') AS processed,
        count(*) FILTER (result = 'duplicate') AS duplicates,
        count(*) FILTER (result = 'failed') AS failed
    FROM results
) r
"""

_LATE = """
SELECT count(*) FILTER (sent_at - intended_at > $budget_ns) AS late, count(*) AS sent,
    coalesce(quantile_disc(sent_at - intended_at, 0.99), 0)::BIGINT AS p99_ns
FROM messages WHERE sent_at IS NOT NULL
"""

_INDISPENSABLE = (Observation.WRITES, Observation.ENDS, Observation.ITEMS)

_OPEN_QUESTIONS = {
    "unknown-write": "{n} write(s) may or may not have happened",
    "unknown-before": "{n} accepted write(s) may have replaced an item that is not known",
    "unrecorded-item": "{n} stored item(s) were written by no recorded call",
    "unknown-effect": "{n} side effect(s) may or may not have happened",
    "unknown-writer": "{n} write(s) may be a copy's or a further step of the same work",
    "unread-call": "{n} call(s) may have written items that were not understood",
}


def judge(run_dir: Path) -> Verdict:
    """The verdict on a run, finished or not. The same evidence gives the same verdict.

    FAIL with any finding; else INCONCLUSIVE when a rule is not met; else PASS.

    :raises EvidenceError: the directory cannot be read as evidence.
    """
    control = _judge_control(run_dir)
    with open_evidence(run_dir) as evidence:
        make_base(evidence)
        (counted,) = evidence.rows(_COUNTS)
        counts = Counts(**counted)
        exposure = measure_exposure(evidence)
        checks, untold = prove_examples(evidence, name_faults(evidence, run_checks(evidence)))
        rules = _rules(evidence, counts, exposure, checks)
        if control is not None:
            rules += (_control_rule(control),)
        failed = [rule for rule in rules if not rule.passed]
        if any(check.count for check in checks):
            word = VerdictWord.FAIL
        elif failed:
            word = VerdictWord.INCONCLUSIVE
        else:
            word = VerdictWord.PASS
        reasons = [
            f"{rule.name}: {rule.actual}."
            if rule.name == _NO_FINDINGS
            else f"{rule.name}: {rule.actual}; required: {rule.required}."
            for rule in failed
        ]
        return Verdict(
            run_id=evidence.run.run_id,
            verdict=word,
            reasons=tuple(reasons),
            counts=counts,
            exposure=exposure,
            rules=rules,
            checks=checks,
            timing=measure(evidence),
            notes=(*_notes(evidence, exposure, checks), *untold),
            control=control,
            not_observable=evidence.run.not_observable,
        )


def write_verdict(run_dir: Path, verdict: Verdict) -> Path:
    """Write ``verdict.json``, whole or not at all; the same verdict gives the same bytes.

    :raises EvidenceError: the file cannot be written.
    """
    path = run_dir / VERDICT_FILE
    unfinished = run_dir / f"{VERDICT_FILE}.tmp"
    content = msgspec.json.format(msgspec.json.encode(verdict), indent=2) + b"\n"
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        raise EvidenceError(
            f"{path}: cannot be written ({error.strerror or error}). "
            "Free some space or make the directory writable, then judge the run again."
        ) from error
    return path


def read_verdict(path: Path) -> Verdict:
    """A verdict written before: ``verdict.json``, or the run directory that holds it.

    :raises EvidenceError: there is no verdict that can be read.
    """
    if path.is_dir():
        path = path / VERDICT_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Verdict)
    except OSError as error:
        raise EvidenceError(
            f"{path}: cannot be read ({error.strerror or error}). Judge the run first."
        ) from error
    except msgspec.DecodeError as error:
        raise EvidenceError(f"{path}: is not a verdict ({error}). Judge the run again.") from error


# --- rules ----------------------------------------------------------------------------

_NO_FINDINGS = "findings"


def _rules(
    evidence: Evidence, counts: Counts, exposure: Exposure, checks: tuple[CheckReport, ...]
) -> tuple[Rule, ...]:
    run = evidence.run
    rules = [
        _findings_rule(checks),
        _exposure_rule(exposure, run),
        _drained_rule(evidence, counts),
        Rule(
            "sending",
            counts.accepted_messages == counts.messages,
            "every message accepted by the queue",
            f"{counts.accepted_messages} of {counts.messages} accepted",
        ),
    ]
    if run.plan.rate_per_s is not None:
        rules.append(_lag_rule(evidence, run.expect.send_lag_s))
    rules.append(_evidence_rule(evidence))
    if run.not_observable:
        rules.append(_observed_rule(run.not_observable))
    crashed = [check.kind for check in checks if check.status is CheckStatus.CRASHED]
    rules.append(
        Rule(
            "checks",
            not crashed,
            "every check ran",
            f"crashed: {', '.join(crashed)}" if crashed else f"{len(checks)} checks ran",
        )
    )
    if not crashed:
        rules.append(_resolved_rule(evidence))
    return tuple(rules)


def _findings_rule(checks: tuple[CheckReport, ...]) -> Rule:
    found = [f"{check.kind} {check.count}" for check in checks if check.count]
    return Rule(_NO_FINDINGS, not found, "none", ", ".join(found) or "none")


def _exposure_rule(exposure: Exposure, run: RunInfo) -> Rule:
    contended, contestable = exposure.contended_orders, exposure.contestable_orders
    share = contended / contestable if contestable else 0.0
    minimum, unseen = run.expect.contended_orders, run.not_observable.get(Observation.DELIVERIES)
    return Rule(
        "exposure",
        share >= minimum,
        f"copies overlapped in at least {minimum:.1%} of the orders with several messages",
        f"{contended} of {contestable} ({share:.1%}), {exposure.overlapping_pairs} pairs"
        + (f". {unseen.rstrip('.')}" if unseen else ""),
    )


def _drained_rule(evidence: Evidence, counts: Counts) -> Rule:
    run = evidence.run
    ends = {
        RunStatus.FINISHED: "finished",
        RunStatus.RUNNING: "still running, or killed",
        RunStatus.INTERRUPTED: "interrupted",
        RunStatus.NOT_DRAINED: "stopped at the drain limit",
        RunStatus.FAILED: f"ended by an error: {run.error or 'not recorded'}",
    }
    parts = [ends[run.status], f"{counts.unsettled} of {counts.messages} messages not settled"]
    return Rule(
        "drained",
        run.status is RunStatus.FINISHED and counts.unsettled == 0,
        "the run finished and every message was deleted or dead-lettered",
        ", ".join(parts + list(run.left_over)),
    )


def _lag_rule(evidence: Evidence, budget_s: float) -> Rule:
    (row,) = evidence.rows(_LATE, {"budget_ns": round(budget_s * 1e9)})
    return Rule(
        "send lag",
        row["late"] * 100 <= row["sent"],
        f"99 % of the messages sent within {budget_s:g} s of their time",
        f"{row['late']} of {row['sent']} later, 99 % within {row['p99_ns'] / 1e9:.3f} s",
    )


def _evidence_rule(evidence: Evidence) -> Rule:
    return Rule(
        "evidence",
        not evidence.notes,
        "no row of the evidence missing",
        " ".join(evidence.notes) or "complete",
    )


def _observed_rule(hidden: dict[Observation, str]) -> Rule:
    """Without these a run cannot show that no key was overwritten, whatever else it shows."""
    missing = [kind for kind in _INDISPENSABLE if kind in hidden]
    return Rule(
        "observed",
        not missing,
        "accepted writes, the end of every message and the final items can be observed",
        " ".join(hidden[kind] for kind in missing).rstrip(".") or "all of them",
    )


def _resolved_rule(evidence: Evidence) -> Rule:
    rows = evidence.rows("SELECT question, count(*) AS n FROM unresolved GROUP BY question")
    counted = {row["question"]: row["n"] for row in rows}
    open_questions = [
        text.format(n=counted[question])
        for question, text in _OPEN_QUESTIONS.items()
        if question in counted
    ]
    return Rule(
        "resolved",
        not open_questions,
        "the evidence settles what every write did",
        "; ".join(open_questions) or "all settled",
    )


def _judge_control(run_dir: Path) -> Control | None:
    """The control of a run, judged as any other run; None when none was asked for."""
    if not load_run(run_dir).control:
        return None
    try:
        verdict = judge(run_dir / CONTROL_DIRECTORY)
    except EvidenceError:
        return Control(False, 0, 0, "the control was not run, or its evidence cannot be read")
    (overwrites,) = (check.count for check in verdict.checks if check.kind is FindingKind.OVERWRITE)
    return Control(overwrites > 0, overwrites, verdict.exposure.overlapping_pairs)


def _control_rule(control: Control) -> Rule:
    if control.note is not None:
        actual = control.note
    elif control.caught:
        actual = f"this load caught a read-then-write handler ({control.overwrites} overwrites)"
    else:
        actual = (
            "this load would NOT have caught a read-then-write handler "
            f"(no overwrite, {control.overlapping_pairs} overlapping pairs)"
        )
    return Rule(
        "control",
        control.caught,
        "under the same load, a handler that reads and then writes overwrites something",
        actual,
    )


def _notes(
    evidence: Evidence, exposure: Exposure, checks: tuple[CheckReport, ...]
) -> tuple[str, ...]:
    idle = [
        f"The fault {rule.text} never fired, so nothing of it was tried: "
        + (
            f"it could have struck {rule.opportunities:,} times."
            if rule.opportunities
            else "there was no place where it could strike."
        )
        for rule in exposure.faults
        if not rule.fired
    ]
    run = evidence.run
    if run.faults and Observation.CALLS in run.not_observable:
        why = run.not_observable[Observation.CALLS]
        idle.append(f"Which faults fired is not known: {why}")
    unseen = [
        f"{', '.join(kinds)} could not be judged: {why}"
        for why, kinds in unanswered(checks).items()
    ]
    return (*evidence.notes, *idle, *unseen)


def unanswered(checks: Sequence[CheckReport]) -> dict[str, list[str]]:
    """Why the evidence could not answer a check -> the kinds of those checks."""
    found: dict[str, list[str]] = {}
    for check in checks:
        if check.status is CheckStatus.NOT_OBSERVABLE:
            found.setdefault(check.note or "", []).append(check.kind)
    return found
