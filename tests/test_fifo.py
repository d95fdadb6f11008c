"""FIFO queues: order within a group, one batch of it at a time, what blocks it."""

from __future__ import annotations

import itertools
import secrets
from pathlib import Path

import pytest

from analysis.schema import AckOutcome, TableInfo, TableRole
from consumer.acknowledging import Acknowledger
from consumer.clock import HostClock
from consumer.faults import FaultName, FaultPlan, FaultRule
from consumer.injector import Injector
from consumer.ledger import Ledger, Tally
from consumer.recorder import Recorder
from consumer.sqs_queue import Queue, Received
from loadtest.targets import LOCAL_CREDENTIALS, Endpoint
from tests.mapping_lab import Carried, carry_out, plan_of

REFUSES = """
def work(orders, run):
    for order, receives in zip(orders, run["receives"]):
        copies = len(noted("took", order["id"]))
        note(what="took", orders=[order["id"]], message=run["messages"][0])
        if order["id"] == "fails-once" and receives == 1 and copies == 1:
            raise ValueError("the second message, once")
        if order["id"] == "fails-always":
            raise ValueError("always")
        if order["id"].startswith("meets"):
            until(lambda: noted("start", "meets-1") and noted("start", "meets-2"))
"""
"""Groups named after what happens to them: to the second message of one, once; to all."""

ORDERS = (
    *("fails-once", "fails-once", "fails-once", "fails-once"),
    *("fails-always", "fails-always"),
    *("meets-1", "meets-2"),
)


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory, emulator_url: str) -> Carried:
    return carry_out(
        tmp_path_factory.mktemp("fifo"),
        emulator_url,
        REFUSES,
        plan_of(*ORDERS),
        FaultRule(FaultName.OUT_OF_ORDER),  # which a FIFO queue does not know
        FaultRule(FaultName.LONG_DELAY),  # nor this, for a single message
        queue={"visibility_timeout": 2, "max_receive_count": 2, "fifo": True},
        concurrency=3,
    )


def test_names_and_addresses_end_in_fifo(ordered: Carried) -> None:
    queues = [name for name in ordered.gone if name.startswith("queue ")]
    assert len(queues) == 2
    assert all(name.endswith(".fifo") for name in queues)


def test_a_group_comes_in_order_and_one_failure_blocks_it(ordered: Carried) -> None:
    assert ordered.settled
    taken = ordered.rows(
        "SELECT message_no, outcome FROM deliveries JOIN acks USING (delivery_id) "
        "WHERE queue = 'queue' AND message_no <= 4 ORDER BY delivery_id"
    )
    assert [(row["message_no"], row["outcome"]) for row in taken] == [
        (1, "deleted"),
        (2, "returned"),
        (2, "deleted"),
        (3, "deleted"),
        (4, "deleted"),
    ]
    first, again = (row["received_at"] for row in ordered.deliveries(2))
    assert again - first >= 2e9 * 0.99, "it comes back after its visibility timeout"


def test_one_batch_of_a_group_at_a_time_and_groups_beside_each_other(ordered: Carried) -> None:
    for group in ("fails-once", "fails-always"):
        for one, other in itertools.pairwise(ordered.seen(group)):
            assert not one.overlaps(other)
    (one,), (other,) = ordered.seen("meets-1"), ordered.seen("meets-2")
    assert one.overlaps(other)


def test_a_dead_letter_lets_its_group_go_on(ordered: Carried) -> None:
    for number in (5, 6):
        outcomes = ordered.outcomes(number)
        assert outcomes == ["returned", "returned", "dead_lettered"], "both are seen in the end"
    dead_at = ordered.deliveries(5)[2]["received_at"]
    last_run = ordered.deliveries(5)[1]["received_at"]
    assert last_run < ordered.deliveries(6)[0]["received_at"]
    assert dead_at < ordered.deliveries(6)[2]["received_at"]


def test_a_fifo_queue_meets_no_fault_that_it_does_not_know(ordered: Carried) -> None:
    assert ordered.rows("FROM faults") == []


def test_copies_are_delivered_unless_the_queue_tells_them_by_their_bodies(
    tmp_path: Path, emulator_url: str
) -> None:
    stores = "def work(orders, run):\n    return orders[0] | store(orders[0])\n"
    orders = ("order-1", "order-1", "order-2")
    queue = {"visibility_timeout": 10, "fifo": True}
    resend = FaultRule(FaultName.RESEND)
    by_stamp, by_content = (
        carry_out(
            tmp_path / deduplication,
            emulator_url,
            stores,
            plan_of(*orders),
            resend,
            queue=queue | {"deduplication": deduplication},
        )
        for deduplication in ("stamp", "content")
    )
    assert by_stamp.settled
    assert len(by_stamp.seen("order-1")) == 4, "two messages, sent twice"
    assert [len(by_stamp.deliveries(number)) for number in (1, 2, 3)] == [2, 2, 2]
    assert by_content.settled, "what the queue has dropped is not waited for"
    assert len(by_content.seen("order-1")) == 1
    rows = by_content.rows("FROM messages ORDER BY message_no")
    assert [row["error"] for row in rows] == [
        None,
        "the queue deduplicated it: it has kept message 1",
        None,
    ]
    assert [row["accepted_at"] is None for row in rows] == [False, True, False]


def test_redriven_dead_letters_are_not_taken_for_what_the_queue_remembers(
    tmp_path: Path, emulator_url: str
) -> None:
    once = (
        "def work(orders, run):\n"
        "    if len(noted('start', orders[0]['id'])) == 1: raise ValueError\n"
    )
    ended = carry_out(
        tmp_path,
        emulator_url,
        once,
        plan_of("order-1"),
        FaultRule(FaultName.REDRIVE),
        queue={"visibility_timeout": 1, "max_receive_count": 1, "fifo": True},
    )
    assert ended.settled
    assert ended.outcomes(1) == ["returned", "dead_lettered", "deleted"]


OUTLASTS = """
def work(orders, run):
    if "pair" in run["orders"]:
        until(lambda: len(noted("start", "pair")) == 2)
    elif "short" in run["orders"] and run["receives"][0] == 1:
        began = time.monotonic()
        until(lambda: time.monotonic() > began + 2)
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory, emulator_url: str) -> Carried:
    return carry_out(
        tmp_path_factory.mktemp("faulty"),
        emulator_url,
        OUTLASTS,
        plan_of("short", "pair", *["unrun"] * 3, *["company"] * 3),
        FaultRule(FaultName.SHORT_VISIBILITY, message=1, receive=1),
        FaultRule(FaultName.REDELIVER_DURING, message=2, receive=1),
        FaultRule(FaultName.RECEIVE_WITHOUT_RUN, message=4, receive=1),
        FaultRule(FaultName.REDELIVER_DURING, message=6),
        queue={"visibility_timeout": 4, "fifo": True, "batch_size": 8},
        concurrency=4,
    )


def test_a_message_that_is_visible_again_in_mid_run_waits_for_the_end_of_it(
    faulty: Carried,
) -> None:
    assert faulty.settled
    first, second = faulty.seen("short")
    assert not first.overlaps(second)
    assert faulty.outcomes(1) == ["delete_failed", "deleted"]


def test_two_runs_of_one_group_overlap_only_because_a_fault_says_so(faulty: Carried) -> None:
    first, second = faulty.seen("pair")
    assert first.overlaps(second)
    assert {fault["message_no"] for fault in faulty.fired("redeliver-during")} == {2}


def test_no_fault_of_a_delivery_breaks_the_order_of_a_group(faulty: Carried) -> None:
    """Where one message of a batch is not run, those behind it in its group are not either."""
    ran = faulty.rows(
        "SELECT message_no FROM deliveries WHERE invocation_id IS NOT NULL "
        "ORDER BY invocation_id, delivery_id"
    )
    numbers = [row["message_no"] for row in ran]
    assert [number for number in numbers if number in (3, 4, 5)] == [3, 4, 5]
    assert [number for number in numbers if number > 5] == [6, 7, 8]
    assert [faulty.outcomes(number) for number in (3, 4, 5)] == [
        ["deleted"],
        ["returned", "deleted"],
        ["returned", "deleted"],
    ]


class Later(HostClock):
    """A clock that can be set ahead."""

    ahead_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.ahead_ns


async def test_a_delete_after_the_visibility_timeout_fails(
    tmp_path: Path, emulator_url: str
) -> None:
    """As on AWS; the embedded endpoint would delete it."""
    clock, recorder, tally = Later(), Recorder(tmp_path), Tally()
    prefix = f"onceproof-late-{secrets.token_hex(4)}-"
    table = TableInfo("orders", TableRole.ORDERS, "id")
    async with Endpoint(emulator_url, credentials=LOCAL_CREDENTIALS, connections=2) as target:
        made = await target.create(
            prefix, [table], visibility_timeout_s=30, max_receive_count=2, fifo=True
        )
        queue = Queue(target.sqs, made.queue, clock)
        acknowledger = Acknowledger(
            queue,
            ledger=Ledger("run"),
            tally=tally,
            recorder=recorder,
            clock=clock,
            injector=Injector(FaultPlan(), recorder, clock),
            delete_item=None,
        )
        for number in (1, 2):
            await target.sqs.send_message(
                QueueUrl=made.queue.url,
                MessageBody="{}",
                MessageGroupId=f"group-{number}",
                MessageDeduplicationId=str(number),
            )
            (message,) = await queue.receive(1)
            await acknowledger.succeeded(Received(message, number, None, clock.now_ns()))
            if number == 2:
                clock.ahead_ns = 31 * 10**9
            await acknowledger.finish()
        await target.remove()
    recorder.close()
    lines = (tmp_path / "acks.jsonl").read_text().splitlines()
    assert [AckOutcome.DELETED in line for line in lines] == [True, False]
    assert tally.deleted == 1
