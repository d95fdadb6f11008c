"""How many batches at once, and how large they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

from consumer.batching import Batch, Batcher
from consumer.scaling import Scaling, joins_after_s
from consumer.sqs_queue import Received
from tests.mapping_lab import carry_out, plan_of


def test_a_mapping_on_aws_starts_with_five_and_adds_three_hundred_a_minute() -> None:
    joins = [joins_after_s(Scaling.AWS, position) for position in range(305)]
    assert joins[:5] == [0.0] * 5
    assert sum(after_s <= 30 for after_s in joins) == 155
    assert sum(after_s <= 60 for after_s in joins) == 305
    assert joins == sorted(joins)


def test_fixed_all_are_there_from_the_first_moment() -> None:
    assert {joins_after_s(Scaling.FIXED, position) for position in range(1000)} == {0.0}


ALL_SEVEN = """
def work(orders, run):
    until(lambda: len({entry["process"] for entry in noted("start")}) == 7)
"""
"""No run ends before every environment has had one."""


def test_environments_join_one_after_the_other_up_to_the_maximum(
    tmp_path: Path, emulator_url: str
) -> None:
    ended = carry_out(
        tmp_path,
        emulator_url,
        ALL_SEVEN,
        plan_of(*(f"order-{number}" for number in range(7))),
        queue={"visibility_timeout": 20, "scaling": "aws"},
        concurrency=7,
    )
    assert ended.settled
    assert len({event.process for event in ended.seen()}) == 7
    first = ended.rows(
        f"SELECT environment, min(started_at) - {ended.started_ns} AS after_ns "
        "FROM invocations GROUP BY environment"
    )
    for row in first:
        assert row["after_ns"] / 1e9 >= joins_after_s(Scaling.AWS, row["environment"] - 1)


def test_a_window_fills_a_batch_from_several_receives(tmp_path: Path, emulator_url: str) -> None:
    ended = carry_out(
        tmp_path,
        emulator_url,
        "def work(orders, run):\n    pass\n",
        plan_of(*(f"order-{number}" for number in range(25))),
        queue={"visibility_timeout": 20, "batching_window": 1, "batch_size": 15},
    )
    assert ended.settled
    sizes = [len(event.orders) for event in ended.seen()]
    assert sum(sizes) == 25
    assert max(sizes) == 15, "more than one receive can give, and no more than asked for"
    assert all(ended.outcomes(number) == ["deleted"] for number in range(1, 26))


# --- batches ----------------------------------------------------------------------------


def received(number: int, body: str = "{}") -> Received:
    message = {"MessageId": f"m{number}", "ReceiptHandle": f"r{number}", "Body": body}
    return Received(message, number, number, 0)


def closed(batches: list[Batch]) -> list[list[int]]:
    return [[one.delivery_id for one in batch.messages] for batch in batches]


def test_without_a_window_every_receive_closes_its_batches() -> None:
    batches: list[Batch] = []
    batcher = Batcher(3, 0, batches.append)
    batcher.add([[received(number)] for number in range(1, 5)])
    batcher.add([[received(5)]])
    assert closed(batches) == [[1, 2, 3], [4], [5]]


def test_a_unit_is_never_split() -> None:
    batches: list[Batch] = []
    batcher = Batcher(3, 0, batches.append)
    batcher.add([[received(1)], [received(2)], [received(3), received(3)], [received(4)]])
    assert closed(batches) == [[1, 2], [3, 3, 4]]


async def test_a_window_closes_what_has_come_by_then_or_what_is_full() -> None:
    batches: list[Batch] = []
    has_closed = asyncio.Event()

    def close(batch: Batch) -> None:
        batches.append(batch)
        has_closed.set()

    batcher = Batcher(3, 0.01, close)
    batcher.add([[received(1)], [received(2)]])
    assert batches == []
    await has_closed.wait()
    has_closed.clear()
    batcher.add([[received(number)] for number in range(3, 7)])
    assert closed(batches) == [[1, 2], [3, 4, 5]]
    await has_closed.wait()
    batcher.flush()
    assert closed(batches)[:2] == [[1, 2], [3, 4, 5]]


async def test_an_event_stays_within_six_megabytes() -> None:
    batches: list[Batch] = []
    batcher = Batcher(10_000, 300, batches.append)
    batcher.add([[received(number, '"' * 1_000_000)] for number in range(1, 6)])
    batcher.flush()
    assert closed(batches) == [[1, 2, 3], [4, 5]], "a quotation mark takes two bytes there"
