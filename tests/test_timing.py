"""Timing and swim lanes, against plain Python over the same rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.exposure import (
    in_flight_counts,
    measure_exposure,
    most_contended,
    overlap_counts,
)
from analysis.findings import Quantiles, Timing
from analysis.lanes import (
    MOST_LANES,
    Lane,
    Lanes,
    lanes_axis,
    lanes_text,
    order_lanes,
)
from analysis.schema import (
    NO_ITEM,
    Ack,
    AckOutcome,
    Action,
    Call,
    CallItem,
    Decision,
    Delivery,
    Invocation,
    ItemRow,
    Message,
    MessageKind,
    Outcome,
    Phase,
    QueueRole,
    Result,
    ResultRow,
    Row,
    RunInfo,
    item_text,
)
from analysis.store import open_evidence
from analysis.timing import MOST_BINS, measure, phases, rates
from analysis.timing import quantiles as raw_quantiles
from tests.sample_run import HOSTILE, MS, ORDERS_TABLE, START_NS, Sample, write_run

ITEM = item_text({"id": {"S": "a"}, "quantity": {"N": "1"}})
A_KEY = item_text({"id": {"S": "a"}})


def write_rows(run_dir: Path, rows: Iterable[Row], rate_per_s: float | None = None) -> Path:
    """A run directory that holds just these rows."""
    write_run(run_dir, Sample(orders=0, poison=0))
    path = run_dir / "run.json"
    run = msgspec.json.decode(path.read_bytes(), type=RunInfo)
    run = replace(run, plan=replace(run.plan, rate_per_s=rate_per_s))
    path.write_bytes(msgspec.json.encode(run))
    lines: dict[str, bytes] = {}
    for row in rows:
        lines[row.TABLE] = lines.get(row.TABLE, b"") + msgspec.json.encode(row) + b"\n"
    for path in (run_dir / "evidence").iterdir():
        path.write_bytes(lines.get(path.stem, b""))
    return run_dir


def sent(number: int, key: str = "a", accepted_at: int = START_NS + MS) -> Message:
    kind = MessageKind.ORDER if number == 1 else MessageKind.COPY
    return Message(
        number, key, kind, "{}", ITEM, START_NS, START_NS, accepted_at, f"m{number}", attempts=1
    )


def received(number: int, at_ms: float, message: int | None = None, count: int = 1) -> Delivery:
    message = message or number
    at = START_NS + round(at_ms * MS)
    return Delivery(number, QueueRole.QUEUE, f"m{message}", message, count, at, number)


def ran(number: int, start_ms: float, end_ms: float, environment: int = 1) -> Invocation:
    start, end = (START_NS + round(time * MS) for time in (start_ms, end_ms))
    return Invocation(number, f"r{number}", environment, False, start, end, Outcome.RETURNED)


def put(
    number: int,
    invocation: int,
    start_ms: float,
    end_ms: float | None,
    decision: Decision = Decision.ACCEPTED,
    key: str = "a",
) -> tuple[Call, CallItem]:
    end = None if end_ms is None else START_NS + round(end_ms * MS)
    start = START_NS + round(start_ms * MS)
    call = Call(
        number, invocation, 1, None, "dynamodb", "PutItem", ORDERS_TABLE, None, start, end, decision
    )
    item_key = item_text({"id": {"S": key}})
    item = CallItem(number, ORDERS_TABLE, item_key, Action.PUT, None, decision, None, NO_ITEM, ITEM)
    return call, item


def read_jsonl(run_dir: Path, table: str) -> list[dict[str, Any]]:
    lines = (run_dir / "evidence" / f"{table}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def timing_of(run_dir: Path) -> Timing:
    with open_evidence(run_dir) as evidence:
        timing = measure(evidence)
    assert timing is not None
    return timing


def quantiles(timing: Timing, name: str, split: str = "all") -> Quantiles:
    (found,) = (row for row in timing.quantiles if (row.name, row.split) == (name, split))
    return found


def nearest_rank(values: list[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)]


def lanes_of(run_dir: Path, key: str = "a", focus: tuple[int, ...] = ()) -> Lanes:
    with open_evidence(run_dir) as evidence:
        return order_lanes(evidence, key, focus)


# --- quantiles --------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [None, 250.0])
def test_every_series_agrees_with_plain_python(tmp_path: Path, rate: float | None) -> None:
    run_dir = write_run(tmp_path, Sample(orders=120, rate_per_s=rate, overwrites=3))
    messages = {row["message_no"]: row for row in read_jsonl(run_dir, "messages")}
    deliveries = {row["delivery_id"]: row for row in read_jsonl(run_dir, "deliveries")}
    results = {row["invocation_id"]: row["result"] for row in read_jsonl(run_dir, "results")}
    writes = {row["call_id"] for row in read_jsonl(run_dir, "call_items") if row["action"] == "put"}
    expected: dict[tuple[str, str], list[int]] = {}

    def add(name: str, splits: tuple[str, ...], ns: int) -> None:
        for split in splits:
            expected.setdefault((name, split), []).append(ns)

    first: dict[int, int] = {}
    for row in deliveries.values():
        if row["queue"] == "queue":
            number = row["message_no"]
            first[number] = min(first.get(number, row["received_at"]), row["received_at"])
    for number, row in messages.items():
        add("send", ("all",), row["accepted_at"] - row["sent_at"])
        add("delivery", ("all",), max(0, first[number] - row["accepted_at"]))
        if rate is not None:
            add("send lag", ("all",), row["sent_at"] - row["intended_at"])
    for row in read_jsonl(run_dir, "acks"):
        delivery = deliveries[row["delivery_id"]]
        if row["outcome"] == "deleted":
            message = messages[delivery["message_no"]]
            begun = message["sent_at" if rate is None else "intended_at"]
            result = results[delivery["invocation_id"]]
            add("end to end", ("all", result), row["acked_at"] - begun)
    for row in read_jsonl(run_dir, "invocations"):
        result = results[row["invocation_id"]]
        add("handler", ("all", result), row["ended_at"] - row["started_at"])
    for row in read_jsonl(run_dir, "calls"):
        if row["call_id"] in writes:
            add("write", (row["decision"],), row["answered_at"] - row["sent_at"])

    timing = timing_of(run_dir)
    assert timing.open_loop is (rate is not None)
    assert {(row.name, row.split) for row in timing.quantiles} == set(expected)
    for found in timing.quantiles:
        values = expected[found.name, found.split]
        assert (found.n, found.min_ns, found.max_ns) == (len(values), min(values), max(values))
        assert found.p50_ns == nearest_rank(values, 0.5)
        for share, needed, value in (
            (0.9, 10, found.p90_ns),
            (0.99, 100, found.p99_ns),
            (0.999, 1000, found.p99_9_ns),
        ):
            assert value == (nearest_rank(values, share) if len(values) >= needed else None)


@pytest.mark.parametrize(
    ("n", "known"),
    [(9, (False, False, False)), (10, (True, False, False)), (99, (True, False, False)),
     (100, (True, True, False)), (999, (True, True, False)), (1000, (True, True, True))],
)  # fmt: skip
def test_a_quantile_that_n_cannot_carry_is_not_given(
    tmp_path: Path, n: int, known: tuple[bool, bool, bool]
) -> None:
    rows: list[Row] = [sent(number, accepted_at=START_NS + number) for number in range(1, n + 1)]
    row = quantiles(timing_of(write_rows(tmp_path, rows)), "send")
    assert (row.p90_ns is not None, row.p99_ns is not None, row.p99_9_ns is not None) == known


# Around the borders of what is counted together, close to each other and far apart.
ODD_NS = st.builds(
    lambda base, more: base + more,
    st.sampled_from([0, -(1 << 24), *(1 << power for power in (10, 16, 17, 23, 24, 30, 37, 40))]),
    st.integers(-3, 3) | st.integers(-(1 << 17), 1 << 17),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ODD_NS, min_size=1, max_size=60))
def test_quantiles_are_the_nearest_of_the_values_that_occurred(
    tmp_path_factory: pytest.TempPathFactory, durations: list[int]
) -> None:
    rows: list[Row] = [
        sent(number, accepted_at=START_NS + duration)
        for number, duration in enumerate(durations, 1)
    ]
    levels = (0.001, 0.25, 0.5, 0.9, 0.99, 1.0)
    with open_evidence(write_rows(tmp_path_factory.mktemp("run"), rows)) as evidence:
        (row,) = raw_quantiles(evidence, levels, ("send",))
    assert row["quantiles"] == [nearest_rank(durations, level) for level in levels]
    assert (row["n"], row["min_ns"], row["max_ns"]) == (
        len(durations), min(durations), max(durations)
    )  # fmt: skip


def test_nothing_sent_has_no_timing(tmp_path: Path) -> None:
    planned = Message(1, "a", MessageKind.ORDER, "{}", ITEM, START_NS)
    with open_evidence(write_rows(tmp_path, [planned])) as evidence:
        assert measure(evidence) is None
        assert phases(evidence) == []


def test_a_message_that_was_never_deleted_has_no_end_to_end_time(tmp_path: Path) -> None:
    rows: list[Row] = [
        sent(1), sent(2), received(1, 3), received(2, 3),
        Ack(1, START_NS + 10 * MS, AckOutcome.DELETED),
        Ack(2, START_NS + 11 * MS, AckOutcome.RETURNED),
    ]  # fmt: skip
    timing = timing_of(write_rows(tmp_path, rows))
    assert quantiles(timing, "end to end").n == 1
    assert timing.duration_ns == 10 * MS
    assert timing.settled_per_s == pytest.approx(1 / 0.007)


def test_a_message_received_before_its_confirmation_waited_for_nothing(tmp_path: Path) -> None:
    rows: list[Row] = [sent(1, accepted_at=START_NS + 5 * MS), received(1, 2)]
    assert quantiles(timing_of(write_rows(tmp_path, rows)), "delivery").max_ns == 0


def test_an_invocation_with_different_results_is_called_mixed(tmp_path: Path) -> None:
    rows: list[Row] = [
        sent(1), sent(2), ran(1, 1, 2), ran(2, 1, 3),
        ResultRow(1, 1, Result.PROCESSED, None), ResultRow(1, 2, Result.DUPLICATE, None),
    ]  # fmt: skip
    timing = timing_of(write_rows(tmp_path, rows))
    assert quantiles(timing, "handler", "mixed").max_ns == MS
    assert quantiles(timing, "handler", "returned").max_ns == 2 * MS


def test_rates_count_every_event_once(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=60))
    counts: Counter[str] = Counter()
    with open_evidence(run_dir) as evidence:
        (flood, rest) = phases(evidence)
        for first, last in (flood, (rest[0] + 1, rest[1])):
            data = rates(evidence, first, last)
            assert all(len(rate.counts) <= MOST_BINS for rate in data.series)
            counts.update({rate.name: sum(rate.counts) for rate in data.series})
    assert counts["sent"] == len(read_jsonl(run_dir, "messages"))
    decisions = Counter(row["decision"] for row in read_jsonl(run_dir, "calls"))
    assert {name: counts[name] for name in decisions} == decisions


def test_a_run_without_redeliveries_has_one_phase(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=40, conflicts=0, poison=0, transient=0))
    with open_evidence(run_dir) as evidence:
        assert len(phases(evidence)) == 1


# --- swim lanes -------------------------------------------------------------------------


def test_a_lane_tells_the_whole_delivery(tmp_path: Path) -> None:
    rows: list[Row] = [
        sent(1), received(1, 10), ran(1, 11, 19, environment=4), *put(1, 1, 12, 18),
        ResultRow(1, 1, Result.PROCESSED, None), Ack(1, START_NS + 20 * MS, AckOutcome.DELETED),
        ItemRow(ORDERS_TABLE, A_KEY, ITEM, Phase.AFTER),
    ]  # fmt: skip
    lanes = lanes_of(write_rows(tmp_path, rows))
    (lane,) = lanes.lanes
    assert (lane.received_ns, lane.started_ns, lane.ended_ns, lane.acked_ns) == (
        0, MS, 9 * MS, 10 * MS,
    )  # fmt: skip
    assert (lane.environment, lane.result, lane.ack) == (4, "processed", AckOutcome.DELETED)
    (call,) = lane.calls
    assert (call.sent_ns, call.answered_ns, call.mark) == (2 * MS, 8 * MS, "+")
    assert call.effect == 'no item -> id="a", quantity=1'
    assert lanes.final == 'id="a", quantity=1'
    assert lanes.overlaps == ()


def test_call_windows_that_touch_overlap(tmp_path: Path) -> None:
    rows: list[Row] = [sent(1), sent(2), sent(3)]
    for number, (start, end) in enumerate(((1, 4), (4, 6), (7, 8)), 1):
        rows += [received(number, 0), ran(number, 0.5, 9), *put(number, number, start, end)]
    run_dir = write_rows(tmp_path, rows)
    assert lanes_of(run_dir).overlaps == ((4 * MS, 4 * MS),)
    with open_evidence(run_dir) as evidence:
        assert overlap_counts(evidence) == {1: 1}
        assert in_flight_counts(evidence) == {2: 1}
        assert most_contended(evidence, 5) == ["a"]


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_overlaps_agree_with_the_exposure_of_the_verdict(tmp_path: Path, concurrency: int) -> None:
    run_dir = write_run(tmp_path, Sample(orders=80, conflicts=0.3, concurrency=concurrency))
    with open_evidence(run_dir) as evidence:
        exposure = measure_exposure(evidence)
        pairs, most = overlap_counts(evidence), in_flight_counts(evidence)
        busiest = most_contended(evidence, 1)
    assert sum(number * orders for number, orders in pairs.items()) == exposure.overlapping_pairs
    assert sum(pairs.values()) == sum(most.values()) == exposure.contestable_orders == 80
    assert pairs.get(0, 0) == 80 - exposure.contended_orders
    assert max(most) == exposure.most_in_flight
    assert busiest == ([exposure.busiest_order] if exposure.busiest_order else [])


def test_orders_without_overlap_are_counted_as_zero(tmp_path: Path) -> None:
    rows: list[Row] = [sent(1), sent(2)]
    for number, start in ((1, 1), (2, 5)):
        rows += [received(number, 0), ran(number, 0.5, 9), *put(number, number, start, start + 1)]
    with open_evidence(write_rows(tmp_path, rows)) as evidence:
        assert overlap_counts(evidence) == {0: 1}
        assert most_contended(evidence, 5) == []


def test_idle_time_is_cut_out_of_the_drawing(tmp_path: Path) -> None:
    rows: list[Row] = [sent(1)]
    for number, at in ((1, 0.0), (2, 30_000.0)):
        rows += [received(number, at, message=1, count=number), ran(number, at + 1, at + 9)]
        rows.append(Ack(number, START_NS + round((at + 10) * MS), AckOutcome.RETURNED))
    lanes = lanes_of(write_rows(tmp_path, rows))
    axis = lanes.axis
    ((_, idle),) = axis.cuts
    assert idle == 29_990 * MS
    assert axis.position(10 * MS) - axis.position(0) == pytest.approx(
        axis.position(30_010 * MS) - axis.position(30_000 * MS)
    )
    assert axis.position(10 * MS) - axis.position(0) > 0.4
    assert ":" in lanes_text(lanes).splitlines()[-3]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**11), st.integers(0, 10**8)), min_size=1, max_size=9))
def test_the_axis_never_runs_backwards_nor_off_the_page(spans: list[tuple[int, int]]) -> None:
    lanes = tuple(
        Lane(1, "order", None, 1, first, None, None, False, None, None, None, None, None,
             AckOutcome.RETURNED, first + length, (), 0)
        for first, length in spans
    )  # fmt: skip
    axis = lanes_axis(lanes)
    times = sorted(time for first, length in spans for time in (first, first + length))
    positions = [axis.position(time) for time in times]
    assert positions == sorted(positions)
    assert 0 <= positions[0] <= positions[-1] <= 1 + 1e-9


def test_lanes_are_bounded_and_keep_what_a_finding_is_about(tmp_path: Path) -> None:
    rows: list[Row] = [sent(number) for number in range(1, 41)]
    for number in range(1, 41):
        rows += [received(number, number), ran(number, number, number + 2)]
    lanes = lanes_of(write_rows(tmp_path, rows), focus=(33, 40))
    numbers = [lane.invocation_id for lane in lanes.lanes]
    assert numbers == [*range(1, MOST_LANES - 1), 33, 40]
    assert lanes.lanes_left_out == 40 - MOST_LANES
    assert f"{40 - MOST_LANES} more not shown" in lanes_text(lanes)


def test_calls_for_other_orders_of_a_batch_are_left_out(tmp_path: Path) -> None:
    other = replace(sent(2, key="b"), kind=MessageKind.ORDER)
    delivery = replace(received(2, 0), invocation_id=1)
    rows: list[Row] = [
        sent(1), other, received(1, 0), delivery, ran(1, 1, 9),
        *put(1, 1, 2, 3), *put(2, 1, 4, 5, key="b"), *put(3, 1, 6, 7, key="random-id"),
    ]  # fmt: skip
    (lane,) = lanes_of(write_rows(tmp_path, rows)).lanes
    assert [call.call_id for call in lane.calls] == [1, 3]


def test_a_call_without_an_answer_stays_open(tmp_path: Path) -> None:
    call, item = put(1, 1, 2, None, Decision.UNKNOWN)
    running = replace(ran(1, 1, 2), ended_at=None, outcome=None)
    rows: list[Row] = [sent(1), received(1, 0), running, call, item]
    lanes = lanes_of(write_rows(tmp_path, rows))
    assert lanes.lanes[0].calls[0].mark == "?"
    assert "no answer" in lanes_text(lanes)


def test_an_order_that_was_never_received_has_empty_lanes(tmp_path: Path) -> None:
    lanes = lanes_of(write_rows(tmp_path, [sent(1)]))
    assert lanes.lanes == ()
    assert lanes_text(lanes) == 'order "a": 1 message, never received\n'


def test_lane_text_marks_decisions_and_fits_the_terminal(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=40, conflicts=1, overwrites=1))
    with open_evidence(run_dir) as evidence:
        for key in most_contended(evidence, 40):
            lanes = order_lanes(evidence, key)
            tracks = [
                line for line in lanes_text(lanes, 100).splitlines() if line.startswith("inv ")
            ]
            assert len(tracks) == sum(lane.invocation_id is not None for lane in lanes.lanes)
            assert all(len(line) <= 100 for line in tracks)
            assert any("+" in line.split("receive")[1] for line in tracks) or lanes.lanes_left_out


def test_foreign_text_cannot_steer_a_terminal(tmp_path: Path) -> None:
    key = "\x1b[2J\u202e" + HOSTILE + "\n" + "x" * 500
    rows: list[Row] = [
        sent(1, key=key), received(1, 0), *put(1, 1, 2, 3, key=key),
        replace(ran(1, 1, 4), outcome=Outcome.RAISED, error_message="\x07\x9b31m" + "y" * 9000),
    ]  # fmt: skip
    text = lanes_text(lanes_of(write_rows(tmp_path, rows), key=key))
    assert all(character == "\n" or character.isprintable() for character in text)
    assert len(text) < 3000
