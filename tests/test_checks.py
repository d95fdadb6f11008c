"""Each check on one-line histories: what it must find, and what it must leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.checks import run_checks
from analysis.findings import CheckReport, CheckStatus, FindingKind
from analysis.schema import ExpectInfo, RunInfo, RunStatus, TableInfo, TableRole
from analysis.store import open_evidence
from tests.histories import RUN, TABLE_INFOS, write_history

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
    # a definite finding counts in a run that was killed
    (
        "reference written, run killed",
        "1<A4 1+ 1+/any/on=reference/key=reference",
        KILLED,
        {"unrelated-write"},
    ),
    ("overwrite, run killed", "1<A4 1+/any 1>p 2<A4 2+/any", KILLED, {"overwrite"}),
    (
        "conflict acknowledged, run killed",
        "1<A4 1+ 1>p 2<A5 2- 2>d 3<A4",
        KILLED,
        {"conflict-acknowledged"},
    ),
]

CLEAN: list[tuple[str, str, RunInfo]] = [
    ("nothing happened", "", RUN),
    ("one order", "1<A4 1+ 1>p", RUN),
    ("two copies at once", "1<A4 2<A4 1.&2. 1+&2- 1>p 2>d", RUN),
    ("a rejection answered before the write that caused it", "1<A4&2<A4 1.&2. 2- 2>d 1+ 1>p", RUN),
    ("all at the same time", "1<A4&2<A4&1+&2-&1>p&2>d", RUN),
    ("reply lost, then its own rejection", "1<A4 1+/reply=unknown 1- 1>d", RUN),
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
    ("a batch of one raises", "1<A4 1+ 1>f 2<#1 2- 2>d", BATCHES),
    (
        "a batch raises where that is the only way to report",
        "1<A4,B3 1+/of=A 1+/of=B 1>f 2<#1 2- 2>d 3<#2 3- 3>d",
        RUN,
    ),
    ("step rejected because nothing is there", "1<A4 1-/cond=attribute_exists(id) 1+ 1>p", RUN),
    ("a text in the answer", "1<A4 1+ 1>p/says=4 2<A4 2- 2>d/says=4", RUN),
    ("never accepted", "plan#A4 1<B2 1+ 1>p", RUN),
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
    ("not drained, one copy dead, one open", "1<A4 1! 1>f dlq#1 send#A4", NOT_DRAINED),
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
                    end, deleted = "d" if rejected else "p", rng.random() < 0.9
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


@pytest.mark.parametrize(
    ("text", "kind", "messages", "calls", "flags"),
    [
        ("1<A4 1+ 1>p 2<A4 2+/delete 2+ 2>p", "double-accept", [1, 2], [1, 3], ["resurrected"]),
        ("1<X! 1+ 1>f 2<#1 2+/any 2>f dlq#1", "poison-stored", [1], [1, 2], []),
        ("1<A4 1+ 1>p 2<A5 2- 2>d", "conflict-acknowledged", [2], [1], []),
        ("1<A4 1+ 1>p 2<A4 2- 2>f dlq#2", "duplicate-failed", [2], [1], []),
        ("1<A4 1+ 1>p =A", "vanished-order", [1], [1], []),
        ("1<A4 1+/key=u1 1>p", "wrong-key", [1], [1], []),
        ("1<A4 1>. 2<A4 2>.", "lost-order", [1, 2], [], []),
    ],
)
def test_names_the_rows_that_show_it(
    tmp_path: Path, text: str, kind: str, messages: list[int], calls: list[int], flags: list[str]
) -> None:
    (finding,) = reports(tmp_path, text)[FindingKind(kind)].findings
    assert finding.order_key == ("X!" if "X!" in text else "A")
    assert list(finding.message_nos) == messages
    assert list(finding.call_ids) == calls
    assert list(finding.flags) == flags


@settings(max_examples=40, deadline=None)
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
