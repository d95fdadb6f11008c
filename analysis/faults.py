"""Faults as evidence: what was asked of them, what fired, and which led to a finding.

A finding's faults are those of its calls, of its invocations, of every receive of its messages
with the invocation it was given to, of the messages themselves, and of all messages at once
(a plan that was sent again, dead letters that were moved back). That one of them is the
cause is not claimed: it is what the tester did on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis.findings import CheckReport, FaultCount, Finding, FiredFault
from analysis.schema import Observation
from analysis.store import Evidence
from analysis.text import visible

MOST_FAULTS = 8  # named beside one finding

_LED = """
WITH named AS (
    SELECT unnest(range(len($messages::BIGINT[][]))) AS finding,
        unnest($messages::BIGINT[][]) AS message_nos,
        unnest($invocations::BIGINT[][]) AS invocation_ids, unnest($calls::BIGINT[][]) AS call_ids
), of_messages AS (
    SELECT finding, unnest(message_nos) AS message_no FROM named
), received AS (
    SELECT m.finding, d.delivery_id, d.invocation_id FROM of_messages m
    JOIN deliveries d USING (message_no)
), runs AS (
    SELECT finding, unnest(invocation_ids) AS invocation_id FROM named
    UNION SELECT finding, invocation_id FROM received
), led AS (
    SELECT n.finding, f.fault_id
    FROM (SELECT finding, unnest(call_ids) AS call_id FROM named) n JOIN faults f USING (call_id)
    UNION SELECT r.finding, f.fault_id FROM runs r JOIN faults f USING (invocation_id)
    UNION SELECT r.finding, f.fault_id FROM received r JOIN faults f USING (delivery_id)
    UNION SELECT m.finding, f.fault_id FROM of_messages m JOIN faults f USING (message_no)
        WHERE f.invocation_id IS NULL AND f.delivery_id IS NULL
    -- Of all messages at once: a plan sent again, all dead letters moved back.
    UNION SELECT m.finding, f.fault_id FROM of_messages m CROSS JOIN (
        FROM faults WHERE coalesce(message_no, delivery_id, invocation_id, call_id) IS NULL
    ) f WHERE f.name <> 'redrive' OR m.message_no IN (
        SELECT message_no FROM deliveries WHERE queue = 'dlq' AND message_no IS NOT NULL
    )
)
SELECT l.finding, f.*, count(*) OVER (PARTITION BY l.finding) AS total
FROM led l JOIN faults f USING (fault_id)
QUALIFY row_number() OVER (PARTITION BY l.finding ORDER BY f."at", f.fault_id) <= $most
ORDER BY l.finding, f."at", f.fault_id
"""


def count_faults(evidence: Evidence) -> tuple[FaultCount, ...]:
    """The rules of the run's fault plan, in its order, with how often each fired; none where that
    was not to be seen."""
    if not evidence.run.faults or Observation.CALLS in evidence.run.not_observable:
        return ()
    rows = evidence.rows("SELECT rule, count(*) AS fired FROM faults GROUP BY rule")
    fired = {row["rule"]: row["fired"] for row in rows}
    return tuple(
        FaultCount(rule.name, rule.text, rule.opportunities, fired.get(number, 0))
        for number, rule in enumerate(evidence.run.faults, 1)
    )


def name_faults(evidence: Evidence, checks: Sequence[CheckReport]) -> tuple[CheckReport, ...]:
    """The checks with the faults that led to each of their findings."""
    findings = [finding for check in checks for finding in _findings(check)]
    if not findings or not evidence.scalar("SELECT count(*) FROM faults"):
        return tuple(checks)
    rows = evidence.rows(
        _LED,
        {
            "messages": [list(finding.message_nos) for finding in findings],
            "invocations": [list(finding.invocation_ids) for finding in findings],
            "calls": [list(finding.call_ids) for finding in findings],
            "most": MOST_FAULTS,
        },
    )
    led: list[list[dict[str, Any]]] = [[] for _ in findings]
    for row in rows:
        led[row["finding"]].append(row)
    named = iter(
        replace(
            finding,
            faults=tuple(FiredFault(row["fault_id"], row["name"], fault_text(row)) for row in own),
            fault_count=own[0]["total"] if own else 0,
        )
        for finding, own in zip(findings, led, strict=True)
    )
    return tuple(
        replace(
            check,
            findings=tuple(next(named) for _ in check.findings),
            groups=tuple(replace(group, example=next(named)) for group in check.groups),
        )
        for check in checks
    )


def _findings(check: CheckReport) -> list[Finding]:
    return [*check.findings, *(group.example for group in check.groups)]


def fault_text(row: dict[str, Any]) -> str:
    """A row of the table ``faults`` in words: ``lost-reply on call 3 of invocation 2``."""
    where = []
    if row["call_id"] is not None:
        where.append(f"call {row['call_id']}")
    if row["invocation_id"] is not None:
        where.append(f"invocation {row['invocation_id']}")
    elif row["receive"] is not None:
        where += [f"receive {row['receive']}", f"message {row['message_no']}"]
    elif row["message_no"] is not None:
        where.append(f"message {row['message_no']}")
    text = f"{row['name']} on {' of '.join(where)}" if where else str(row["name"])
    return visible(f"{text} ({row['detail']})" if row["detail"] else text)
