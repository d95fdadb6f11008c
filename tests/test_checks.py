"""Each check on one-line histories: what it must find, and what it must leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks import run_checks
from analysis.findings import CheckReport, CheckStatus, FindingKind
from analysis.schema import (
    Delivery,
    ExpectInfo,
    ItemRow,
    Message,
    MessageKind,
    OrderInfo,
    Phase,
    QueueRole,
    Row,
    RunInfo,
    RunStatus,
    TableInfo,
    TableRole,
    item_text,
)
from analysis.store import open_evidence
from tests.histories import EFFECTS, RUN, TABLE_INFOS, write_history

CLAIMS = replace(
    RUN,
    tables=(
        TableInfo("orders", TableRole.ORDERS, "id", complete_when={"status": ["COMPLETED"]}),
        *TABLE_INFOS[1:],
    ),
)
SORTED = replace(
    RUN, tables=(TableInfo("orders", TableRole.ORDERS, "id", sort="sk"), *TABLE_INFOS[1:])
)
BATCHES = replace(RUN, batch_size=10, report_batch_item_failures=True)
KILLED = replace(RUN, status=RunStatus.RUNNING, ended_at=None)
STOPPED = replace(RUN, status=RunStatus.INTERRUPTED)
NOT_DRAINED = replace(RUN, status=RunStatus.NOT_DRAINED)
DROP = replace(RUN, expect=ExpectInfo(contended_orders=0, poison="drop"))
LONG_AFTER = replace(NOT_DRAINED, ended_at=10_000_000_000)
EFFECTING = replace(RUN, effects=EFFECTS)
# As AWS's Powertools library does it: a record in progress, then completed; expired ones are
# taken over, failed ones deleted. Beside it the order is written without a condition.
_CLAIM = "/on=guard/status=INPROGRESS/cond=attribute_not_exists(id)OR(expiration<7)"
_DONE = "/on=guard/status=COMPLETED/any/update"

DIRTY: list[tuple[str, str, RunInfo, set[str]]] = [
    # unconditional put: the copy replaces the item, with the same content
    ("overwrite identical", "1<A4 1+/any 1>p 2<A4 2+/any 2>p", RUN, {"overwrite"}),
    (
        "overwrite by a conflict",
        "1<A4 1+/any 1>p 2<A5 2+/any 2>p",
        RUN,
        {"overwrite", "conflict-acknowledged"},
    ),
    ("overwrite by an update", "1<A4 1+ 1>p 2<A4 2+/update/any 2>p", RUN, {"overwrite"}),
    ("overwrite by read-then-write", "1<A4 2<A4 1r 2r 1+/any 2+/any 1>p 2>p", RUN, {"overwrite"}),
    # a step that changes the details is no step
    (
        "overwrite by its own invocation",
        "1<A4 1+ 1+/any/q=5 1>p",
        RUN,
        {"overwrite", "phantom-write"},
    ),
    (
        "a finished item turned into a claim again",
        "1<A4 1+/status=COMPLETED 1>p 2<A4 2+/any/status=CLAIMED 2+/any/status=COMPLETED 2>p",
        CLAIMS,
        {"overwrite", "double-accept"},
    ),
    # the store accepted two inserts
    ("double accept", "1<A4 2<A4 1.&2. 1+&2+/before={} 1>p 2>p", RUN, {"double-accept"}),
    (
        "resurrected",
        "1<A4 1+ 1>p 2<A4 2+/delete 2+ 2>p",
        RUN,
        {"double-accept"},
    ),
    (
        "inserted again after another deleted it",
        "1<A4 1+ 2<A4 2+/delete 1+ 1>p 2>f 3<#2 3- 3>d",
        RUN,
        {"double-accept"},
    ),
    (
        "two items by a sort key",
        "1<A4 1+/sk=t1 1>p 2<A4 2+/sk=t2 2>p",
        SORTED,
        {"double-accept"},
    ),
    (
        "two items by a random key",
        "1<A4 1+/key=u1 1>p 2<A4 2+/key=u2 2>p",
        RUN,
        {"double-accept", "wrong-key"},
    ),
    ("phantom", "1<A4 1+/q=7 1>p", RUN, {"phantom-write"}),
    ("wrong key", "1<A4 1+/key=message-id 1>p", RUN, {"wrong-key"}),
    (
        "wrong key in a batch",
        "1<A4,B3 1+/of=A/key=u1 1+/of=B 1>.",
        BATCHES,
        {"wrong-key", "lost-order"},
    ),
    ("wrong key, another case", "1<Ab4 1+/key=ab 1>p", RUN, {"wrong-key"}),
    (
        "wrong key, that of another order",
        "1<A4 1+/key=B 1>p 2<B4 2- 2>d",
        RUN,
        {"wrong-key", "lost-order"},
    ),
    ("lost: acknowledged without a write", "1<A4 1>.", RUN, {"lost-order"}),
    ("lost: the write failed", "1<A4 1! 1>.", RUN, {"lost-order", "batch-misreport"}),
    ("lost: deleted by the handler", "1<A4 1+ 1+/delete 1>.", RUN, {"lost-order"}),
    ("lost although another message was never accepted", "1<A4 1>. plan#A4", RUN, {"lost-order"}),
    ("lost, received again as it was deleted", "1<A4 1>.&2<#1 2>f", RUN, {"lost-order"}),
    ("lost in an interrupted run", "1<A4 1>. plan#A4", STOPPED, {"lost-order"}),
    ("vanished", "1<A4 1+ 1>p =A", RUN, {"vanished-order"}),
    ("changed behind our back", "1<A4 1+ 1>p =A5", RUN, {"vanished-order"}),
    (
        "went back to an earlier item",
        "1<A4 1+ 1+/any/q=4/status=SENT 1>p =A4",
        RUN,
        {"vanished-order"},
    ),
    ("conflict acknowledged", "1<A4 1+ 1>p 2<A5 2- 2>d", RUN, {"conflict-acknowledged"}),
    (
        "the original is the conflict",
        "send#A4 1<A5 1+ 1>p 2<#1 2- 2>d",
        RUN,
        {"conflict-acknowledged"},
    ),
    ("poison acknowledged", "1<X! 1>.", RUN, {"poison-acknowledged"}),
    ("poison redriven", "1<X! 1>f dlq#1 2<#1 2>.", RUN, {"poison-acknowledged"}),
    ("poison acknowledged and stored", "1<X! 1+ 1>p", DROP, {"poison-stored"}),
    ("poison stored and refused", "1<X! 1+ 1>f dlq#1", RUN, {"poison-stored"}),
    ("poison stored twice", "1<X! 1+/any 1>f 2<#1 2+/any 2>f dlq#1", RUN, {"poison-stored"}),
    ("poison stored under a random key", "1<X! 1+/key=u1 1>f dlq#1", RUN, {"poison-stored"}),
    (
        "poison over an order's item",
        "1<A4 1+ 1>p 2<X! 2+/any/key=A/q=9 2>f dlq#2",
        RUN,
        {"poison-stored", "lost-order"},
    ),
    ("poison stored, run killed", "1<X! 1+ 1>f", KILLED, {"poison-stored"}),
    ("duplicate dead-lettered", "1<A4 1+ 1>p 2<A4 2- 2>f dlq#2", RUN, {"duplicate-failed"}),
    (
        "its own redelivery dead-lettered",
        "1<A4 1+ 1>f 2<#1 2- 2>f dlq#1",
        RUN,
        {"duplicate-failed"},
    ),
    (
        "duplicate dead-lettered, the insert's reply lost",
        "1<A4 1?/did 1>timeout 2<A4 2- 2>f dlq#2 3<#1 3- 3>d",
        RUN,
        {"duplicate-failed"},
    ),
    ("duplicate set aside", "1<A4 1+ 1>p 2<A4 2- 2@sqs 2>. aside#2", RUN, {"duplicate-failed"}),
    (
        "rejected before anything was there",
        "1<A4 1- 1>f 2<A4 2+ 2>p 3<#1 3- 3>d",
        RUN,
        {"unjustified-rejection"},
    ),
    (
        "reported duplicate before anything was there",
        "1<A4 1>d 2<A4 2+ 2>p",
        RUN,
        {"unjustified-rejection"},
    ),
    ("processed without a write", "1<A4 1+ 1>p 2<A4 2- 2>p", RUN, {"result-mismatch"}),
    ("duplicate of its own insert", "1<A4 1+ 1>d", RUN, {"result-mismatch"}),
    ("another quantity in the answer", "1<A4 1+ 1>p 2<A4 2- 2>d/says=5", RUN, {"divergent-result"}),
    ("deleted before the end", "1<A4 1+ 1* 1>p/open", RUN, {"premature-ack"}),
    ("deleted before the write was answered", "1<A4 1. 1>. 1+", RUN, {"premature-ack"}),
    (
        "written in the background of the next invocation",
        "1<A4/env=1 1>. 2<B4/env=1 2+ 2+/key=A/q=4 2>p",
        RUN,
        {"premature-ack"},
    ),
    ("written outside any invocation", "1<A4 1>. 1+/by=0", RUN, {"premature-ack"}),
    (
        "one failure fails the batch",
        "1<A4,B3 1+/of=A 1+/of=B 1>f 2<#1 2- 2>d 3<#2 3- 3>d",
        BATCHES,
        {"batch-misreport"},
    ),
    (
        "stored, and named as failed",
        "1<A4,B3 1+/of=A 1+/of=B 1>b 2<#1 2- 2>d 3<#2 3- 3>d",
        BATCHES,
        {"batch-misreport"},
    ),
    (
        "failed, and not named",
        "1<A4,B3 1!/of=A 1+/of=B 1>. 2<A4 2+ 2>p",
        BATCHES,
        {"batch-misreport"},
    ),
    (
        "stored and named as failed, one of two copies",
        "1<A4,A4 1+/of=A 1r/of=A 1>b 2<#1 2- 2>d 3<#2 3- 3>d",
        BATCHES,
        {"batch-misreport"},
    ),
    ("named where nobody reads it", "1<A4 1+ 1>./names", RUN, {"batch-misreport"}),
    ("order dead-lettered", "1<A4 1! 1>f dlq#1", RUN, {"dead-lettered-order"}),
    ("order dead-lettered under a new id", "1<A4 1! 1>f aside#1", RUN, {"dead-lettered-order"}),
    ("order set aside", "1<A4 1@sqs 1>. aside#1", RUN, {"dead-lettered-order"}),
    ("stuck", "1<A4/receives=3 1! 1>f", LONG_AFTER, {"stuck-message"}),
    (
        "claim left in the orders table",
        "1<A4 1+/status=CLAIMED 1>f dlq#1",
        CLAIMS,
        {"stuck-message"},
    ),
    (
        "claim left by a crash, never taken over",
        "1<A4 1+/status=CLAIMED 1r/fault 1>crash 2<#1 2-/status=CLAIMED 2>f dlq#1",
        CLAIMS,
        {"stuck-message"},
    ),
    (
        "claim left in the guard table",
        "1<A4 1+/on=guard/status=INPROGRESS 1+ 1>p",
        RUN,
        {"stuck-message"},
    ),
    ("reference gone", "1<A4 1+ 1>p =reference/on=reference", RUN, {"unrelated-write"}),
    (
        "reference written",
        "1<A4 1+ 1+/any/on=reference/key=reference 1>p",
        RUN,
        {"unrelated-write"},
    ),
    (
        "rejected, then written all the same",
        "1<A4 1+ 1>p 2<A4 2- 2+/any 2>p",
        RUN,
        {"overwrite"},
    ),
    ("phantom that no recorded write made", "1<A4 1>. =A7", RUN, {"phantom-write"}),
    (
        "lost: one write failed, the reply to another was lost",
        "1<A4 1! 1!/reply=unknown 1>.",
        RUN,
        {"lost-order"},
    ),
    ("lost, though named as failed", "1<A4 1>b/names/open 1*", BATCHES, {"lost-order"}),
    ("poison acknowledged after a failed write", "1<X! 1! 1>.", RUN, {"poison-acknowledged"}),
    (
        "poison stored in steps, run killed",
        "1<X! 1+/status=CLAIMED 1+/any/status=COMPLETED 1>f",
        replace(CLAIMS, status=RunStatus.RUNNING, ended_at=None),
        {"poison-stored"},
    ),
    (
        "duplicate dead-lettered, known from a read",
        "1<A4 2<A4 1+ 2r 2>f dlq#2 1>p",
        RUN,
        {"duplicate-failed"},
    ),
    (
        "another order of the batch was written, this one reported as duplicate",
        "1<A4,B3 1+/of=B 1>d 2<A4 2+ 2>p",
        BATCHES,
        {"unjustified-rejection", "result-mismatch"},
    ),
    (
        "another order of the batch was written, this one reported as processed",
        "1<A4 1+ 1>p 2<A4,B3 2-/of=A 2+/of=B 2>p",
        BATCHES,
        {"result-mismatch"},
    ),
    (
        "processed before it was written",
        "1<A4 1>p 1+",
        RUN,
        {"result-mismatch", "premature-ack"},
    ),
    (
        "deleted before the second of two writes",
        "1<A4 1+ 1. 1>p 1+/update/any/status=SENT",
        RUN,
        {"premature-ack"},
    ),
    (
        "stored, and named as failed because another order failed",
        "1<A4,B3 1+/of=A 1!/of=B 1>b 2<#1 2- 2>d 3<#2 3+ 3>p",
        BATCHES,
        {"batch-misreport"},
    ),
    (
        "claim left by a write of which nobody knows",
        "1<A4 1?/status=CLAIMED/did 1>timeout 2<#1 2-/status=CLAIMED 2>f dlq#1",
        CLAIMS,
        {"stuck-message"},
    ),
    (
        "claim left by who took it over from one that crashed",
        "1<A4 2<A4 1+/status=CLAIMED 2+/any/status=CLAIMED2 1r/fault 1>crash 2>f dlq#1 dlq#2",
        CLAIMS,
        {"stuck-message"},
    ),
    (
        "claim left by a crash, seen before and after it",
        "1<A4 2<A4 2+/status=CLAIMED 2r/fault 2>crash 1-/status=CLAIMED 1>f dlq#1 "
        "3<#2 3-/status=CLAIMED 3>f dlq#2",
        CLAIMS,
        {"stuck-message"},
    ),
    ("inserted and taken back, twice", "1<A4 1+ 1+/delete 1+ 1+/delete 1>d", RUN, {"lost-order"}),
    ("taken back in vain", "1<A4 1+ 1!/delete 1>d", RUN, {"result-mismatch"}),
    (
        "rejected under a condition that an absent item meets",
        "1<A4 1-/cond=quantity<>:q 1>f 2<A4 2+ 2>p 3<#1 3- 3>d",
        RUN,
        {"unjustified-rejection"},
    ),
    ("poison stored by no recorded write", "1<X! 1>f dlq#1 =X!7", RUN, {"poison-stored"}),
    (
        "lost, and only its guard is complete",
        "1<A4 1+/on=guard/key=A/status=COMPLETED 1>. 2<A5 2-/on=guard/key=A 2>.",
        RUN,
        {"lost-order"},
    ),
    ("lost, deleted at the third receive", "1<A4 1>. 2<#1 2! 2>f 3<#1 3>.", RUN, {"lost-order"}),
    (
        "conflict acknowledged, and a message sent elsewhere",
        "1<A4 1+ 1>p 2<A5 2- 2@sqs 2>.",
        RUN,
        {"conflict-acknowledged"},
    ),
    (
        "order dead-lettered again after a redrive",
        "1<A4 1! 1>f dlq#1 2<#1 2! 2>f dlq#1",
        RUN,
        {"dead-lettered-order"},
    ),
    (
        "order dead-lettered, another message of it deleted",
        "1<A4 1>. 2<A4 2! 2>f dlq#2",
        RUN,
        {"dead-lettered-order"},
    ),
    (
        "order dead-lettered after a claim was taken over and released",
        "1<A4 1+/status=CLAIMED 1>crash 2<#1 2+/any/status=CLAIMED2 2+/delete 2>f dlq#1",
        CLAIMS,
        {"dead-lettered-order"},
    ),
    (
        "duplicate dead-lettered, known from a finished claim",
        "1<A4 1+/status=COMPLETED 1>p 2<A4 2-/status=COMPLETED 2>f dlq#2",
        CLAIMS,
        {"duplicate-failed"},
    ),
    (
        "order dead-lettered as it was received",
        "1<A4/receives=3&dlq#1 1! 1>f",
        LONG_AFTER,
        {"dead-lettered-order"},
    ),
    # a definite finding counts in a run that was killed
    (
        "reference written, run killed",
        "1<A4 1+ 1+/any/on=reference/key=reference",
        KILLED,
        {"unrelated-write"},
    ),
    ("overwrite, run killed", "1<A4 1+/any 1>p 2<A4 2+/any", KILLED, {"overwrite"}),
    (
        "poison acknowledged after a read, run killed",
        "1<X! 1r 1>.",
        KILLED,
        {"poison-acknowledged"},
    ),
    (
        "conflict acknowledged, run killed",
        "1<A4 1+ 1>p 2<A5 2- 2>d 3<A4",
        KILLED,
        {"conflict-acknowledged"},
    ),
]
DIRTY += [
    # what faults make possible
    ("own write taken for a copy's", "1<A4 1+/reply=unknown/fault 1- 1>d", RUN, {"self-conflict"}),
    ("own write refused", "1<A4 1+/reply=unknown/fault 1- 1>f 2<#1 2- 2>d", RUN, {"self-conflict"}),
    (
        "own claim in the way",
        "1<A4 1+/on=guard/status=INPROGRESS/reply=unknown/fault 1-/on=guard 1>f "
        "2<#1 2+/any/on=guard/status=INPROGRESS 2+ 2+/any/on=guard/status=COMPLETED 2>p",
        RUN,
        {"self-conflict"},
    ),
    (
        "own write, and no effect",
        "1<A4 1+/reply=unknown/fault 1- 1>.",
        EFFECTING,
        {"self-conflict", "missing-effect"},
    ),
    ("effect twice", "1<A4 1+ 1@sns/effect 1@sns/effect 1>p", EFFECTING, {"duplicate-effect"}),
    (
        "effect by each copy",
        "1<A4 1+ 1@sns/effect 1>p 2<A4 2- 2@sns/effect 2>d",
        EFFECTING,
        {"duplicate-effect"},
    ),
    (
        "effect sent again after a lost reply",
        "1<A4 1+ 1@sns/effect/reply=unknown/fault 1@sns/effect 1>p",
        EFFECTING,
        {"duplicate-effect"},
    ),
    (
        "two effects are enough, whatever the third",
        "1<A4 1+ 1@sns/effect 1@sns/effect 1@sns/effect=unknown 1>p",
        EFFECTING,
        {"duplicate-effect"},
    ),
    ("effect of poison", "1<X! 1@sns/effect 1>f dlq#1", EFFECTING, {"duplicate-effect"}),
    (
        "effect of an order that was refused",
        "1<A4 1@sns/effect 1! 1>f dlq#1",
        EFFECTING,
        {"duplicate-effect", "dead-lettered-order"},
    ),
    (
        "effect of an order that was lost",
        "1<A4 1@sns/effect 1>.",
        EFFECTING,
        {"duplicate-effect", "lost-order"},
    ),
    ("no effect", "1<A4 1+ 1>p", EFFECTING, {"missing-effect"}),
    (
        "effect failed, and nobody cared",
        "1<A4 1+ 1@sns/effect=failed/reply=failed/fault=throttle 1>p",
        EFFECTING,
        {"missing-effect"},
    ),
    (
        "crashed before the effect",
        "1<A4 1+/reply=unknown/fault=crash-after-call 1>crash 2<#1 2- 2>d",
        EFFECTING,
        {"missing-effect"},
    ),
    (
        "effect of another order only",
        "1<A4,B3 1+/of=A 1+/of=B 1@sns/effect/of=A 1>.",
        replace(BATCHES, effects=EFFECTS),
        {"missing-effect"},
    ),
    (
        "refused in the one receive that was given to it",
        "send#A4 skip#1 skip#1 1<#1 1! 1>f dlq#1",
        RUN,
        {"dead-lettered-order"},
    ),
    (
        "refused again after it was moved back",
        "1<A4 1+ 1>p 2<A4 2- 2>f dlq#2 redrive#2 3<#2/resent 3- 3>f dlq#2/resent",
        RUN,
        {"duplicate-failed"},
    ),
    (
        "lost after it was moved back",
        "1<A4 1!/fault 1>f dlq#1 redrive#1 2<#1/resent 2>.",
        RUN,
        {"lost-order"},
    ),
    (
        "stored twice after somebody deleted it",
        "1<A4 1+ 1>p wipe#1 2<A4 3<A4 2.&3. 2+&3+/before={} 2>p 3>p",
        RUN,
        {"double-accept"},
    ),
    ("lost, and there was nothing to delete", "1<A4 1>. wipe#1", RUN, {"lost-order"}),
    (
        "lost beside another that somebody deleted",
        "1<A4 1+ 1>p wipe#1 2<B4 2>.",
        RUN,
        {"lost-order"},
    ),
    (
        "refused although the reply was only slow",
        "1<A4 1+ 1>p 2<A4 2-/fault=slow 2>f dlq#2",
        RUN,
        {"duplicate-failed"},
    ),
    (
        "guard left by a crash, never taken over",
        f"1<A4 1+{_CLAIM} 1+/any 1r/fault=crash-after-call 1>crash 2<#1 2-{_CLAIM} 2>f dlq#1",
        RUN,
        {"stuck-message"},
    ),
    (
        "written again under a guard that expired",
        f"1<A4 1+{_CLAIM} 1+/any/fault=crash-after-call 1>crash "
        f"2<#1 2+{_CLAIM} 2+/any 2+{_DONE} 2>p",
        RUN,
        {"overwrite"},
    ),
]

CLEAN: list[tuple[str, str, RunInfo]] = [
    ("nothing happened", "", RUN),
    ("one order", "1<A4 1+ 1>p", RUN),
    ("two copies at once", "1<A4 2<A4 1.&2. 1+&2- 1>p 2>d", RUN),
    ("a rejection answered before the write that caused it", "1<A4&2<A4 1.&2. 2- 2>d 1+ 1>p", RUN),
    ("all at the same time", "1<A4&2<A4&1+&2-&1>p&2>d", RUN),
    ("reply lost, and processed", "1<A4 1+/reply=unknown 1- 1>p", RUN),
    ("reply lost, sent again without a condition", "1<A4 1+/any/reply=unknown 1+/any 1>p", RUN),
    ("unknown, then its own rejection", "1<A4 1? 1- 1>d =A4", RUN),
    ("unknown, then rejected elsewhere", "1<A4 1? 1>timeout 2<#1 2- 2>d =A4", RUN),
    ("unknown, and it did not happen", "1<A4 1? 1>timeout 2<#1 2+ 2>p", RUN),
    ("redelivery after success", "1<A4 1+ 1>p/keep 2<#1 2- 2>d", RUN),
    ("redelivery recognises its own write", "1<A4 1+ 1>timeout 2<#1 2- 2>p", RUN),
    ("received again although deleted", "1<A4 2<#1 1+ 1>p 2- 2>f", RUN),
    ("sent twice by the driver", "1<A4 1+ 1>p 2<#1/resent 2- 2>d", RUN),
    ("refused, later acknowledged", "1<A4 1. 2<A4 2- 2>f 1+ 1>p 3<#2 3- 3>d", RUN),
    ("dead-lettered before its end came", "1<A4 1+ 1>p 2<A4 2- dlq#2 2>d", RUN),
    ("dead-lettered so, under a new id", "1<A4 1+ 1>p 2<A4 2- aside#2 2>d", RUN),
    ("delete failed to the end", "1<A4 1+ 1>p 2<A4 2- 2>d/keep dlq#2", RUN),
    ("refused to the end while the first was at work", "1<A4 1. 2<A4 2- 2>f 1+ 1>p dlq#2", RUN),
    ("refused by an injected fault", "1<A4 1+ 1>p 2<A4 2!/fault 2>f dlq#2", RUN),
    ("order dead-lettered by injected faults", "1<A4 1!/fault 1>f dlq#1", RUN),
    ("conflict refused", "1<A4 1+ 1>p 2<A5 2- 2>f dlq#2", RUN),
    ("conflict set aside", "1<A4 1+ 1>p 2<A5 2- 2@sqs 2>. aside#2", RUN),
    (
        "conflict stored first",
        "send#A4 1<A5 1+ 1>p 2<#1 2- 2>f dlq#1 3<A5 3- 3>d",
        RUN,
    ),
    ("dead-lettered before a copy was stored", "1<A4 1! 1>f dlq#1 2<A4 2+ 2>p", RUN),
    ("failed once, then stored", "1<A4 1! 1>f 2<#1 2+ 2>p", RUN),
    ("failed, then found by a read", "1<A4 1+ 1>p 2<A4 2! 2r 2>d", RUN),
    ("poison refused", "1<X! 1>f dlq#1", RUN),
    ("poison set aside", "1<X! 1@sqs 1>. aside#1", RUN),
    ("poison dropped where that is allowed", "1<X! 1>.", DROP),
    ("poison written and taken back", "1<X! 1+ 1+/delete 1>f dlq#1", RUN),
    ("steps of one work", "1<A4 1+/status=NEW 1+/any/update/status=SENT 1>p 2<A4 2- 2>d", RUN),
    ("a step whose image is not known", "1<A4 1+ 1+/any/update/after=? 1>p", RUN),
    ("claim, then result", "1<A4 1+/status=CLAIMED 1+/any/status=COMPLETED 1>p", CLAIMS),
    (
        "claim taken over after a crash",
        "1<A4 1+/status=CLAIMED 1>crash 2<#1 2+/any/status=CLAIMED2 2+/any/status=COMPLETED 2>p",
        CLAIMS,
    ),
    (
        "claim left by an injected crash in the last receive",
        "1<A4 1+/status=CLAIMED 1r/fault 1>crash dlq#1",
        CLAIMS,
    ),
    (
        "claim held by one of two, both hindered",
        "1<A4 2<A4 2+/status=CLAIMED 1?/status=CLAIMED/fault 1>f 3<#1 3-/status=CLAIMED "
        "2r/fault 2>f 3>f dlq#1 dlq#2",
        CLAIMS,
    ),
    (
        "claim of a conflict taken over",
        "1<A4 1+/status=CLAIMED 1>crash 2<A5 2+/any/status=COMPLETED 2>p 3<#1 3- 3>f dlq#1",
        CLAIMS,
    ),
    (
        "claim released after a failure",
        "1<A4 1+/status=CLAIMED 1+/delete 1>f 2<#1 2+/status=CLAIMED 2+/any/status=COMPLETED 2>p",
        CLAIMS,
    ),
    (
        "guard completed",
        "1<A4 1+/on=guard/status=INPROGRESS 1+ 1+/any/on=guard/status=COMPLETED 1>p "
        "2<A4 2-/on=guard 2>d",
        RUN,
    ),
    (
        "duplicate known from the guard before the order is written",
        "1<A4 1+/on=guard/status=COMPLETED 2<A4 2-/on=guard 2>d 1+ 1>p",
        RUN,
    ),
    (
        "refused while a claim was in progress",
        "1<A4 1+/on=guard/status=INPROGRESS 1+ 2<A4 2-/on=guard 2>f dlq#2 "
        "1+/any/on=guard/status=COMPLETED 1>p",
        RUN,
    ),
    (
        "claim completed after a crash, order already written",
        "1<A4 1+/on=guard/status=INPROGRESS 1+ 1>crash "
        "2<A4 2+/any/on=guard/status=INPROGRESS 2- 2+/any/on=guard/status=COMPLETED 2>p "
        "3<#1 3-/on=guard 3>d",
        RUN,
    ),
    ("insert taken back, then again", "1<A4 1+ 1+/delete 1>f 2<#1 2+ 2>p", RUN),
    ("key with a prefix", "1<A4 1+/key=ORDER#A 1>p 2<A4 2-/key=ORDER#A 2>d", RUN),
    ("two items by one work", "1<A4 1+/sk=order 1+/sk=line 1>p", SORTED),
    ("batch, some fail", "1<A4,B3 1+/of=A 1!/of=B 1>./failed=B 2<#2 2+ 2>p", BATCHES),
    ("batch with two copies", "1<A4,A4 1+ 1- 1>d", BATCHES),
    (
        "a copy that a batch did not try, beside an order that it stored",
        "1<A4 1+ 1>p 2<A4,B4 2+/of=B 2>./failed=A 3<#2 3- 3>d",
        BATCHES,
    ),
    ("batch with a message that was sent twice", "send#A4 1<#1,#1 1+ 1- 1>d", BATCHES),
    ("batch with a conflict", "1<A4,A5 1+ 1>p/failed=#2 2<#2 2- 2>f dlq#2", BATCHES),
    (
        "batch that crashed with the guard of one of its orders",
        "1<A4,B3 1+/of=A 1+/of=B/on=guard/status=INPROGRESS 1r/fault 1>crash dlq#2 2<#1 2- 2>d",
        BATCHES,
    ),
    (
        "batch raises after a step of the order failed",
        "1<A4,B3 1+/of=A 1!/of=A/update/any 1>f 2<#1 2- 2>d 3<#2 3+ 3>p",
        BATCHES,
    ),
    ("a batch of one raises", "1<A4 1+ 1>f 2<#1 2- 2>d 3<B3,C3 3+/of=B 3+/of=C 3>p", BATCHES),
    (
        "a batch raises where that is the only way to report",
        "1<A4,B3 1+/of=A 1+/of=B 1>f 2<#1 2- 2>d 3<#2 3- 3>d",
        RUN,
    ),
    ("step rejected because nothing is there", "1<A4 1-/cond=attribute_exists(id) 1+ 1>p", RUN),
    ("a text in the answer", "1<A4 1+ 1>p/says=4 2<A4 2- 2>d/says=4", RUN),
    ("never accepted", "plan#A4 1<B2 1+ 1>p", RUN),
    ("unknown, and processed", "1<A4 1?/did 1>p", RUN),
    ("unknown, sent again without a condition", "1<A4 1?/any/did 1+/any 1>p", RUN),
    (
        "processed by a redelivery, and the first one wrote",
        "1<A4 1+ 1>timeout 2<#1 2- 2>p/keep 3<#1 3? 3>timeout 4<#1 4- 4>d",
        RUN,
    ),
    ("processed as the other one wrote", "1<A4 2<#1 1.&2>p/keep 1+ 1>p", RUN),
    (
        "unknown under a key with a prefix, then a duplicate",
        "1<A4 1?/key=ORDER#A/did 1>timeout 2<#1 2-/key=ORDER#A 2>d",
        RUN,
    ),
    (
        "refused as the first was stored",
        "1<A4 1. 1+&2<A4 2>f dlq#2 1>p",
        RUN,
    ),
    (
        "refused before the order was stored, though its guard was complete",
        "1<A4 1+/on=guard/status=COMPLETED 2<A4 2-/on=guard 1+ 1>p 2>f dlq#2",
        RUN,
    ),
    (
        "duplicate known from a guard of which nobody knows",
        "1<A4 1?/on=guard/status=COMPLETED/did 2<A4 2-/on=guard 2>d 1+ 1>p",
        RUN,
    ),
    (
        "nothing could be stored, then received again and dead-lettered, while a copy got through",
        "1<A4 1! 1>. 2<#1 2! 2>f dlq#1 3<#1/resent 3+ 3>p",
        RUN,
    ),
    (
        "batch reports failed what was stored, after a rejection",
        "1<A4,B3 1+/of=A 1-/of=A 1+/of=B 1>./failed=A 2<#1 2- 2>d",
        BATCHES,
    ),
    (
        "claim that the one who crashed may have renewed",
        "1<A4 2<A4 2+/status=CLAIMED 1?/any/status=CLAIMED/fault 1>timeout 2>f dlq#1 dlq#2",
        CLAIMS,
    ),
    (
        "claim left by a crash, received again as it ended",
        "1<A4 1+/status=CLAIMED 1r/fault 1>crash&2<#1 2-/status=CLAIMED 2>f dlq#1",
        CLAIMS,
    ),
    ("an unfinished item that no write made", "1<A4 1!/status=CLAIMED 1>f dlq#1 =A4", CLAIMS),
    (
        "claim left, and a message of the order as well",
        "1<A4 1+/status=CLAIMED 1>f dlq#1 send#A4",
        replace(CLAIMS, status=RunStatus.NOT_DRAINED),
    ),
    ("poison written and taken back, run killed", "1<X! 1+ 1+/delete 1>f", KILLED),
    (
        "not drained, no limit of receives",
        "1<A4/receives=3 1! 1>f",
        replace(LONG_AFTER, max_receive_count=0),
    ),
    (
        "not drained, twice the visibility timeout after the last receive",
        "1<A4/receives=3 1! 1>f",
        replace(NOT_DRAINED, ended_at=2_000_000_001),
    ),
    (
        "rejected under a condition that an absent item fails",
        "1<A4 1-/cond=quantity=:q 1>f 2<A4 2+ 2>p 3<#1 3- 3>d",
        RUN,
    ),
    ("poison under the key of an order", "1<X! 1>f dlq#1 2<X!4 2+ 2>p", RUN),
    (
        "conflict set aside, the reply lost",
        "1<A4 1+ 1>p 2<A5 2- 2@sqs/reply=unknown 2>. aside#2",
        RUN,
    ),
    (
        "guard item gone in the end",
        "1<A4 1+/on=guard/status=COMPLETED 1+ 1>p =digest-A/on=guard",
        RUN,
    ),
    ("changed, and no write is known to have happened", "1<A4 1? 1>timeout 2<#1 2- 2>d =A5", RUN),
    # nothing follows from what had not happened yet
    ("killed before the write", "1<A4 1.", KILLED),
    ("killed before the answer", "1<A4 1?", KILLED),
    ("killed before the acknowledgement", "1<A4 1+", KILLED),
    ("killed between deletes and the final read", "1<A4 1+ 1>p 2<A4 2- 2>d", KILLED),
    ("killed before a set-aside message arrived", "1<A4 1+ 1>p 2<A5 2- 2@sqs 2>.", KILLED),
    ("killed with poison set aside", "1<X! 1@sqs 1>.", KILLED),
    ("killed with a claim", "1<A4 1+/status=CLAIMED", CLAIMS),
    ("interrupted with messages left", "1<A4 1! 1>f 2<A4 2! 2>f send#A4", STOPPED),
    ("not drained with messages left", "1<A4 1! 1>f send#A4 send#B2", NOT_DRAINED),
    ("not drained, receives left", "1<A4 1! 1>f", LONG_AFTER),
    ("not drained, last receive still hidden", "1<A4/receives=3 1! 1>f", NOT_DRAINED),
    ("not drained, received again after its delete", "1<A4 1>. 2<#1 2! 2>f", NOT_DRAINED),
    (
        "not drained, returned, deleted, received again",
        "1<A4 1! 1>f 2<#1 2>. 3<#1 3! 3>f",
        NOT_DRAINED,
    ),
    ("not drained, one copy dead, one open", "1<A4 1! 1>f dlq#1 send#A4", NOT_DRAINED),
]
CLEAN += [
    ("reply lost, own write recognised", "1<A4 1+/reply=unknown/fault 1- 1>p", RUN),
    ("reply lost, told by the next one", "1<A4 1+/reply=unknown/fault 1>f 2<#1 2- 2>d", RUN),
    (
        "refused by its own attempt, then a call failed",
        "1<A4 1+/reply=unknown/fault 1- 1!/update/any 1>f 2<#1 2- 2>d",
        RUN,
    ),
    (
        "refused by its own attempt, then killed",
        "1<A4 1+/reply=unknown 1- 1>crash 2<#1 2- 2>d",
        RUN,
    ),
    (
        "own claim recognised, the order stored by one that crashed",
        "1<A4 1+/on=guard/status=INPROGRESS 1+ 1>crash/fault=crash-before-answer "
        "2<#1 2+/any/on=guard/status=INPROGRESS/reply=unknown/fault 2-/on=guard 2- "
        "2+/any/update/on=guard/status=COMPLETED 2>d",
        RUN,
    ),
    (
        "two copies in a batch, a reply lost",
        "1<A4,A4 1+/reply=unknown/fault 1- 1>d",
        BATCHES,
    ),
    (
        "refused by another's write after a lost reply",
        "1<A4 1!/reply=unknown/fault 2<A4 2+ 2>p 1- 1>d",
        RUN,
    ),
    (
        "moved back and acknowledged",
        "1<A4 1+ 1>p 2<A4 2- 2>f dlq#2 redrive#2 3<#2/resent 3- 3>d",
        RUN,
    ),
    ("moved back and stored", "1<A4 1! 1>f dlq#1 redrive#1 2<#1/resent 2+ 2>p", RUN),
    ("moved back under its old id", "1<A4 1! 1>f dlq#1 redrive#1 2<#1 2+ 2>p", RUN),
    ("moved back under a new id twice", "1<A4 1! 1>f aside#1 redrive#1 2<#1/resent 2+ 2>p", RUN),
    ("moved back, not yet received", "1<A4 1! 1>f dlq#1 redrive#1", NOT_DRAINED),
    (
        "all moved back at once",
        "1<A4 1! 1>f dlq#1 2<B4 2! 2>f dlq#2 redrive#0 3<#1/resent 3+ 3>p 4<#2/resent 4+ 4>p",
        RUN,
    ),
    (
        "somebody came too late to delete it",
        "1<A4 1+ 1>p wipe#1 wipe#1 2<A4 2+ 2>p",
        RUN,
    ),
    ("poison moved back and refused", "1<X! 1>f dlq#1 redrive#1 2<#1/resent 2>f dlq#1/resent", RUN),
    ("sent again by the producer", "1<A4 1+ 1>p 2<#1/resent 2- 2>d", RUN),
    ("never given to the handler", "send#A4 skip#1 skip#1 skip#1 dlq#1", RUN),
    ("refused, then never given to it again", "1<A4 1! 1>f skip#1 dlq#1", RUN),
    ("a copy never given to the handler", "1<A4 1+ 1>p send#A4 skip#2 skip#2 skip#2 dlq#2", RUN),
    ("twice in one batch", "1<A4,#1/same/fault=same-message-twice 1+ 1- 1>p", BATCHES),
    (
        "twice in one batch, refused and then stored, as somebody deleted the item",
        "1<A4 1+ 1>p 2<A5,#2/same/fault=same-message-twice 2r wipe#1 2+ 2>b 3<#2 3- 3>d",
        BATCHES,
    ),
    ("twice in one batch, a duplicate", "1<A4,#1/same/fault=same-message-twice 1+ 1- 1>d", BATCHES),
    ("again while at work", "1<A4 2<#1/fault=redeliver-during 1+ 2- 2>d 1>p", RUN),
    ("again after success", "1<A4 1+ 1>p/keep/fault=redeliver-after 2<#1 2- 2>d", RUN),
    ("deleted by somebody", "1<A4 1+ 1>p wipe#1", RUN),
    ("deleted by somebody, then stored again", "1<A4 1+ 1>p wipe#1 2<A4 2+ 2>p", RUN),
    ("deleted twice, stored three times", "1<A4 1+ 1>p wipe#1 2<A4 2+ 2>p wipe#2 3<A4 3+ 3>p", RUN),
    (
        "deleted by somebody, then a conflict was stored",
        "1<A4 1+ 1>p wipe#1 2<A5 2+ 2>p 3<A4 3- 3>f dlq#3",
        RUN,
    ),
    ("deleted by somebody, then a copy failed", "1<A4 1+ 1>p wipe#1 2<A4 2! 2>f dlq#2", RUN),
    (
        "deleted by somebody, still known from the guard",
        "1<A4 1+/on=guard/status=COMPLETED 1+ 1>p wipe#1 2<A4 2-/on=guard 2>d",
        RUN,
    ),
    (
        "killed by the tester before it answered",
        "1<A4 1+ 1>crash/fault=crash-before-answer 2<#1 2- 2>d",
        RUN,
    ),
    (
        "killed by the tester in its last receive",
        "1<A4 1+ 1>p 2<A4 2- 2>crash/fault=crash-before-answer dlq#2",
        RUN,
    ),
    ("slow until its timeout", "1<A4 1!/fault=slow 1>timeout dlq#1", RUN),
    ("effect once", "1<A4 1+ 1@sns/effect 1>p 2<A4 2- 2>d", EFFECTING),
    (
        "effect refused the second time",
        "1<A4 1+ 1@sns/effect 1>p 2<A4 2- 2@sns/effect=rejected 2>d",
        EFFECTING,
    ),
    (
        "effect made up for",
        "1<A4 1+ 1>crash/fault=crash-before-answer 2<#1 2- 2@sns/effect 2>d",
        EFFECTING,
    ),
    ("effect under another spelling", "1<A4 1+ 1@sns/effect/key=ORDER#A 1>p", EFFECTING),
    (
        "effect again after somebody deleted the order",
        "1<A4 1+ 1@sns/effect 1>p wipe#1 2<A4 2+ 2@sns/effect 2>p",
        EFFECTING,
    ),
    ("no effect for poison", "1<X! 1>f dlq#1", EFFECTING),
    ("no effect for an order that was never stored", "1<A4 1!/fault 1>f dlq#1", EFFECTING),
    ("effect of an order that faults kept out", "1<A4 1@sns/effect 1!/fault 1>f dlq#1", EFFECTING),
    (
        "effect still to come from the dead-letter queue",
        "1<A4 1+ 1@sns/effect=failed/reply=failed/fault=throttle 1>f dlq#1",
        EFFECTING,
    ),
    ("killed before the effect", "1<A4 1+", replace(KILLED, effects=EFFECTS)),
    (
        "not drained before the effect",
        "1<A4 1+ 1!/update/any 1>f",
        replace(NOT_DRAINED, effects=EFFECTS),
    ),
    # a guard beside an unconditional write
    (
        "guard in progress, then completed",
        f"1<A4 1+{_CLAIM} 1+/any 1+{_DONE} 1>p 2<A4 2-{_CLAIM} 2>d",
        RUN,
    ),
    (
        "guard refuses while in progress",
        f"1<A4 1+{_CLAIM} 2<A4 2-{_CLAIM} 2>f 1+/any 1+{_DONE} 1>p 3<#2 3-{_CLAIM} 3>d",
        RUN,
    ),
    (
        "guard deleted after a failure",
        f"1<A4 1+{_CLAIM} 1!/any 1+/on=guard/delete 1>f 2<#1 2+{_CLAIM} 2+/any 2+{_DONE} 2>p",
        RUN,
    ),
    (
        "guard expired before the order was written",
        f"1<A4 1+{_CLAIM}/fault=crash-after-call 1>crash 2<#1 2+{_CLAIM} 2+/any 2+{_DONE} 2>p",
        RUN,
    ),
    (
        "guard in progress where nothing tells it from a completed one",
        "1<A4 1+/on=guard/status=INPROGRESS 1+/any 1>p",
        replace(RUN, tables=(TABLE_INFOS[0], TableInfo("guard", TableRole.GUARD, "id"))),
    ),
]


def correct_run(rng: Random) -> list[str]:
    """The words of a run of a correct handler (one conditional put), with faults and retries.

    A few orders with copies, conflicts and poison; invocations interleave at random, calls
    fail, replies get lost, invocations crash, deletes fail, and what is refused three times
    is dead-lettered.
    """
    plan = [f"{key}{rng.choice('1112')}" for key in "ABC" for _ in range(rng.randint(1, 4))]
    plan += ["X!"] * rng.randint(0, 1)
    rng.shuffle(plan)
    queue: list[tuple[int, str, int]] = [(n, text, 0) for n, text in enumerate(plan, start=1)]
    words = [f"send#{text}" for text in plan]
    stored: dict[str, str] = {}
    running: list[Iterator[str]] = []
    invocations = 0

    def work(number: int, message: int, text: str, receives: int) -> Iterator[str]:
        yield f"{number}<#{message}"
        rejected, end, deleted = False, "f", False
        if not text.endswith("!"):
            key = text[0]
            if rng.random() < 0.5:
                yield f"{number}."
            fault = rng.random()
            if fault < 0.1:
                yield f"{number}!/fault"
            elif fault < 0.2:
                did = key not in stored and rng.random() < 0.5
                if did:
                    stored[key] = text
                yield f"{number}?/fault" + ("/did" if did else "")
                end = "timeout"
            else:
                rejected = key in stored
                lost = fault < 0.3 and not rejected
                stored.setdefault(key, text)
                yield f"{number}-" if rejected else f"{number}+" + "/reply=unknown" * lost
                if lost:
                    rejected = True
                    yield f"{number}-"
                if fault > 0.9:
                    end = "crash"
                    yield f"{number}r/fault"
                elif stored[key] == text:
                    # It recognises what an attempt of its own has written.
                    end, deleted = "d" if rejected and not lost else "p", rng.random() < 0.9
        yield f"{number}>{end}" + ("/keep" if end in "pd" and not deleted else "")
        if deleted:
            return
        if receives < 3:
            queue.append((message, text, receives))
        else:
            yield f"dlq#{message}"

    while queue or running:
        if queue and (not running or (len(running) < 4 and rng.random() < 0.5)):
            message, text, receives = queue.pop(rng.randrange(len(queue)))
            invocations += 1
            running.append(work(invocations, message, text, receives + 1))
        step = rng.choice(running)
        word = next(step, None)
        if word is None:
            running.remove(step)
        else:
            words.append(word)
    return words


def joined(words: list[str], rng: Random) -> str:
    """The words as a history in which some follow each other at the same time."""
    return "".join(word + rng.choice(" &  ") for word in words).rstrip("&")


def reports(run_dir: Path, text: str, run: RunInfo = RUN) -> dict[FindingKind, CheckReport]:
    write_history(run_dir, text, run)
    with open_evidence(run_dir) as evidence:
        return {report.kind: report for report in run_checks(evidence)}


@pytest.mark.parametrize(
    ("text", "run", "kinds"),
    [pytest.param(*case[1:], id=case[0]) for case in DIRTY],
)
def test_finds_exactly(tmp_path: Path, text: str, run: RunInfo, kinds: set[str]) -> None:
    found = reports(tmp_path, text, run)
    assert not [report.note for report in found.values() if report.status is CheckStatus.CRASHED]
    assert {str(kind) for kind, report in found.items() if report.count} == kinds
    for report in found.values():
        assert report.count == len(report.findings)
        for finding in report.findings:
            assert "not known" not in finding.explanation, finding.explanation


# kind, history, run, and of each finding: order, messages, invocations, calls, flags, and words
# of its explanation.
NAMED: list[tuple[str, str, RunInfo, list[tuple[str, list[int], list[int], list[int], str, str]]]]
NAMED = [
    (
        "overwrite",
        "1<A4,B3 1+/of=A 1+/of=B 1>p 2<A4,B3 2+/of=A/any 2+/of=B/any 2>p 3<A4 3+/any/status=X 3>p",
        BATCHES,
        [
            ("A", [3], [1, 2], [1, 3], "identical", "Call 3 replaced"),
            ("A", [5], [2, 3], [3, 5], "", "Call 5 replaced"),
            ("B", [4], [1, 2], [2, 4], "identical", "Call 4 replaced"),
        ],
    ),
    (
        "overwrite",  # what call 1 left is not what call 3 found
        "1<A4 1+ 1>p 2<A4 2?/update/any/did/status=X 2>timeout 3<A4 3+/any 3>p",
        RUN,
        [("A", [3], [3], [3], "", "Call 3 replaced")],
    ),
    (
        "double-accept",
        "1<A4 1+ 1>p 2<A4 2+/delete 2+ 2>p 3<A4 3- 3>d 4<B4 5<B4 4.&5. 4+&5+/before={} 4>p 5>p",
        RUN,
        [
            ("A", [1, 2], [1, 2], [1, 3], "resurrected", "inserted 2 times (different items: 1)"),
            ("B", [4, 5], [4, 5], [5, 6], "", "inserted 2 times (different items: 1)"),
        ],
    ),
    (
        "phantom-write",
        "1<A4,B3 1+/of=A/q=7 1+/of=B/q=8 1>p 2<A4 2+/any 2>p",
        BATCHES,
        [
            ("A", [1], [1], [1], "", "quantity=7"),
            ("B", [2], [1], [2], "", "quantity=8"),
        ],
    ),
    (
        "wrong-key",
        "1<A4 1+/key=u1 1+/key=u2 1>p 2<A4 2+/key=u3 2>p",
        RUN,
        [
            ("A", [1], [1], [1], "", '"u1"'),
            ("A", [1], [1], [2], "", '"u2"'),
            ("A", [2], [2], [3], "", '"u3"'),
        ],
    ),
    (
        "wrong-key",
        "1<A4,B3 1+/of=A/key=u1/name=A 1+/of=B/key=u2/name=B 1>p",
        replace(BATCHES, order=OrderInfo("id", {"id": "name", "quantity": "quantity"})),
        [
            ("A", [1], [1], [1], "", '"u1"'),
            ("B", [2], [1], [2], "", '"u2"'),
        ],
    ),
    ("lost-order", "1<A4 1>. 2<A4 2>.", RUN, [("A", [1, 2], [1, 2], [], "", "messages (2)")]),
    (
        "vanished-order",
        "1<A4,B3 1+/of=A 1+/of=B 1>p 2<C4 2+/status=X 2+/any/status=Y 2>p =A =B =C",
        BATCHES,
        [
            ("A", [1], [1], [1], "", "quantity=4"),
            ("B", [2], [1], [2], "", "quantity=3"),
            ("C", [3], [2], [4], "", 'status="Y"'),
        ],
    ),
    (
        "conflict-acknowledged",
        "1<A4 1+ 1>p 2<A5 2- 2>d",
        RUN,
        [("A", [2], [2], [1], "", "quantity")],
    ),
    ("poison-acknowledged", "1<X! 1>.", RUN, [("X!", [1], [1], [], "", "Message 1")]),
    (
        "poison-stored",
        "1<X! 1+ 1>f 2<#1 2+/any 2>f dlq#1",
        RUN,
        [("X!", [1], [2], [1, 2], "", '"X!"')],
    ),
    (
        "duplicate-failed",
        "1<A4 1+ 1>p 2<A4 2- 2>f dlq#2 3<A4 3- 3>f dlq#3",
        RUN,
        [
            ("A", [2], [2], [1], "", "(receives: 1)"),
            ("A", [3], [3], [1], "", "(receives: 1)"),
        ],
    ),
    (
        "unjustified-rejection",
        "1<A4,B3 1-/of=A 1-/of=B 1>f 2<A4 2- 2>f 3<A4 3+ 3>p",
        BATCHES,
        [
            ("A", [1], [1], [1], "", "call 1 was rejected"),
            ("A", [3], [2], [3], "", "call 3 was rejected"),
            ("B", [2], [1], [2], "", "call 2 was rejected"),
        ],
    ),
    (
        "result-mismatch",
        "1<A4 1+ 1>p 2<A4 2- 2>p 3<B4 3+/sk=a 3+/sk=b 3>d",
        SORTED,
        [
            ("A", [2], [2], [], "", "as processed, but none"),
            ("B", [3], [3], [3], "", "as duplicate, but its own call 3"),
        ],
    ),
    (
        "divergent-result",
        "1<A4 1+ 1>p 2<A4 2- 2>d/says=5 3<A4 3- 3>d/says=6",
        RUN,
        [
            ("A", [2], [2], [1], "", "another quantity"),
            ("A", [3], [3], [1], "", "another quantity"),
        ],
    ),
    (
        "premature-ack",
        "1<A4 1+ 1* 1>p/open 2<B4 2. 2>. 2+",
        RUN,
        [
            ("A", [1], [1], [], "", "before invocation 1 ended"),
            ("B", [2], [2], [2], "", "before its write, call 2,"),
        ],
    ),
    (
        "batch-misreport",
        "1<A4,B3 1!/of=A 1!/of=A 1+/of=B/sk=a 1+/of=B/sk=b 1>./failed=B 2<#2 2-/sk=a 2>d",
        replace(SORTED, batch_size=10, report_batch_item_failures=True),
        [
            ("A", [1], [1], [1], "", "everything tried for it failed"),
            ("B", [2], [1], [3], "", "its order was stored"),
        ],
    ),
    (
        "dead-lettered-order",
        "1<A4 1! 1>f dlq#1 2<A4 2! 2>f dlq#2",
        RUN,
        [("A", [1, 2], [1, 2], [], "", "messages: 2")],
    ),
    (
        "stuck-message",
        "1<A4,B3 1+/of=A/status=CLAIMED 1+/of=B/status=CLAIMED 1>f dlq#1 dlq#2",
        replace(CLAIMS, batch_size=10, report_batch_item_failures=True),
        [
            ("A", [1], [1], [], "", "the claim"),
            ("B", [2], [1], [], "", "the claim"),
        ],
    ),
    (
        "unrelated-write",
        "1<A4 1+ 1+/any/on=reference/key=reference 1>p",
        RUN,
        [("", [1], [1], [2], "", '"reference"')],
    ),
]
# Orders beside those of a history, of which nothing must be said.
BYSTANDERS = " 91<Y4 91+/status=COMPLETED 91>p 92<Y4 92-/status=COMPLETED 92>d"


@pytest.mark.parametrize(
    ("kind", "text", "run", "named"),
    [pytest.param(*case, id=f"{case[0]} {case[1]}") for case in NAMED],
)
def test_names_the_rows_that_show_it(
    tmp_path: Path,
    kind: str,
    text: str,
    run: RunInfo,
    named: list[tuple[str, list[int], list[int], list[int], str, str]],
) -> None:
    findings = reports(tmp_path, text + BYSTANDERS, run)[FindingKind(kind)].findings
    assert [
        (
            finding.order_key or "",
            list(finding.message_nos),
            list(finding.invocation_ids),
            list(finding.call_ids),
            ", ".join(finding.flags),
        )
        for finding in findings
    ] == [rows[:-1] for rows in named]
    for finding, (*_, words) in zip(findings, named, strict=True):
        assert words in finding.explanation


def add_row(run_dir: Path, row: Row) -> None:
    """Another row, or a newer version of one."""
    with (run_dir / "evidence" / f"{row.TABLE}.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")


def kinds_of(run_dir: Path) -> set[str]:
    with open_evidence(run_dir) as evidence:
        return {str(report.kind) for report in run_checks(evidence) if report.count}


def test_an_item_from_before_the_run_explains_a_rejection(tmp_path: Path) -> None:
    write_history(tmp_path, "1<A4 1- 1>d =A4")
    assert kinds_of(tmp_path) == {"unjustified-rejection"}
    item = item_text({"id": {"S": "A"}, "quantity": {"N": "4"}})
    add_row(tmp_path, ItemRow("orders", item_text({"id": {"S": "A"}}), item, Phase.BEFORE))
    assert kinds_of(tmp_path) == set()


def test_a_message_that_was_sent_twice_is_settled_twice(tmp_path: Path) -> None:
    """The driver had no reply to its first attempt: there may be two physical messages."""
    write_history(tmp_path, "send#A4 1<#1/resent 1>.", NOT_DRAINED)
    message = Message(1, "A", MessageKind.ORDER, "", None, 0, 1, 1, "s1", attempts=2)
    add_row(tmp_path, message)
    assert kinds_of(tmp_path) == set()
    write_history(tmp_path, "send#A4 1<#1/resent 1>. 2<#1 2>.", NOT_DRAINED)
    add_row(tmp_path, message)
    assert kinds_of(tmp_path) == {"lost-order"}


def test_received_again_and_not_given_to_a_handler(tmp_path: Path) -> None:
    write_history(tmp_path, "1<A4 1>.", NOT_DRAINED)
    assert kinds_of(tmp_path) == {"lost-order"}
    add_row(tmp_path, Delivery(2, QueueRole.QUEUE, "s1", 1, 2, 99, None))
    assert kinds_of(tmp_path) == set()


def test_a_dead_letter_without_its_mark_is_known_by_its_id(tmp_path: Path) -> None:
    write_history(tmp_path, "1<A4 1+ 1>p 2<A5 2- 2>d")
    assert kinds_of(tmp_path) == {"conflict-acknowledged"}
    add_row(tmp_path, Delivery(3, QueueRole.DEAD_LETTER, "s2", None, 1, 99, None))
    assert kinds_of(tmp_path) == set()


@settings(max_examples=12, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_never_blames_a_correct_handler(rng: Random) -> None:
    words = correct_run(rng)
    run = RUN
    if rng.random() < 0.5:
        words = words[: rng.randrange(len(words) + 1)]
        run = KILLED
    text = joined(words, rng)
    with TemporaryDirectory() as directory:
        found = reports(Path(directory), text, run)
    assert {report.status for report in found.values()} <= {
        CheckStatus.CLEAN,
        CheckStatus.NOT_OBSERVABLE,
    }, text


@pytest.mark.parametrize(
    ("text", "run"),
    [pytest.param(*case[1:], id=case[0]) for case in CLEAN],
)
def test_blames_nobody(tmp_path: Path, text: str, run: RunInfo) -> None:
    found = reports(tmp_path, text, run)
    assert not [report.note for report in found.values() if report.status is CheckStatus.CRASHED]
    assert [finding for report in found.values() for finding in report.findings] == []
