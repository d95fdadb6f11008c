"""Swim lanes: what happened to one order, one lane an invocation, as data and as text.

A lane runs from the receive of a message to the end of its delivery, with the handler's
calls between. The page draws the same data (templates/lanes.html). Long stretches in which
nothing was under way (a visibility timeout) are cut out of the drawing and marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from analysis.schema import NO_ITEM, AckOutcome, Decision, item_text
from analysis.store import Evidence
from analysis.text import count, milliseconds, quoted, short_item, visible
from analysis.timing import orders_tables

MOST_LANES = 12
MOST_CALLS = 12  # in one lane

_MARGIN = 0.02  # of the drawn width, before the first and after the last thing
_CUT_ABOVE = 0.25  # an idle stretch longer than this share of the busy time is cut ...
_CUT_TO = 0.06  # ... to this share


class Mark(StrEnum):
    """The letter that tells a call's decision."""

    ACCEPTED = "A"
    REJECTED = "R"
    FAILED = "F"
    UNKNOWN = "?"
    READ = "r"


@dataclass(frozen=True, slots=True)
class LaneCall:
    """One call of an invocation, with the item it touched (the order's own, if it did)."""

    call_id: int
    attempt: int
    service: str
    operation: str
    resource: str | None
    sent_ns: int  # from the lanes' origin, like all times here
    answered_ns: int | None
    decision: Decision
    mark: Mark
    condition: str | None
    before: str | None  # short text; None: not known
    after: str | None
    error_code: str | None
    fault: str | None

    @property
    def effect(self) -> str | None:
        """What the call did to the item, or saw of it; ``None`` where that is not known."""
        if self.before is None and self.after is None:
            return None
        if self.mark is Mark.READ:
            return f"saw {self.before}"
        if self.before == self.after:
            accepted = self.decision is Decision.ACCEPTED
            return f"{'written again, identical' if accepted else 'unchanged'}: {self.before}"
        return f"{self.before or 'not known'} -> {self.after or 'not known'}"


@dataclass(frozen=True, slots=True)
class Lane:
    """One delivery of one message of the order, and the invocation that handled it."""

    message_no: int | None
    kind: str
    receive_count: int
    received_ns: int
    invocation_id: int | None
    environment: int | None
    cold: bool
    started_ns: int | None
    ended_ns: int | None
    outcome: str | None
    result: str | None
    error: str | None
    ack: AckOutcome | None
    acked_ns: int | None
    calls: tuple[LaneCall, ...]
    calls_left_out: int

    @property
    def end_ns(self) -> int:
        """The last thing known of this lane."""
        times = [self.received_ns, self.started_ns, self.ended_ns, self.acked_ns]
        times += [time for call in self.calls for time in (call.sent_ns, call.answered_ns)]
        return max(time for time in times if time is not None)

    @property
    def window(self) -> tuple[int, int] | None:
        """From the first call sent to the last one answered; ``None`` without a call.

        A call without an answer lasts until the invocation ended, if that is known.
        """
        if not self.calls:
            return None
        ends = [call.answered_ns or self.ended_ns or call.sent_ns for call in self.calls]
        return self.calls[0].sent_ns, max(ends)


@dataclass(frozen=True, slots=True)
class Axis:
    """Time to drawn position: 0 is the left edge, 1 the right one."""

    spans: tuple[tuple[int, int], ...]  # busy stretches that are drawn, in order
    starts: tuple[float, ...]  # where each begins
    per_ns: float

    def position(self, time_ns: int) -> float:
        for (first, last), start in zip(reversed(self.spans), reversed(self.starts), strict=True):
            if time_ns >= first:
                return start + (min(time_ns, last) - first) * self.per_ns
        return self.starts[0]

    @property
    def cuts(self) -> tuple[tuple[float, int], ...]:
        """Where a stretch was cut out (its middle), and how much, in ns."""
        pairs = zip(self.spans, self.spans[1:], self.starts[1:], strict=False)
        return tuple(
            ((self.position(left[1]) + start) / 2, right[0] - left[1])
            for left, right, start in pairs
        )

    def ticks(self) -> tuple[tuple[float, int], ...]:
        """Positions and times: about six round numbers, and one time for every stretch."""
        busy = sum(last - first for first, last in self.spans)
        step = _round_step(max(busy, 1) / 6)
        fine = step // 5  # a step is at least 1,000 ns
        times: list[tuple[int, int]] = []  # when, and what to call it
        for first, last in self.spans:
            rounds = range(-(-first // step) * step, last + 1, step)
            times += zip(rounds, rounds, strict=True) if rounds else [(first, first // fine * fine)]
        ticks: list[tuple[float, int]] = []
        for time, name in times:
            position = self.position(time)
            if not ticks or position - ticks[-1][0] >= 0.12:
                ticks.append((position, name))
        return tuple(ticks)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Everything known of one order, bounded."""

    order_key: str
    origin_ns: int  # since the epoch; all other times count from here
    expected: tuple[str, ...]  # details of its messages, short, the first planned one first
    final: str | None  # the stored item at the end, short; None: not read
    lanes: tuple[Lane, ...]
    lanes_left_out: int
    messages: int
    overlaps: tuple[tuple[int, int], ...]  # stretches in which two or more call windows are open
    axis: Axis

    @property
    def calls(self) -> list[tuple[Lane, LaneCall]]:
        """All calls in the order in which they were sent."""
        pairs = [(lane, call) for lane in self.lanes for call in lane.calls]
        return sorted(pairs, key=lambda pair: (pair[1].sent_ns, pair[1].call_id))


# Overlaps of each order of two or more messages, by the definition of analysis/exposure.py:
# closed intervals, a call without an answer lasts until its invocation ended, poison left out.
# One sweep over the starts and ends of call windows; `pairs` 0 and `most` 0 without any call.
_OVERLAPS = """
WITH windows AS (
    SELECT c.invocation_id, min(c.sent_at) AS first_at,
        max(greatest(c.sent_at, coalesce(c.answered_at, i.ended_at))) AS last_at
    FROM calls c JOIN invocations i USING (invocation_id)
    GROUP BY c.invocation_id
), intervals AS (
    SELECT DISTINCT m.order_key, w.*
    FROM deliveries d JOIN messages m USING (message_no) JOIN windows w USING (invocation_id)
    WHERE d.queue = 'queue' AND m.kind <> 'poison'
), events AS (
    SELECT order_key, first_at AS moment, 1 AS step FROM intervals
    UNION ALL SELECT order_key, last_at, -1 FROM intervals
), sweep AS (
    SELECT order_key, step, sum(step) OVER (
        PARTITION BY order_key ORDER BY moment, step DESC ROWS UNBOUNDED PRECEDING
    ) AS active
    FROM events
), swept AS (
    SELECT order_key, sum(active - 1) AS pairs, max(active) AS most
    FROM sweep WHERE step = 1 GROUP BY order_key
), order_overlaps AS (
    SELECT m.order_key, coalesce(any_value(s.pairs), 0)::BIGINT AS pairs,
        coalesce(any_value(s.most), 0)::BIGINT AS most
    FROM messages m LEFT JOIN swept s USING (order_key)
    WHERE m.kind <> 'poison' GROUP BY m.order_key HAVING count(*) > 1 OR max(s.pairs) > 0
)
"""

_DELIVERIES = """
SELECT d.delivery_id, d.message_no, m.kind, d.receive_count, d.received_at, d.queue,
    d.invocation_id, i.environment, i.cold, i.started_at, i.ended_at, i.outcome,
    coalesce(i.error_message, i.error_type) AS error, r.result, a.acked_at, a.outcome AS ack
FROM deliveries d
JOIN messages m USING (message_no)
LEFT JOIN invocations i USING (invocation_id)
LEFT JOIN results r ON r.invocation_id = d.invocation_id AND r.message_no = d.message_no
LEFT JOIN acks a USING (delivery_id)
WHERE m.order_key = $order_key
ORDER BY list_contains($focus, d.invocation_id) DESC NULLS LAST, d.received_at, d.delivery_id
LIMIT $most
"""

# The calls of an invocation, without those that touch nothing but the items of other orders
# of the same batch. One row a call: where it touched several items, the order's own counts.
_CALLS = """
WITH own AS (SELECT unnest($invocations) AS invocation_id),
others AS (
    SELECT DISTINCT d.invocation_id, m.order_key
    FROM deliveries d JOIN messages m USING (message_no) JOIN own USING (invocation_id)
    WHERE m.order_key <> $order_key
), touched AS (
    SELECT c.call_id, c.invocation_id, t.action, t.condition, t.before, t.after, t.decision,
        t.error_code, t.item_key = $item_key AS mine,
        EXISTS (
            SELECT 1 FROM others o WHERE o.invocation_id = c.invocation_id
            AND contains(t.item_key, to_json(o.order_key)::VARCHAR)
        ) AS of_another
    FROM calls c JOIN own USING (invocation_id) JOIN call_items t USING (call_id)
)
SELECT c.call_id, c.invocation_id, c.attempt, c.service, c.operation, c.resource, c.sent_at,
    c.answered_at, c.decision, c.error_code, c.fault, t.action, t.condition, t.before, t.after
FROM calls c JOIN own USING (invocation_id)
LEFT JOIN (SELECT * FROM touched
           QUALIFY row_number() OVER (PARTITION BY call_id ORDER BY mine DESC, of_another) = 1) t
    USING (call_id)
WHERE NOT coalesce(t.of_another, false)
ORDER BY c.sent_at, c.call_id
"""


def most_contended(evidence: Evidence, n: int) -> list[str]:
    """The keys of the ``n`` orders with most overlapping pairs; ties by key, last one first."""
    rows = evidence.rows(
        _OVERLAPS + "SELECT order_key FROM order_overlaps WHERE pairs > 0"
        " ORDER BY pairs DESC, order_key DESC LIMIT $n",
        {"n": n},
    )
    return [row["order_key"] for row in rows]


def overlap_counts(evidence: Evidence) -> dict[int, int]:
    """How many orders of two or more messages had 0, 1, 2, ... overlapping pairs."""
    rows = evidence.rows(
        _OVERLAPS
        + "SELECT pairs, count(*) AS orders FROM order_overlaps GROUP BY pairs ORDER BY pairs"
    )
    return {row["pairs"]: row["orders"] for row in rows}


def in_flight_counts(evidence: Evidence) -> dict[int, int]:
    """How many orders of two or more messages had at most 0, 1, ... call windows open at once."""
    rows = evidence.rows(
        _OVERLAPS
        + "SELECT most, count(*) AS orders FROM order_overlaps GROUP BY most ORDER BY most"
    )
    return {row["most"]: row["orders"] for row in rows}


def order_lanes(evidence: Evidence, order_key: str, focus: Sequence[int] = ()) -> Lanes:
    """The lanes of one order; empty lanes for an order that was never received.

    Of more than :data:`MOST_LANES` deliveries those of the invocations in ``focus`` are kept
    first, then the earliest.
    """
    deliveries = evidence.rows(
        _DELIVERIES, {"order_key": order_key, "focus": list(focus), "most": MOST_LANES}
    )
    deliveries.sort(key=lambda row: (row["received_at"], row["delivery_id"]))
    total = evidence.scalar(
        "SELECT count(*) FROM deliveries JOIN messages USING (message_no)"
        " WHERE order_key = $order_key",
        {"order_key": order_key},
    )
    messages = evidence.rows(
        "SELECT expected_item FROM messages WHERE order_key = $order_key ORDER BY message_no",
        {"order_key": order_key},
    )
    details = dict.fromkeys(row["expected_item"] for row in messages)
    item_key = _item_key(evidence, order_key)
    finals = evidence.rows(
        "SELECT item FROM items WHERE phase = 'after' AND list_contains($orders, resource)"
        " AND item_key = $item_key",
        {"orders": orders_tables(evidence), "item_key": item_key},
    )
    scanned = evidence.scalar("SELECT count(*) FROM items WHERE phase = 'after'")
    invocations = [row["invocation_id"] for row in deliveries if row["invocation_id"] is not None]
    calls: dict[int, list[dict[str, Any]]] = {}
    if invocations:
        params = {"invocations": invocations, "order_key": order_key, "item_key": item_key}
        for row in evidence.rows(_CALLS, params):
            calls.setdefault(row["invocation_id"], []).append(row)
    origin = deliveries[0]["received_at"] if deliveries else 0
    lanes = tuple(_lane(row, calls.get(row["invocation_id"], []), origin) for row in deliveries)
    return Lanes(
        order_key=order_key,
        origin_ns=origin,
        expected=tuple(short_item(text) for text in details if text is not None),
        final=short_item(finals[0]["item"] if finals else NO_ITEM) if scanned else None,
        lanes=lanes,
        lanes_left_out=total - len(lanes),
        messages=len(messages),
        overlaps=_overlaps([lane.window for lane in lanes]),
        axis=lanes_axis(lanes),
    )


def lanes_text(lanes: Lanes, width: int = 100) -> str:
    """The lanes for a terminal of ``width`` columns, in plain characters, without colour."""
    head = f"order {quoted(lanes.order_key)}: {count(lanes.messages, 'message')}"
    if not lanes.lanes:
        return f"{head}, never received\n"
    labels = [lane_label(lane) for lane in lanes.lanes]
    margin = max(len(label) for label in labels) + 2
    columns = max(20, width - margin)

    def column(time_ns: int) -> int:
        return min(columns - 1, int(lanes.axis.position(time_ns) * columns))

    lines = [f"{head}, {count(len(lanes.lanes) + lanes.lanes_left_out, 'receive')}"]
    lines += [f"  sent with  {details}" for details in lanes.expected]
    lines.append(f"  stored     {lanes.final or 'not read'}")
    ruler = [" "] * columns
    for position, time_ns in lanes.axis.ticks():
        text = f"|{milliseconds(time_ns)}"
        start = int(position * columns)
        if start + len(text) <= columns:
            ruler[start : start + len(text)] = text
    lines.append(" " * margin + "".join(ruler).rstrip() + " ms")
    for label, lane in zip(labels, lanes.lanes, strict=True):
        track = [" "] * columns
        for position, _ in lanes.axis.cuts:
            track[min(columns - 1, int(position * columns))] = ":"
        _fill(track, column(lane.received_ns), column(lane.end_ns), ".")
        if lane.started_ns is not None:
            _fill(track, column(lane.started_ns), column(lane.ended_ns or lane.end_ns), "-")
        for call in lane.calls:
            _fill(track, column(call.sent_ns), column(call.answered_ns or lane.end_ns), "=")
        for call in lane.calls:
            track[column(call.answered_ns or lane.end_ns)] = call.mark
        if lane.ack is not None and lane.acked_ns is not None:
            track[column(lane.acked_ns)] = _ACK_LETTERS[lane.ack]
        lines.append(label.ljust(margin) + "".join(track).rstrip())
    if lanes.lanes_left_out:
        lines.append(f"  {lanes.lanes_left_out} more not shown")
    lines.append("  " + LETTERS)
    for lane, call in lanes.calls:
        lines.append(f"  {call_text(lane, call)}")
    for lane in lanes.lanes:
        if lane.error is not None:
            lines.append(f"  {lane_name(lane)} {lane.outcome}: {lane.error}")
    return "\n".join(lines) + "\n"


_ACK_LETTERS = {
    AckOutcome.DELETED: "D",
    AckOutcome.RETURNED: "B",
    AckOutcome.DELETE_FAILED: "X",
    AckOutcome.DEAD_LETTERED: "L",
}
LETTERS = (
    ". waiting  - handler  = call  A accepted  R rejected  F failed  ? unknown  r read"
    "  D deleted  B back to the queue  X delete failed  L dead-lettered  : idle time cut out"
)


def call_text(lane: Lane, call: LaneCall) -> str:
    """One call in one line."""
    end = "no answer" if call.answered_ns is None else milliseconds(call.answered_ns)
    parts = [
        f"{milliseconds(call.sent_ns)} .. {end} ms  {lane_name(lane)} call {call.call_id}"
        f"  {call.operation} {call.decision.value}"
    ]
    if call.condition is not None:
        parts.append(f"if {call.condition}")
    if call.error_code is not None:
        parts.append(call.error_code)
    if call.fault is not None:
        parts.append(f"fault {call.fault}")
    if call.effect is not None:
        parts.append(call.effect)
    return "  ".join(parts)


def lane_name(lane: Lane) -> str:
    return "dead-letter queue" if lane.invocation_id is None else f"invocation {lane.invocation_id}"


def lane_label(lane: Lane) -> str:
    """What a lane is, in a few words: invocation, environment, message and receive."""
    message = f"message {lane.message_no} {lane.kind}, receive {lane.receive_count}"
    if lane.invocation_id is None:
        place = "dead-letter queue" if lane.ack is AckOutcome.DEAD_LETTERED else "not invoked"
        return f"{place}: {message}"
    return f"inv {lane.invocation_id} env {lane.environment}: {message}"


def _item_key(evidence: Evidence, order_key: str) -> str:
    """The primary key under which the order belongs in the first orders table."""
    for table in evidence.run.tables:
        if table.name in orders_tables(evidence):
            return item_text({table.key: {table.key_type: order_key}})
    return NO_ITEM


def _lane(row: dict[str, Any], calls: list[dict[str, Any]], origin: int) -> Lane:
    def relative(time: int | None) -> int | None:
        return None if time is None else time - origin

    return Lane(
        message_no=row["message_no"],
        kind=row["kind"],
        receive_count=row["receive_count"],
        received_ns=row["received_at"] - origin,
        invocation_id=row["invocation_id"],
        environment=row["environment"],
        cold=bool(row["cold"]),
        started_ns=relative(row["started_at"]),
        ended_ns=relative(row["ended_at"]),
        outcome=row["outcome"],
        result=row["result"],
        error=None if row["error"] is None else visible(row["error"]),
        ack=None if row["ack"] is None else AckOutcome(row["ack"]),
        acked_ns=relative(row["acked_at"]),
        calls=tuple(_call(call, origin) for call in calls[:MOST_CALLS]),
        calls_left_out=max(0, len(calls) - MOST_CALLS),
    )


def _call(row: dict[str, Any], origin: int) -> LaneCall:
    decision = Decision(row["decision"])
    read = row["action"] == "read" and decision is Decision.ACCEPTED
    return LaneCall(
        call_id=row["call_id"],
        attempt=row["attempt"],
        service=row["service"],
        operation=visible(row["operation"]),
        resource=row["resource"],
        sent_ns=row["sent_at"] - origin,
        answered_ns=None if row["answered_at"] is None else row["answered_at"] - origin,
        decision=decision,
        mark=Mark.READ if read else Mark[decision.name],
        condition=None if row["condition"] is None else visible(row["condition"]),
        before=None if row["before"] is None else short_item(row["before"]),
        after=None if row["after"] is None else short_item(row["after"]),
        error_code=None if row["error_code"] is None else visible(row["error_code"]),
        fault=row["fault"],
    )


def _overlaps(windows: list[tuple[int, int] | None]) -> tuple[tuple[int, int], ...]:
    """Closed stretches in which at least two windows are open."""
    edges = sorted(
        edge
        for window in windows
        if window is not None
        for edge in ((window[0], 0, 1), (window[1], 1, -1))  # equal times: opens come first
    )
    stretches: list[tuple[int, int]] = []
    open_windows, start = 0, 0
    for time, _, change in edges:
        open_windows += change
        if change == 1 and open_windows == 2:
            start = time
        elif change == -1 and open_windows == 1:
            stretches.append((start, time))
    return tuple(stretches)


def lanes_axis(lanes: tuple[Lane, ...]) -> Axis:
    """Busy stretches side by side; idle ones between are cut when they would rule the drawing."""
    busy: list[list[int]] = []
    for lane in sorted(lanes, key=lambda lane: lane.received_ns):
        if busy and lane.received_ns <= busy[-1][1]:
            busy[-1][1] = max(busy[-1][1], lane.end_ns)
        else:
            busy.append([lane.received_ns, lane.end_ns])
    total = max(1, sum(last - first for first, last in busy))
    spans: list[list[int]] = []
    for first, last in busy:
        if spans and first - spans[-1][1] <= total * _CUT_ABOVE:
            spans[-1][1] = last
        else:
            spans.append([first, last])
    drawn = max(1, sum(last - first for first, last in spans))
    room = 1 - 2 * _MARGIN - _CUT_TO * max(0, len(spans) - 1)
    per_ns = max(room, 0.2) / drawn
    starts, position = [], _MARGIN
    for first, last in spans:
        starts.append(position)
        position += (last - first) * per_ns + _CUT_TO
    return Axis(tuple((first, last) for first, last in spans), tuple(starts), per_ns)


def _round_step(least_ns: float) -> int:
    """The next of 1, 2, 5, 10, ... microseconds."""
    step = 1_000
    while True:
        for factor in (1, 2, 5):
            if step * factor >= least_ns:
                return step * factor
        step *= 10


def _fill(track: list[str], first: int, last: int, character: str) -> None:
    for column in range(first, last + 1):
        track[column] = character
