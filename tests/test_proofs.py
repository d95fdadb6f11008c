"""Proofs and groups: what a reader is told about a finding, word for word."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import duckdb
import pytest

from analysis.findings import MAX_GROUPS, CheckReport, Finding, FindingKind, Proof, Verdict
from analysis.proofs import MOST_ACTORS, MOST_STEPS, check_text, group_line, proof_text
from analysis.report import write_outputs
from analysis.schema import TABLES, ItemRow, QueueSample, RunInfo
from analysis.store import finish_evidence
from analysis.verdict import judge, write_verdict
from tests.histories import RUN, write_history
from tests.sample_run import MS, Sample, write_run
from tests.test_checks import DIRTY

READ_THEN_WRITE = "1<A4 2<A4 1r 2r 1+/any 2+/any 1>p 2>p"


def judged(run_dir: Path, text: str, run: RunInfo = RUN) -> Verdict:
    return judge(write_history(run_dir, text, run, step_ns=MS))


def answer(verdict: Verdict, kind: str) -> CheckReport:
    return next(check for check in verdict.checks if check.kind == kind)


def proof_of(check: CheckReport) -> Proof:
    proof = check.groups[0].example.proof
    assert proof is not None
    return proof


def told(run_dir: Path, text: str, kind: str, run: RunInfo = RUN) -> list[str]:
    """The one group of a kind: its pattern, its steps and what follows."""
    check = answer(judged(run_dir, text, run), kind)
    (group,) = check.groups
    proof = proof_of(check)
    return [group_line(group), *(step.text for step in proof.steps), proof.conclusion]


# --- word for word ------------------------------------------------------------------------


def test_a_race_reads_like_a_proof(tmp_path: Path) -> None:
    check = answer(judged(tmp_path, READ_THEN_WRITE), "overwrite")
    assert proof_text(proof_of(check), check.assumption) == [
        "A = invocation 1, environment 1, with message 1 (order, quantity=4)",
        "B = invocation 2, environment 2, with message 2 (copy, quantity=4)",
        'item = id="A" in orders',
        "2.000 ms   1. A read the item: no item was there.",
        "3.000 ms   2. B read the item: no item was there.",
        "4.000 ms   3. A put the item (quantity=4) without a condition. Accepted: no",
        "              item was there.",
        "5.000 ms   4. B put the item (quantity=4) without a condition. Accepted: it",
        "              replaced A's item (quantity=4), which was identical.",
        "",
        "          |2        |2.5      |3         |3.5      |4        |4.5      |5 ms",
        "A inv 1   1----------------------------------------3--------------------",
        "B inv 2   --------------------2----------------------------------------4",
        ". waiting  - handler  = call, the step's number where it was answered",
        "",
        "So: B replaced the order that A had stored, with the same content. It had",
        "    looked before A's write was there, found nothing, and no condition on",
        "    its own write noticed that this was no longer true.",
        "Assumed: the store returns the old item together with the write that",
        "    replaced it.",
    ]


@pytest.mark.parametrize(
    ("text", "kind", "lines"),
    [
        pytest.param(
            "1<A4 1+/any 1>p 2<A5 2+/any 2>p",
            "overwrite",
            [
                "1 order: PutItem without a condition accepted, processed, deleted",
                "A put the item (quantity=4) without a condition. Accepted: no item was there.",
                "B put the item (quantity=5) without a condition. Accepted: it replaced A's item "
                "(quantity=4).",
                "B replaced the order that A had stored. Its write had no condition, so the store "
                "could not refuse it.",
            ],
            id="unconditional",
        ),
        pytest.param(
            "1<A4 1+ 1>p 2<A4 2+/cond=quantity=4/q=4 2>p",
            "overwrite",
            [
                "1 order: identical: PutItem if attribute_not_exists(id) accepted, processed, "
                "deleted | PutItem if quantity=… accepted, processed, deleted",
                "A put the item (quantity=4) if attribute_not_exists(id). Accepted: no item was "
                "there.",
                "B put the item (quantity=4) if quantity=4. Accepted: it replaced A's item "
                "(quantity=4), which was identical.",
                "B replaced the order that A had stored, with the same content. Its condition "
                "(quantity=4) does not exclude a stored order.",
            ],
            id="condition that lets an item be replaced",
        ),
        pytest.param(
            "1<A4 1+ 1>p 2<A5 2- 2>d",
            "conflict-acknowledged",
            [
                "1 order: PutItem if attribute_not_exists(id) rejected, duplicate, deleted",
                "A put the item (quantity=4) if attribute_not_exists(id). Accepted: no item was "
                "there.",
                "B put the item if attribute_not_exists(id). Rejected: A's item (quantity=4) was "
                "there.",
                "B reported message 2 as duplicate, and it was deleted as done.",
                "Message 2 says quantity=5, but quantity=4 was stored for order A, and the message "
                "was deleted as done. It will not come again, and nobody learns that two different "
                "orders had one id.",
            ],
            id="conflict",
        ),
        pytest.param(
            "1<A4 1! 1>.",
            "lost-order",
            [
                "1 order: PutItem if attribute_not_exists(id) failed, deleted",
                "A put the item if attribute_not_exists(id). Failed: nothing was written.",
                "A returned, and message 1 was deleted as done.",
                "At the end there was no item under the order's key.",
                "Order A has no item, yet all its messages (1) were deleted as done. No message is "
                "left that could bring it back.",
            ],
            id="lost",
        ),
        pytest.param(
            "1<A4 1- 1>f 2<A4 2+ 2>p 3<#1 3- 3>d",
            "unjustified-rejection",
            [
                "1 order: PutItem if attribute_not_exists(id) rejected, raised, failed, returned",
                "A put the item if attribute_not_exists(id). Rejected, although no item was there.",
                "A raised an error, and message 1 went back to the queue.",
                "B put the item (quantity=4) if attribute_not_exists(id). Accepted: no item was "
                "there.",
                "For order A, call 1 was rejected, and no write that began before could have "
                "caused it. An order that is taken for a duplicate too early may never be stored.",
            ],
            id="rejected for nothing",
        ),
        pytest.param(
            "1<A4 1+/reply=unknown/fault 1- 1>f 2<#1 2- 2>f dlq#1",
            "duplicate-failed",
            [
                "1 order: PutItem if attribute_not_exists(id) rejected, raised, failed, returned",
                "A put the item (quantity=4) if attribute_not_exists(id) (injected fault: "
                "lost-reply). Accepted: no item was there. The reply was lost.",
                "B put the item if attribute_not_exists(id). Rejected: A's item (quantity=4) was "
                "there.",
                "B raised an error, and message 1 went back to the queue.",
                "Message 1 was found in the dead-letter queue.",
                "Message 1 says exactly what was already stored for order A, and was "
                "dead-lettered (receives: 2). A copy of a stored order has nothing left to do, so "
                "it must be acknowledged.",
            ],
            id="rejected by its own lost write",
        ),
        pytest.param(
            "1<A4 1+ 1>p 2<A4 2+/delete 2+ 2>p",
            "double-accept",
            [
                "1 order: resurrected: PutItem if attribute_not_exists(id) accepted, processed, "
                "deleted | PutItem without a condition accepted, PutItem if "
                "attribute_not_exists(id) accepted, processed, deleted",
                "A put the item (quantity=4) if attribute_not_exists(id). Accepted: no item was "
                "there.",
                "B deleted the item without a condition. Accepted: A's item (quantity=4) is gone.",
                "B put the item (quantity=4) if attribute_not_exists(id). Accepted: no item was "
                "there.",
                'A and B each inserted order "A"; a delete in between made room for it. An order '
                "must be inserted once.",
            ],
            id="resurrected",
        ),
        pytest.param(
            "1<A4 1. 1>. 1+",
            "premature-ack",
            [
                "1 order: PutItem if attribute_not_exists(id) accepted, deleted",
                "A returned, and message 1 was deleted as done.",
                "A put the item (quantity=4) if attribute_not_exists(id). Accepted: no item was "
                "there.",
                "A message of order A was deleted before its write, call 1, was answered. Had the "
                "process died in between, the message would be gone and its work not done.",
            ],
            id="deleted too early",
        ),
        pytest.param(
            "1<A4 1>. 1+/by=0",
            "premature-ack",
            [
                "1 order: no call, deleted",
                "A returned, and message 1 was deleted as done.",
                "Call 1, made outside any invocation, put the item (quantity=4) if "
                "attribute_not_exists(id). Accepted: no item was there.",
                "A message of order A was deleted before its write, call 1, was answered. Had the "
                "process died in between, the message would be gone and its work not done.",
            ],
            id="written outside any invocation",
        ),
    ],
)
def test_a_proof_in_words(tmp_path: Path, text: str, kind: str, lines: list[str]) -> None:
    assert told(tmp_path, text, kind) == lines


def test_steps_carry_key_condition_before_and_after(tmp_path: Path) -> None:
    check = answer(judged(tmp_path, "1<A4 1+/any 1>p 2<A5 2. 2+/any 2>p"), "overwrite")
    step = proof_of(check).steps[-1]
    assert (step.at_ns, step.until_ns, step.actor, step.call_id) == (4 * MS, 5 * MS, "B", 2)
    assert (step.key, step.condition) == ('id="A"', None)
    assert (step.before, step.after) == ('id="A", quantity=4', 'id="A", quantity=5')


def test_the_store_decides_what_came_first_not_the_answers(tmp_path: Path) -> None:
    """B's write was answered before A's, and yet the store says that it replaced A's item."""
    stored = '{"id":{"S":"A"},"quantity":{"N":"4"}}'
    text = f"1<A4 2<A5 1. 2. 2+/any/before={stored} 1+/any/before={{}} =A5 1>p 2>p"
    check = answer(judged(tmp_path, text), "overwrite")
    assert [step.text for step in proof_of(check).steps] == [
        "A put the item (quantity=4) without a condition. Accepted: no item was there.",
        "B put the item (quantity=5) without a condition. Accepted: it replaced A's item "
        "(quantity=4).",
    ]


@pytest.mark.parametrize(
    ("text", "run", "kinds"), [pytest.param(*case[1:], id=case[0]) for case in DIRTY]
)
def test_every_finding_can_be_told(
    tmp_path: Path, text: str, run: RunInfo, kinds: set[str]
) -> None:
    verdict = judge(write_history(tmp_path, text, run))
    assert not [note for note in verdict.notes if "told" in note]
    found = [check for check in verdict.checks if check.count]
    assert {str(check.kind) for check in found} == kinds
    for check in found:
        assert sum(group.count for group in check.groups) == check.count
        for group in check.groups:
            proof = group.example.proof
            assert proof is not None
            assert proof.conclusion
            assert proof.steps or not group.example.invocation_ids
            letters = {actor.letter for actor in proof.actors}
            assert {step.actor for step in proof.steps} - {None} <= letters
        lines = check_text(check, "RUN", proved=MAX_GROUPS)
        assert max(len(line) for line in lines if "loadtest sql" not in line) <= 78


# --- groups -------------------------------------------------------------------------------


def races(orders: int, first: int = 1) -> list[str]:
    """Read-then-write races of as many orders, each with two invocations."""
    words = []
    for number in range(orders):
        a, b = first + 2 * number, first + 2 * number + 1
        key = "R" + "x" * number
        words += [f"{a}<{key}4", f"{b}<{key}4", f"{a}r", f"{b}r", f"{a}+/any", f"{b}+/any"]
        words += [f"{a}>p", f"{b}>p"]
    return words


def test_one_cause_is_one_group_with_an_exact_count(tmp_path: Path) -> None:
    blind = "901<Za4 901+/any 901>p 902<Za4 902+/any 902>p"
    verdict = judged(tmp_path, " ".join([*races(30), blind]))
    check = answer(verdict, "overwrite")
    assert check.count == 31
    assert check.patterns == 2
    assert [(group.count, group.orders) for group in check.groups] == [(30, 30), (1, 1)]
    assert group_line(check.groups[0]) == (
        "30 orders, same pattern: identical: PutItem saw nothing, PutItem without a condition "
        "accepted, processed, deleted"
    )
    assert check.groups[1].example.order_key == "Za"


BATCHES = replace(RUN, batch_size=10, report_batch_item_failures=True)
SORTED = replace(RUN, tables=(replace(RUN.tables[0], sort="sk"), *RUN.tables[1:]))


@pytest.mark.parametrize(
    ("kind", "text", "run", "pattern"),
    [
        (
            "duplicate-failed",
            "1<A4 1+ 1>p 2<A4 2r 2- 2>f dlq#2 3<B4 3+ 3>p",
            RUN,
            "PutItem saw an item, PutItem if attribute_not_exists(id) rejected, raised, failed, "
            "returned",
        ),
        (
            "unjustified-rejection",
            "1<A4 1r 1- 1!/fault 1>timeout 2<A4 2+ 2>p",
            RUN,
            "PutItem saw nothing, PutItem if attribute_not_exists(id) rejected, PutItem if "
            "attribute_not_exists(id) failed (lost-reply), timed_out, failed, returned",
        ),
        (  # two messages of the order in one invocation, which fared differently
            "overwrite",
            "1<A4,A4,B4 1+/any/of=A 1+/of=B 1>p/failed=#2 2<A4 2+/any 2>p 3<#2 3- 3>d",
            BATCHES,
            "identical: PutItem without a condition accepted, failed, returned and processed, "
            "deleted | PutItem without a condition accepted, processed, deleted",
        ),
        (  # the third did what the first did
            "double-accept",
            "1<A4 2<A4 3<A4 1.&2.&3. 1+/any/sk=a 2+/sk=b 3+/any/sk=c 1>p 2>p 3>p",
            SORTED,
            "PutItem without a condition accepted, processed, deleted | "
            "PutItem if attribute_not_exists(id) accepted, processed, deleted",
        ),
        ("lost-order", "1<A4 1>.", RUN, "no call, deleted"),
    ],
)
def test_what_a_pattern_tells(
    tmp_path: Path, kind: str, text: str, run: RunInfo, pattern: str
) -> None:
    (group,) = answer(judged(tmp_path, text, run), kind).groups
    assert group.pattern == pattern


def test_invocations_that_ended_otherwise_make_another_pattern(tmp_path: Path) -> None:
    text = "1<A4 1+ 1>p 2<A4 2+/any 2>p 3<B4 3+ 3>p 4<B4 4+/any 4>d 5<C4 5+ 5>p 6<C4 6+/any 6>p"
    check = answer(judged(tmp_path, text), "overwrite")
    assert [(group.count, group.orders) for group in check.groups] == [(2, 2), (1, 1)]


def test_the_example_with_the_fewest_replaced_items_is_shown(tmp_path: Path) -> None:
    """The first overwrite has more calls, the second replaced what was replaced already."""
    text = "1<A4 1+/any/sk=a 1+/any/sk=b 1>p 2<A4 2+/any/sk=a 2>p 3<A4 3+/any/sk=a 3>p"
    (group,) = answer(judged(tmp_path, text, SORTED), "overwrite").groups
    assert group.count == 2
    assert group.example.message_nos == (2,)


def test_neither_keys_nor_values_nor_retries_make_another_pattern(tmp_path: Path) -> None:
    text = (
        "1<A4 1+ 1>p 2<A4 2+/cond=quantity=4 2>p 3<B7 3+ 3>p 4<B7 4!/cond=quantity=7 "
        "4!/cond=quantity=7 4+/cond=quantity=7 4>p 5<C2 5+ 5>p 6<C2 6!/cond=quantity=2 "
        "6+/cond=quantity=2 6>p"
    )
    check = answer(judged(tmp_path, text), "overwrite")
    assert [group.count for group in check.groups] == [2, 1]


def test_other_orders_of_a_batch_do_not_make_another_pattern(tmp_path: Path) -> None:
    run = replace(RUN, batch_size=10, report_batch_item_failures=True)
    text = (
        "1<A4 1+ 1>p 2<B4 2+ 2>p 3<A4,C3 3+/of=A/any 3+/of=C 3>p "
        "4<B4,D3,E3 4+/of=D 4+/of=B/any 4+/of=E 4>p"
    )
    check = answer(judged(tmp_path, text, run), "overwrite")
    assert [(group.count, group.orders) for group in check.groups] == [(2, 2)]


def test_the_smallest_example_is_shown(tmp_path: Path) -> None:
    """Two races of three invocations, then one that takes less time than any other."""
    text = (
        "1<A4 2<A4 3<A4 1r 2r 3r 1+/any 2+/any 3+/any 1>p 2>p 3>p "
        "4<B4 5<B4 4r 5r 4+/any 5+/any 4>p 5>p 6<C4 7<C4 6r&7r 6+/any&7+/any 6>p 7>p"
    )
    check = answer(judged(tmp_path, text), "overwrite")
    (group,) = check.groups
    assert (group.count, group.orders) == (4, 3)
    assert group.example.order_key == "C"


@pytest.mark.parametrize(
    "text",
    [
        "1r 3r 4r 3+/any send#Z1 4+/any 2r 1+/any 2+/any",  # A began long before it wrote
        "1r 2r 1+/any 3r 4r 3+/any send#Z1 4+/any 2+/any",  # the second write of A is late
        "1+ 3+ send#Z1 4+/any 2+/any",
    ],
)
def test_the_time_of_an_example_is_from_its_first_call_to_its_last(
    tmp_path: Path, text: str
) -> None:
    text = f"1<A4 2<A4 3<B4 4<B4 {text} 1>p 2>p 3>p 4>p"
    (group,) = answer(judged(tmp_path, text), "overwrite").groups
    assert group.example.order_key == "B"


def test_more_patterns_than_are_shown_are_counted(tmp_path: Path) -> None:
    words = []
    for number in range(1, MAX_GROUPS + 4):
        one, two = 2 * number - 1, 2 * number
        key = "K" + "x" * number
        words.append(
            f"{one}<{key}4 {one}+/any {one}>p {two}<{key}4 {two}+/cond=a{'b' * number} {two}>p"
        )
    check = answer(judged(tmp_path, " ".join(words)), "overwrite")
    assert check.count == check.patterns == MAX_GROUPS + 3
    assert len(check.groups) == MAX_GROUPS
    assert check_text(check, "RUN")[-1] == "3 further patterns not shown"


# --- bounds, foreign text, bytes ----------------------------------------------------------


def test_a_long_story_is_bounded(tmp_path: Path) -> None:
    words = [f"{n}<A4" for n in range(1, 31)] + [f"{n}r {n}r {n}r" for n in range(1, 31)]
    words += [f"{n}+/sk=t{n} {n}>p" for n in range(1, 31)]
    run = replace(RUN, tables=(replace(RUN.tables[0], sort="sk"), *RUN.tables[1:]))
    check = answer(judged(tmp_path, " ".join(words), run), "double-accept")
    proof = proof_of(check)
    assert len(proof.actors) == MOST_ACTORS
    assert len(proof.steps) == MOST_STEPS
    assert proof.steps_left_out == MOST_ACTORS * 4 - MOST_STEPS
    assert "A, B, C, D, E, F and 24 more each inserted order" in proof.conclusion
    assert all(len(line) <= 76 for line in proof.drawing)
    assert len(proof.drawing) == MOST_ACTORS + 1


def test_hostile_text_reaches_no_terminal_and_forms_no_markup(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=3, overwrites=3, hostile=True, copies=3))
    verdict = judge(run_dir)
    check = answer(verdict, "overwrite")
    assert "onerror" in "".join(check_text(check, "RUN"))
    page = write_outputs(run_dir, verdict).report.read_text(encoding="utf-8")
    assert "onerror" in page
    assert "<img" not in page
    escape = "1<\x1b[2J4 1+/any 1>p 2<\x1b[2J4 2+/any 2>p"
    check = answer(judged(tmp_path / "escape", escape), "overwrite")
    lines = check_text(check, "RUN")
    assert all(character.isprintable() for line in lines for character in line)
    assert any("\\u001b[2J" in line for line in lines)


def test_judging_again_gives_the_same_bytes(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=40, overwrites=20))
    first = write_verdict(run_dir, judge(run_dir)).read_bytes()
    assert b'"proof"' in first
    for _ in range(3):
        assert write_verdict(run_dir, judge(run_dir)).read_bytes() == first


def test_a_hundred_thousand_findings_make_a_small_report(tmp_path: Path) -> None:
    orders, copies = 25_000, 5
    words = [f"{number}<A4 {number}+/any {number}>p" for number in range(1, copies + 1)]
    finish_evidence(write_history(tmp_path, " ".join(words), step_ns=MS))
    multiply(tmp_path / "evidence", orders, copies)
    verdict = judge(tmp_path)
    check = answer(verdict, "overwrite")
    assert check.count == orders * (copies - 1)
    assert [(group.count, group.orders) for group in check.groups] == [(check.count, orders)]
    assert write_verdict(tmp_path, verdict).stat().st_size < 200_000
    outputs = write_outputs(tmp_path, verdict)
    assert outputs.report.stat().st_size < 1_000_000
    page = outputs.report.read_text(encoding="utf-8")
    assert "100,000 findings in 25,000 orders, same pattern" in page


def multiply(evidence: Path, orders: int, copies: int) -> None:
    """Repeat the evidence of order A for as many orders, each with ids of its own."""
    ids = {"message_no", "delivery_id", "invocation_id", "call_id"}
    with duckdb.connect() as connection:
        for table in TABLES:
            if table in (ItemRow, QueueSample):
                continue
            path = evidence / f"{table.TABLE}.parquet"
            columns = []
            for name in (field.name for field in fields(table)):
                if name in ids:
                    columns.append(f"{name} + n * {copies} AS {name}")
                elif name in ("order_key", "sqs_message_id"):
                    columns.append(f"{name} || n AS {name}")
                elif name in ("item_key", "before", "after", "expected_item"):
                    columns.append(f"""replace({name}, '"A"', '"A' || n || '"') AS {name}""")
                else:
                    columns.append(f'"{name}"')
            connection.execute(
                f"CREATE OR REPLACE TABLE many AS SELECT {', '.join(columns)} "
                f"FROM '{path}', range({orders}) AS times(n)"
            )
            connection.execute(f"COPY many TO '{path}' (FORMAT parquet)")


def test_a_finding_that_cannot_be_told_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no words")

    monkeypatch.setattr("analysis.proofs.steps_text", fail)
    verdict = judged(tmp_path, READ_THEN_WRITE)
    assert verdict.verdict == "FAIL"
    assert answer(verdict, "overwrite").groups[0].example.proof is None
    assert verdict.notes[-1] == "An example of overwrite could not be told: RuntimeError: no words."
    write_outputs(tmp_path, verdict)


def test_without_groups_findings_are_still_listed(tmp_path: Path) -> None:
    """A verdict written before there were groups."""
    verdict = judged(tmp_path, READ_THEN_WRITE)
    bare = replace(
        verdict,
        checks=tuple(replace(check, groups=(), patterns=0) for check in verdict.checks),
    )
    outputs = write_outputs(tmp_path, bare)
    finding = answer(verdict, "overwrite").findings[0]
    assert isinstance(finding, Finding)
    assert finding.kind is FindingKind.OVERWRITE
    for path in (outputs.summary, outputs.junit):
        assert "Call 4 replaced an item in orders" in path.read_text(encoding="utf-8")
