"""The checks: one question each, asked of the evidence in SQL.

``sql/views.sql`` works out what several checks need, ``sql/<kind>.sql`` is one check and
begins with its reasoning. A check's query gives one row per finding, with the columns
``order_key``, ``message_nos``, ``invocation_ids``, ``call_ids``, ``flags`` and those that
its sentence names. The same SQL judges ten messages and ten million.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from analysis.base import fill, make_base
from analysis.findings import (
    MAX_GROUPS,
    MAX_SHOWN,
    CheckReport,
    CheckStatus,
    Finding,
    FindingGroup,
    FindingKind,
)
from analysis.schema import Observation, TableRole
from analysis.scratch import lacks_room
from analysis.store import Evidence
from analysis.text import short_item, visible

_WRITES = ("messages", "deliveries", "invocations", "calls", "call_items")
_FATES = ("messages", "deliveries", "acks", "calls", "call_items", "faults")
_MOST_PATTERN = 400  # characters
_ITEMS = {"item_key", "before", "after", "image", "written", "final", "sent", "stored", "details"}


@dataclass(frozen=True, slots=True)
class Check:
    """One question. Its SQL is ``sql/<kind>.sql``."""

    kind: FindingKind
    question: str
    assumption: str
    sentence: str  # explains one row, which fills in the names
    needs: tuple[str, ...]  # tables that must have all their rows
    sees: tuple[Observation, ...]  # what the run must have been able to show
    after_end: bool = False  # asks for what had not happened: only a run that ended can tell
    needs_results: bool = False


CHECKS: tuple[Check, ...] = (
    Check(
        FindingKind.OVERWRITE,
        "Did an accepted write replace an item that was already there?",
        "the store returns the old item together with the write that replaced it",
        "Call {call_id} replaced an item in {resource}: {before} became {after}.",
        needs=("calls", "call_items"),
        sees=(Observation.WRITES,),
    ),
    Check(
        FindingKind.DOUBLE_ACCEPT,
        "Was an order inserted more than once?",
        "the store returns the old item together with the write",
        "Order {order_key} was inserted {inserts} times (different items: {items}).",
        needs=("calls", "call_items", "deliveries", "messages", "faults"),
        sees=(Observation.CALLS,),
    ),
    Check(
        FindingKind.PHANTOM_WRITE,
        "Does a stored item hold details that no message carries?",
        "the plan names every message before the first one is sent",
        "The item under {item_key} in {resource} says {image}; no message of its order does.",
        needs=_WRITES,
        sees=(Observation.ITEMS,),
    ),
    Check(
        FindingKind.WRONG_KEY,
        "Was an item stored under a key that is not the order's?",
        "a handler writes only the orders of the messages it was given",
        "An item of {owner} was stored under the key {item_key} in {resource}.",
        needs=_WRITES,
        sees=(Observation.CALLS,),
    ),
    Check(
        FindingKind.LOST_ORDER,
        "Was an order acknowledged and never stored?",
        "the final items are read strongly consistently after all environments stopped",
        "Order {order_key} has no item, yet all its messages ({messages}) were deleted as done.",
        needs=(*_FATES, "items"),
        sees=(Observation.ENDS, Observation.ITEMS),
        after_end=True,
    ),
    Check(
        FindingKind.VANISHED_ORDER,
        "Did an item change or disappear without a write that explains it?",
        "all writes of the handlers pass through the gateway",
        "Call {call_id} left {written} in {resource}; in the end there was {final} under "
        "{item_key}, and no write explains that.",
        needs=("calls", "call_items", "items"),
        sees=(Observation.CALLS,),
        after_end=True,
    ),
    Check(
        FindingKind.CONFLICT_ACKNOWLEDGED,
        "Was a message acknowledged although other details are stored for its order?",
        "the details stored first are the order's",
        "Message {message_no} says {sent}, but {stored} was stored for order {order_key}, and "
        "the message was deleted as done.",
        needs=_FATES,
        sees=(Observation.ENDS, Observation.ITEMS),
    ),
    Check(
        FindingKind.POISON_ACKNOWLEDGED,
        "Was a message that no handler can accept acknowledged as done?",
        "the plan knows which messages are poison",
        "Message {message_no} is poison and was deleted as done.",
        needs=_FATES,
        sees=(Observation.ENDS,),
    ),
    Check(
        FindingKind.POISON_STORED,
        "Did a message that no handler can accept leave an item?",
        "the plan knows which messages are poison",
        "The poison message {order_key} left the item {item_key} in {resource}.",
        needs=(*_WRITES, "items"),
        sees=(Observation.ITEMS,),
    ),
    Check(
        FindingKind.DUPLICATE_FAILED,
        "Was a harmless copy of a stored order dead-lettered?",
        "an invocation that began after the order was stored could see it",
        "Message {message_no} says exactly what was already stored for order {order_key}, and "
        "was dead-lettered (receives: {receives}).",
        needs=(*_FATES, "invocations"),
        sees=(Observation.WRITES, Observation.DELIVERIES, Observation.ENDS),
    ),
    Check(
        FindingKind.UNJUSTIFIED_REJECTION,
        "Was something taken for a duplicate before there was anything to duplicate?",
        "times are from one clock; equal times are concurrent; an unknown write may have happened",
        "For order {order_key}, {what}, and no write that began before could have caused it.",
        needs=_WRITES,
        sees=(Observation.CALLS, Observation.ORDER),
    ),
    Check(
        FindingKind.SELF_CONFLICT,
        "Was a handler's own lost write taken for somebody else's?",
        "the tester knows what the store did, also where it threw the reply away",
        "Call {call_id} was rejected because of call {own_call_id}, the same invocation's own "
        "earlier attempt, and {what}.",
        needs=(*_FATES, "invocations", "items", "results", "effects"),
        sees=(Observation.CALLS,),
    ),
    Check(
        FindingKind.RESULT_MISMATCH,
        "Does a reported result contradict the calls that were made?",
        "all writes of the handlers pass through the gateway",
        "Message {message_no} was reported as {result}, but {but}.",
        needs=_WRITES,
        sees=(Observation.RESULTS, Observation.CALLS),
        needs_results=True,
    ),
    Check(
        FindingKind.DIVERGENT_RESULT,
        "Do the results of one order agree with the stored item?",
        "a returned field that is named like a field of the order means that field",
        "Message {message_no} of order {order_key} was answered with another {fields} than the "
        "stored {details}.",
        needs=_WRITES,
        sees=(Observation.RESULTS,),
        needs_results=True,
    ),
    Check(
        FindingKind.PREMATURE_ACK,
        "Was a message deleted before its work was settled?",
        "times are from one clock of one host",
        "A message of order {order_key} was deleted {moment}.",
        needs=_WRITES,
        sees=(Observation.CALLS, Observation.DELETES),
    ),
    Check(
        FindingKind.BATCH_MISREPORT,
        "Does the answer for a batch say what happened to its messages?",
        "the answer is read by the rules of AWS's event source mapping",
        "In invocation {invocation_id}, message {message_no} {what}.",
        needs=(*_WRITES, "acks", "results", "faults"),
        sees=(Observation.RESULTS,),
    ),
    Check(
        FindingKind.DUPLICATE_EFFECT,
        "Did a side effect of an order happen more than once?",
        "every call that counts as the effect passes through the gateway and names its order",
        "The effect {effect} of order {order_key} happened {times}.",
        needs=(*_FATES, "effects"),
        sees=(Observation.CALLS,),
    ),
    Check(
        FindingKind.MISSING_EFFECT,
        "Is an order stored of which a side effect never happened?",
        "every call that counts as the effect passes through the gateway and names its order",
        "Order {order_key} is stored and its messages are settled, and the effect {effect} never "
        "happened.",
        needs=(*_FATES, "items", "effects"),
        sees=(Observation.CALLS,),
        after_end=True,
    ),
    Check(
        FindingKind.DEAD_LETTERED_ORDER,
        "Is a valid order in the dead-letter queue, with nothing stored?",
        "the dead-letter queue is read until the run ends",
        "Order {order_key} is valid, was dead-lettered and has no item (messages: {messages}).",
        needs=(*_FATES, "items"),
        sees=(Observation.DELIVERIES, Observation.ENDS, Observation.ITEMS),
        after_end=True,
    ),
    Check(
        FindingKind.STUCK_MESSAGE,
        "Is a message or a claim stuck?",
        "a message whose receives are spent moves to the dead-letter queue when it is due",
        "For order {order_key}, {what}.",
        needs=(*_FATES, "items"),
        sees=(Observation.CALLS, Observation.OTHER_ITEMS),
        after_end=True,
    ),
    Check(
        FindingKind.UNRELATED_WRITE,
        "Did anything change that does not belong to the run?",
        "the tables were read before the first message and after the last",
        "The item {item_key} in {resource} does not belong to this run and was changed.",
        needs=("items",),
        sees=(Observation.OTHER_ITEMS,),
    ),
)


def run_checks(evidence: Evidence) -> tuple[CheckReport, ...]:
    """Ask every check, in the order of :data:`CHECKS`. Leaves the views of ``views.sql``.

    A check that fails is reported as crashed and stops no other. Want of memory or disk is no
    failure of a check and ends the judging (:class:`analysis.errors.ScratchError`).
    """
    try:
        prepare(evidence)
        broken = None
    except Exception as error:
        if lacks_room(error):
            raise
        broken = error
    return tuple(_ask(check, evidence, broken) for check in CHECKS)


def sql_of(name: str) -> str:
    """The text of ``sql/<name>.sql``."""
    return (files("analysis") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def prepare(evidence: Evidence) -> None:
    """Make the tables of ``sql/places.sql`` and ``sql/views.sql``.

    Once for each opening of the evidence.
    """
    run = evidence.run
    evidence.rows(
        """
        CREATE TABLE facts AS SELECT $ended AS ended, $ended_at::BIGINT AS ended_at,
            $visibility_timeout_ns AS visibility_timeout_ns,
            $max_receive_count AS max_receive_count, $drop_poison AS drop_poison,
            $report_batch_item_failures AS report_batch_item_failures,
            $names_processed AS names_processed, $sees_calls AS sees_calls,
            $sees_writes AS sees_writes
        """,
        {
            "ended": evidence.ended,
            "ended_at": run.ended_at,
            "visibility_timeout_ns": run.visibility_timeout_s * 1_000_000_000,
            "max_receive_count": run.max_receive_count,
            "drop_poison": run.expect.poison == "drop",
            "report_batch_item_failures": run.report_batch_item_failures,
            "names_processed": run.result.processed is not None,
            "sees_calls": Observation.CALLS not in run.not_observable,
            "sees_writes": Observation.WRITES not in run.not_observable,
        },
    )
    make_base(evidence)
    evidence.rows(sql_of("places"))
    fill(evidence, "effective", "effective_items", "call_id")
    fill(evidence, "refused", "refused_items", "call_id")
    evidence.rows(sql_of("views"))
    fill(evidence, "differing", "results", "invocation_id")


def _ask(check: Check, evidence: Evidence, broken: Exception | None) -> CheckReport:
    if broken is None:
        obstacle = _obstacle(check, evidence)
        if obstacle is not None:
            return _report(check, CheckStatus.NOT_OBSERVABLE, note=obstacle)
        try:
            return _answer(check, evidence)
        except Exception as error:  # whatever it is: the other checks must still be asked
            if lacks_room(error):
                raise
            broken = error
    return _report(check, CheckStatus.CRASHED, note=f"{type(broken).__name__}: {broken}")


def _answer(check: Check, evidence: Evidence) -> CheckReport:
    evidence.rows(f"CREATE OR REPLACE TABLE asked AS {sql_of(check.kind)}")
    count = evidence.scalar("SELECT count(*) FROM asked")
    if not count:
        return _report(check, CheckStatus.CLEAN)
    # A hash of the whole row makes the order of equal ids the same in every judgement.
    rows = evidence.rows(
        "SELECT * FROM asked a "
        "ORDER BY order_key, message_nos, invocation_ids, call_ids, flags, hash(a) "
        f"LIMIT {MAX_SHOWN}"
    )
    patterns = evidence.rows(f"{sql_of('patterns')} LIMIT {MAX_GROUPS}")
    groups = []
    for pattern in patterns:
        (row,) = evidence.rows("SELECT * FROM asked WHERE rowid = ?", [pattern["example"]])
        text = visible(pattern["pattern"], _MOST_PATTERN)
        groups.append(
            FindingGroup(text, pattern["findings"], pattern["orders"], _finding(check, row))
        )
    evidence.rows("DROP TABLE asked")
    return replace(
        _report(check, CheckStatus.FOUND),
        count=count,
        findings=tuple(_finding(check, row) for row in rows),
        groups=tuple(groups),
        patterns=patterns[0]["patterns"],
    )


def _report(check: Check, status: CheckStatus, note: str | None = None) -> CheckReport:
    return CheckReport(check.kind, check.question, check.assumption, status, 0, note=note)


def _obstacle(check: Check, evidence: Evidence) -> str | None:
    """Why the evidence cannot answer the check."""
    run = evidence.run
    hidden = next((kind for kind in check.sees if kind in run.not_observable), None)
    if hidden is not None:
        return run.not_observable[hidden]
    damaged = sorted(evidence.damaged.intersection(check.needs))
    if damaged:
        return f"Rows are missing in: {', '.join(damaged)}."
    if check.after_end and not evidence.ended:
        return "The run did not come to its end, and the final items were not read."
    if all(table.role is not TableRole.ORDERS for table in run.tables):
        return "The run has no table of role orders."
    if check.needs_results and run.result.processed is None and run.result.duplicate is None:
        return "[result] names no fields, so results are not attributed."
    return None


def _finding(check: Check, row: dict[str, Any]) -> Finding:
    return Finding(
        kind=check.kind,
        order_key=row["order_key"],
        explanation=check.sentence.format_map({name: _said(name, row[name]) for name in row}),
        message_nos=tuple(row["message_nos"] or ()),
        invocation_ids=tuple(row["invocation_ids"] or ()),
        call_ids=tuple(row["call_ids"] or ()),
        flags=tuple(row["flags"]),
    )


def _said(column: str, value: object) -> str:
    if value is None:
        return "not known"
    return short_item(str(value)) if column in _ITEMS else visible(str(value))
