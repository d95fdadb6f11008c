"""Faults of messages, deliveries and acknowledgements: what the handler saw of them, and
what the evidence says."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.faults import FaultName, FaultRule
from tests.mapping_lab import Carried, carry_out, plan_of

NAMES = {
    FaultName.REDELIVER_DURING: 1,
    FaultName.REDELIVER_AFTER: 2,
    FaultName.SAME_MESSAGE_TWICE: 3,
    FaultName.SHORT_VISIBILITY: 4,
    FaultName.RECEIVE_WITHOUT_RUN: 5,
    FaultName.DELETE_FAILS: 6,
    FaultName.ITEM_DELETED: 7,
    FaultName.LONG_DELAY: 8,
}
"""Each strikes one message; message 9 is left alone."""

MEETS_ITSELF = """
def work(orders, run):
    for order in orders:
        if order["id"] in ("order-1", "order-4"):
            # Ends only when its other run has started.
            until(lambda: len(noted("start", order["id"])) == 2)
        store(order)
"""


def rule(name: FaultName) -> FaultRule:
    """Strikes its message at every chance until told otherwise."""
    first = name in (FaultName.SAME_MESSAGE_TWICE, FaultName.SHORT_VISIBILITY)
    seconds = (1.0, 1.0) if name is FaultName.LONG_DELAY else None
    return FaultRule(name, message=NAMES[name], receive=1 if first else None, seconds=seconds)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory, emulator_url: str) -> Carried:
    return carry_out(
        tmp_path_factory.mktemp("faulty"),
        emulator_url,
        MEETS_ITSELF,
        plan_of(*(f"order-{number}" for number in range(1, 10))),
        *map(rule, NAMES),
        queue={"visibility_timeout": 3, "max_receive_count": 2, "batch_size": 2},
        concurrency=3,
    )


def test_everything_settles_and_each_fault_struck_only_its_message(faulty: Carried) -> None:
    assert faulty.settled
    assert {(row["name"], row["message_no"]) for row in faulty.rows("FROM faults")} == {
        (str(name), number) for name, number in NAMES.items()
    }
    assert faulty.outcomes(9) == ["deleted"]
    dead = faulty.rows("FROM deliveries WHERE queue = 'dlq'")
    assert dead == [], "faults alone take no message's last receive"


def test_redelivered_while_its_first_run_is_going(faulty: Carried) -> None:
    first, second = faulty.seen("order-1")
    assert first.process != second.process
    assert first.overlaps(second)
    assert {first.receives, second.receives} == {(1,), (2,)}
    rows = faulty.deliveries(1)
    assert sorted(row["outcome"] for row in rows) == ["delete_failed", "deleted"], (
        "one of them has an old receipt"
    )
    (fault,) = faulty.fired("redeliver-during")
    assert (fault["receive"], fault["delivery_id"]) == (1, rows[1]["delivery_id"])
    assert fault["invocation_id"] == rows[0]["invocation_id"]


def test_redelivered_after_success(faulty: Carried) -> None:
    first, second = faulty.seen("order-2")
    assert not first.overlaps(second)
    assert first.messages[first.orders.index("order-2")] in second.messages
    assert faulty.outcomes(2) == ["delete_failed", "deleted"]
    (fault,) = faulty.fired("redeliver-after")
    assert fault["delivery_id"] == faulty.deliveries(2)[0]["delivery_id"]


def test_redelivered_at_once_and_not_after_the_visibility_timeout(faulty: Carried) -> None:
    lost, again = faulty.deliveries(2)
    failed, later = faulty.deliveries(6)
    assert again["received_at"] - lost["received_at"] < 3e9 * 0.9
    assert later["received_at"] - failed["received_at"] >= 3e9 * 0.99


def test_the_same_message_stands_twice_in_one_event(faulty: Carried) -> None:
    (event,) = faulty.seen("order-3")
    assert event.orders.count("order-3") == 2
    assert len(set(event.messages)) == 1
    rows = faulty.deliveries(3)
    assert len({row["invocation_id"] for row in rows}) == 1
    assert [row["outcome"] for row in rows] == ["deleted", "deleted"]
    assert len(faulty.fired("same-message-twice")) == 1


def test_visible_again_before_its_work_is_done(faulty: Carried) -> None:
    first, second = faulty.seen("order-4")
    assert first.overlaps(second)
    rows = faulty.deliveries(4)
    assert 0.99e9 <= rows[1]["received_at"] - rows[0]["received_at"] < 3e9
    (fault,) = faulty.fired("short-visibility")
    assert (fault["duration_ns"], fault["detail"]) == (10**9, "visible again after 1 s")


def test_received_without_a_run(faulty: Carried) -> None:
    (event,) = faulty.seen("order-5")
    assert event.receives[event.orders.index("order-5")] == 2, "the handler had one chance only"
    first, second = faulty.deliveries(5)
    assert (first["invocation_id"], first["outcome"]) == (None, "returned")
    assert (second["invocation_id"] is not None, second["outcome"]) == (True, "deleted")
    assert second["received_at"] - first["received_at"] >= 3e9 * 0.99


def test_one_delete_fails_and_the_others_do_not(faulty: Carried) -> None:
    first, second = faulty.seen("order-6")
    assert first.messages[first.orders.index("order-6")] in second.messages
    assert faulty.outcomes(6) == ["delete_failed", "deleted"]
    assert len(faulty.fired("delete-fails")) == 1


def test_somebody_deletes_the_item(faulty: Carried) -> None:
    (fault,) = faulty.fired("item-deleted")
    (call,) = faulty.rows(f"FROM calls WHERE call_id = {fault['call_id']}")
    assert (call["invocation_id"], call["fault"]) == (None, "item-deleted")
    assert (call["service"], call["operation"]) == ("dynamodb", "DeleteItem")
    chain = faulty.rows(
        "SELECT action, call_items.decision, before, after FROM call_items JOIN calls "
        """USING (call_id) WHERE item_key = '{"id":{"S":"order-7"}}' ORDER BY sent_at"""
    )
    assert [(row["action"], row["decision"]) for row in chain] == [
        ("put", "accepted"),
        ("delete", "accepted"),
    ]
    assert chain[0]["before"] == chain[1]["after"] == "{}"
    assert chain[0]["after"] == chain[1]["before"] != "{}"
    left = faulty.rows("SELECT item_key FROM items WHERE phase = 'after'")
    assert not any("order-7" in row["item_key"] for row in left)
    assert sum("order-" in row["item_key"] for row in left) == 8


def test_a_message_is_delayed(faulty: Carried) -> None:
    (sent,) = faulty.rows("FROM messages WHERE message_no = 8")
    (received,) = faulty.deliveries(8)
    assert received["received_at"] - sent["sent_at"] >= 0.99e9
    (fault,) = faulty.fired("long-delay")
    assert fault["detail"] == "DelaySeconds 1"


STORES = """
def work(orders, run):
    for order in orders:
        store(order)
"""


def test_lasting_it_is_never_run_and_dead_lettered(tmp_path: Path, emulator_url: str) -> None:
    lasting = FaultRule(FaultName.RECEIVE_WITHOUT_RUN, message=1, lasting=True)
    ended = carry_out(
        tmp_path,
        emulator_url,
        STORES,
        plan_of("never", "runs"),
        lasting,
        queue={"visibility_timeout": 1, "max_receive_count": 2},
    )
    assert ended.settled
    assert ended.seen("never") == []
    assert ended.outcomes(1) == ["returned", "returned", "dead_lettered"]
    assert [fault["receive"] for fault in ended.fired("receive-without-run")] == [1, 2]
    assert len(ended.seen("runs")) == 1


WITHOUT_MEANS = (
    FaultName.REDELIVER_DURING,  # one environment cannot run twice at once
    FaultName.SAME_MESSAGE_TWICE,  # in a batch of one
    FaultName.RECEIVE_WITHOUT_RUN,  # and the last receive is spared
    FaultName.DELETE_FAILS,
    FaultName.REDELIVER_AFTER,
    FaultName.SHORT_VISIBILITY,
)


def test_handed_on_after_those_received_behind_it_and_no_fault_without_the_means(
    tmp_path: Path, emulator_url: str
) -> None:
    ended = carry_out(
        tmp_path,
        emulator_url,
        STORES,
        plan_of(*(f"order-{number}" for number in range(1, 7))),
        FaultRule(FaultName.OUT_OF_ORDER, message=2),
        FaultRule(FaultName.OUT_OF_ORDER, message=3),
        *(FaultRule(name, message=4) for name in WITHOUT_MEANS),
        queue={"visibility_timeout": 10, "max_receive_count": 1},
        concurrency=1,
    )
    assert ended.settled
    ran = [event.orders[0] for event in ended.seen()]
    assert ran == [f"order-{number}" for number in (1, 4, 5, 6, 3, 2)]
    assert {(fault["name"], fault["message_no"]) for fault in ended.rows("FROM faults")} == {
        ("out-of-order", 2),
        ("out-of-order", 3),
    }
    assert [ended.outcomes(number) for number in range(1, 7)] == [["deleted"]] * 6
