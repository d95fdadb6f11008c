"""Swim lanes: what happened to one order, one lane an invocation, as data and as text.

A lane runs from the receive of a message to the end of its delivery, with the handler's
calls between. The page draws the same data (templates/lanes.html). Long stretches in which
nothing was under way (a visibility timeout) are cut out of the drawing and marked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from analysis.findings import Actor, Step
from analysis.item_kinds import filled
from analysis.schema import NO_ITEM, AckOutcome, Action, Decision, item_text
from analysis.store import Evidence
from analysis.text import count, milliseconds, quoted, short_item, visible
from analysis.timing import orders_tables

MOST_LANES = 12
MOST_CALLS = 12  # in one lane
SHORT_DETAILS = 60  # characters

_MARGIN = 0.03  # of the drawn width, before the first and after the last thing
_CUT_ABOVE = 0.25  # an idle stretch longer than this share of the busy time is cut ...
_CUT_TO = 0.06  # ... to this share
_CUT_STEPS_ABOVE = 3.0  # likewise between the steps of a proof


class Mark(StrEnum):
    """The sign that tells a call's decision. Letters in capitals name invocations."""

    ACCEPTED = "+"
    REJECTED = "x"
    FAILED = "!"
    UNKNOWN = "?"
    READ = "r"


@dataclass(frozen=True, slots=True)
class LaneCall:
    """One call of an invocation, with the item it touched (the order's own, if it did)."""

    call_id: int
    attempt: int
    service: str
    operation: str
    sent_ns: int  # from the lanes' origin, like all times here
    answered_ns: int | None
    decision: Decision
    mark: Mark
    action: Action | None  # this and what follows: of the item, None without one
    table: str | None
    item_key: str | None  # canonical, as are the images
    condition: str | None
    before: str | None  # None: not known
    after: str | None
    stored: Decision | None  # what the store did with the item
    error_code: str | None
    fault: str | None

    @property
    def effect(self) -> str | None:
        """What the call did to the item, or saw of it; ``None`` where that is not known."""
        if self.before is None and self.after is None:
            return None
        before, after = _short(self.before), _short(self.after)
        if self.mark is Mark.READ:
            return f"saw {before}"
        if self.before == self.after:
            accepted = self.decision is Decision.ACCEPTED
            return f"{'written again, identical' if accepted else 'unchanged'}: {before}"
        return f"{before} -> {after}"


def _short(image: str | None) -> str:
    return "not known" if image is None else short_item(image)


@dataclass(frozen=True, slots=True)
class LaneFault:
    """A fault of a delivery or of an invocation; one of a call stands with the call."""

    name: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One delivery of one message of the order, and the invocation that handled it."""

    message_no: int | None
    kind: str
    details: str | None  # what the message says of its order, without the key; None: poison
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
    faults: tuple[LaneFault, ...] = ()

    @property
    def fault(self) -> str | None:
        """The names of its faults, ``None`` without any."""
        return ", ".join(dict.fromkeys(fault.name for fault in self.faults)) or None

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
    final: str | None  # what is stored of it at the end, short; None: not read
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


# Of each order in $keys, the deliveries of the invocations in its entry of $focus and then the
# earliest, $most in all. `total` counts all of them.
_DELIVERIES = """
WITH wanted AS (
    SELECT unnest($keys) AS order_key, unnest($focus::BIGINT[][]) AS focus
), kept AS (
    SELECT w.order_key, m.kind, m.expected_item, d.*,
        count(*) OVER (PARTITION BY w.order_key) AS total
    FROM wanted w JOIN messages m USING (order_key) JOIN deliveries d USING (message_no)
    QUALIFY row_number() OVER (
        PARTITION BY w.order_key
        ORDER BY list_contains(w.focus, d.invocation_id) DESC NULLS LAST,
            d.received_at, d.delivery_id
    ) <= $most
)
SELECT d.order_key, d.total, d.delivery_id, d.message_no, d.kind,
    d.expected_item, d.receive_count, d.received_at,
    d.queue, d.invocation_id, i.environment, i.cold, i.started_at, i.ended_at, i.outcome,
    coalesce(i.error_message, i.error_type) AS error, r.result, a.acked_at, a.outcome AS ack
FROM kept d
LEFT JOIN invocations i USING (invocation_id)
LEFT JOIN results r ON r.invocation_id = d.invocation_id AND r.message_no = d.message_no
LEFT JOIN acks a USING (delivery_id)
ORDER BY d.received_at, d.delivery_id
"""

_MESSAGES = """
SELECT order_key, expected_item FROM messages
WHERE order_key IN (SELECT unnest($keys)) ORDER BY message_no
"""

# The calls of invocations, each for one order: without those that touch nothing but the items
# of other orders of the same batch, those in $focus first. One row a call: where it touched
# several items, the order's own counts.
_CALLS = """
WITH own AS (
    SELECT unnest($keys) AS order_key, unnest($invocations::BIGINT[]) AS invocation_id,
        unnest($item_keys) AS item_key
), others AS (
    SELECT DISTINCT o.order_key, o.invocation_id, m.order_key AS other
    FROM own o JOIN deliveries d USING (invocation_id) JOIN messages m USING (message_no)
    WHERE m.order_key <> o.order_key
), made AS (
    SELECT o.order_key, o.item_key AS own_key, c.* EXCLUDE (resource), c.resource AS named
    FROM own o JOIN calls c USING (invocation_id)
), touched AS (
    SELECT c.order_key, c.call_id, t.* EXCLUDE (call_id), t.item_key = c.own_key AS mine,
        EXISTS (
            SELECT 1 FROM others o
            WHERE o.order_key = c.order_key AND o.invocation_id = c.invocation_id
            AND contains(t.item_key, to_json(o.other)::VARCHAR)
        ) AS of_another
    FROM made c JOIN call_items t USING (call_id)
)
SELECT c.order_key, c.call_id, c.invocation_id, c.attempt, c.service, c.operation, c.sent_at,
    c.answered_at, c.decision, coalesce(t.error_code, c.error_code) AS error_code, c.fault,
    t.action, coalesce(t.resource, c.named) AS resource, t.item_key, t.condition, t.before,
    t.after, t.decision AS stored,
    count(*) OVER (PARTITION BY c.order_key, c.invocation_id) AS total
FROM made c
LEFT JOIN (
    SELECT * FROM touched
    QUALIFY row_number() OVER (
        PARTITION BY order_key, call_id ORDER BY mine DESC, of_another, resource, item_key
    ) = 1
) t USING (order_key, call_id)
WHERE NOT coalesce(t.of_another, false)
QUALIFY row_number() OVER (
    PARTITION BY c.order_key, c.invocation_id
    ORDER BY list_contains($focus::BIGINT[], c.call_id) DESC, c.sent_at, c.call_id
) <= $most
ORDER BY c.sent_at, c.call_id
"""

# The faults of deliveries and of their invocations that are no call's.
_FAULTS = """
SELECT d.delivery_id, f.name, f."at" FROM deliveries d
JOIN faults f ON f.delivery_id = d.delivery_id
    OR (f.delivery_id IS NULL AND f.invocation_id = d.invocation_id)
WHERE d.delivery_id IN (SELECT unnest($deliveries::BIGINT[])) AND f.call_id IS NULL
ORDER BY f."at", f.fault_id
"""

# Single calls, one row each: where one touched several items, the first.
_CALLS_BY_ID = """
SELECT c.call_id, c.invocation_id, c.attempt, c.service, c.operation, c.sent_at, c.answered_at,
    c.decision, coalesce(t.error_code, c.error_code) AS error_code, c.fault, t.action,
    coalesce(t.resource, c.resource) AS resource, t.item_key, t.condition, t.before, t.after,
    t.decision AS stored
FROM calls c LEFT JOIN call_items t USING (call_id)
WHERE c.call_id IN (SELECT unnest($calls::BIGINT[]))
QUALIFY row_number() OVER (PARTITION BY c.call_id ORDER BY t.resource, t.item_key) = 1
ORDER BY c.call_id
"""

_FINALS = """
SELECT item_key, item FROM items
WHERE phase = 'after' AND list_contains($orders, resource)
    AND item_key IN (SELECT unnest($item_keys))
ORDER BY item_key, resource
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An order to draw, and what must not be left out of it."""

    order_key: str
    invocation_ids: Sequence[int] = ()
    call_ids: Sequence[int] = ()


def orders_lanes(evidence: Evidence, wanted: Sequence[Wanted]) -> list[Lanes]:
    """The lanes of each order; empty lanes for one that was never received.

    Of more than :data:`MOST_LANES` deliveries those of the wanted invocations are kept first,
    then the earliest; likewise the calls of one lane. The tables are read once for all orders.
    """
    if not wanted:
        return []
    keys = [entry.order_key for entry in wanted]
    merged: dict[str, set[int]] = {key: set() for key in keys}
    for entry in wanted:
        merged[entry.order_key].update(entry.invocation_ids)
    deliveries = _by_order(
        evidence.rows(
            _DELIVERIES,
            {
                "keys": list(merged),
                "focus": [sorted(focus) for focus in merged.values()],
                "most": MOST_LANES,
            },
        )
    )
    messages = _by_order(evidence.rows(_MESSAGES, {"keys": list(merged)}))
    pairs = {
        (key, row["invocation_id"]): _item_key(evidence, key)
        for key, rows in deliveries.items()
        for row in rows
        if row["invocation_id"] is not None
    }
    calls = _by_order(
        evidence.rows(
            _CALLS,
            {
                "keys": [key for key, _ in pairs],
                "invocations": [invocation for _, invocation in pairs],
                "item_keys": list(pairs.values()),
                "focus": sorted({call for entry in wanted for call in entry.call_ids}),
                "most": MOST_CALLS,
            },
        )
        if pairs
        else []
    )
    written = {
        key: {_item_key(evidence, key)}
        | {row["item_key"] for row in calls.get(key, ()) if row["item_key"] is not None}
        for key in merged
    }
    finals = {
        row["item_key"]: row["item"]
        for row in evidence.rows(
            _FINALS,
            {
                "orders": orders_tables(evidence),
                "item_keys": sorted(set().union(*written.values())),
            },
        )
    }
    faults: dict[int, list[LaneFault]] = {}
    shown = [row["delivery_id"] for rows in deliveries.values() for row in rows]
    for row in evidence.rows(_FAULTS, {"deliveries": shown}) if shown else ():
        faults.setdefault(row["delivery_id"], []).append(LaneFault(visible(row["name"]), row["at"]))
    scanned = evidence.scalar("SELECT count(*) FROM items WHERE phase = 'after'")
    drawn = {
        key: _lanes_of(
            key,
            deliveries.get(key, []),
            messages.get(key, []),
            calls.get(key, []),
            [finals[item] for item in sorted(written[key]) if item in finals] if scanned else None,
            faults,
        )
        for key in merged
    }
    return [drawn[key] for key in keys]


def order_lanes(evidence: Evidence, order_key: str, focus: Sequence[int] = ()) -> Lanes:
    """The lanes of one order: see :func:`orders_lanes`."""
    (lanes,) = orders_lanes(evidence, [Wanted(order_key, focus)])
    return lanes


def calls_by_id(evidence: Evidence, call_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The rows of single calls, for :func:`stray_call`."""
    rows = evidence.rows(_CALLS_BY_ID, {"calls": list(call_ids)}) if call_ids else []
    return {row["call_id"]: row for row in rows}


def stray_call(row: dict[str, Any], lanes: Lanes) -> LaneCall:
    """A call that no lane holds: made outside any invocation, or by one of another order."""
    return _call(row, lanes.origin_ns)


def _by_order(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    orders: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        orders.setdefault(row["order_key"], []).append(row)
    return orders


def _lanes_of(
    order_key: str,
    deliveries: list[dict[str, Any]],
    messages: list[dict[str, Any]],
    calls: list[dict[str, Any]],
    finals: list[str] | None,
    faults: dict[int, list[LaneFault]],
) -> Lanes:
    details = dict.fromkeys(row["expected_item"] for row in messages)
    of_invocation: dict[int, list[dict[str, Any]]] = {}
    for row in calls:
        of_invocation.setdefault(row["invocation_id"], []).append(row)
    origin = deliveries[0]["received_at"] if deliveries else 0
    lanes = tuple(
        _lane(
            row,
            of_invocation.get(row["invocation_id"], []),
            origin,
            faults.get(row["delivery_id"], []),
        )
        for row in deliveries
    )
    return Lanes(
        order_key=order_key,
        origin_ns=origin,
        expected=tuple(short_item(text) for text in details if text is not None),
        final=None if finals is None else "; ".join(map(short_item, finals)) or "no item",
        lanes=lanes,
        lanes_left_out=(deliveries[0]["total"] if deliveries else 0) - len(lanes),
        messages=len(messages),
        overlaps=overlaps(lanes),
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
    lines.append(_ruler(lanes.axis, columns, margin))
    for label, lane in zip(labels, lanes.lanes, strict=True):
        track = [" "] * columns
        for position, _ in lanes.axis.cuts:
            track[min(columns - 1, int(position * columns))] = ":"
        _fill(track, column(lane.received_ns), column(lane.end_ns), ".")
        if lane.started_ns is not None:
            _fill(track, column(lane.started_ns), column(lane.ended_ns or lane.end_ns), "-")
        for call in lane.calls:
            _fill(track, column(call.sent_ns), column(call.answered_ns or lane.end_ns), "=")
        for met in [call.sent_ns for call in lane.calls if call.fault is not None]:
            track[column(met)] = FAULT
        for call in lane.calls:
            track[column(call.answered_ns or lane.end_ns)] = call.mark
        if lane.ack is not None and lane.acked_ns is not None:
            track[column(lane.acked_ns)] = _ACK_LETTERS[lane.ack]
        for fault in lane.faults:
            track[column(fault.at_ns)] = FAULT
        lines.append(label.ljust(margin) + "".join(track).rstrip())
    if lanes.lanes_left_out:
        lines.append(f"  {lanes.lanes_left_out} more not shown")
    lines.append("  " + LETTERS)
    for lane, call in lanes.calls:
        lines.append(f"  {call_text(lane, call)}")
    for lane in lanes.lanes:
        for fault in lane.faults:
            lines.append(f"  {milliseconds(fault.at_ns)} ms  {lane_name(lane)} fault {fault.name}")
        if lane.error is not None:
            lines.append(f"  {lane_name(lane)} {lane.outcome}: {lane.error}")
    return "\n".join(lines) + "\n"


def steps_text(
    lanes: Lanes, actors: Sequence[Actor], steps: Sequence[Step], width: int
) -> list[str]:
    """The steps of a proof as lanes of plain characters, each step by its number.

    Drawn is the stretch from the first step to the last one, one lane an actor.
    """
    axis = steps_axis(steps)
    if sum(_span(step) is not None for step in steps) < 2:
        return []
    labels = [f"{actor.letter} inv {actor.invocation_id}" for actor in actors]
    margin = max(map(len, labels), default=0) + 2
    columns = max(20, width - margin - 3)  # " ms" ends the ruler

    def column(time_ns: int) -> int:
        return min(columns - 1, int(axis.position(time_ns) * columns))

    lines = [_ruler(axis, columns, margin)]
    first, last = axis.spans[0][0], axis.spans[-1][1]
    for actor, label in zip(actors, labels, strict=True):
        lane = actor_lane(lanes, actor)
        track = [" "] * columns
        if lane is not None:
            if lane.received_ns <= last and lane.end_ns >= first:
                _fill(track, column(lane.received_ns), column(lane.end_ns), ".")
            ended = lane.end_ns if lane.ended_ns is None else lane.ended_ns
            if lane.started_ns is not None and lane.started_ns <= last and ended >= first:
                _fill(track, column(lane.started_ns), column(ended), "-")
        for position, _ in axis.cuts:
            track[min(columns - 1, int(position * columns))] = ":"
        own = [
            (number, span)
            for number, step in enumerate(steps, 1)
            if step.actor == actor.letter and (span := _span(step)) is not None
        ]
        for number, (begin, end) in own:
            if steps[number - 1].call_id is not None:
                _fill(track, column(begin), column(end), "=")
            if steps[number - 1].fault is not None:
                track[column(begin)] = FAULT
        taken: set[int] = set()
        for number, (_, end) in own:
            sign = str(number)
            free = (
                place
                for place in range(columns - len(sign) + 1)
                if not taken.intersection(range(place, place + len(sign)))
            )
            place = min(free, key=lambda place: abs(place - column(end)))
            track[place : place + len(sign)] = sign
            taken.update(range(place - 1, place + len(sign) + 1))
        lines.append(label.ljust(margin) + "".join(track).rstrip())
    return lines


def actor_lane(lanes: Lanes, actor: Actor) -> Lane | None:
    """The first lane of an actor's invocation."""
    return next((lane for lane in lanes.lanes if lane.invocation_id == actor.invocation_id), None)


def _ruler(axis: Axis, columns: int, margin: int) -> str:
    ruler = [" "] * columns
    for position, time_ns in axis.ticks():
        text = f"|{milliseconds(time_ns)}"
        start = int(position * columns)
        if start + len(text) <= columns:
            ruler[start : start + len(text)] = text
    return " " * margin + "".join(ruler).rstrip() + " ms"


FAULT = "%"
"""The sign of a fault in lanes of plain characters."""

_ACK_LETTERS = {
    AckOutcome.DELETED: "d",
    AckOutcome.RETURNED: "b",
    AckOutcome.DELETE_FAILED: "e",
    AckOutcome.DEAD_LETTERED: "q",
}
LETTERS = (
    ". waiting  - handler  = call  + accepted  x rejected  ! failed  ? unknown  r read"
    "  d deleted  b back to the queue  e delete failed  q dead-lettered"
    "  % fault  : idle time cut out"
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
    if lane.invocation_id is not None:
        return f"invocation {lane.invocation_id}"
    if lane.ack is AckOutcome.DELETED:
        return "invocation not known"
    return "dead-letter queue" if lane.ack is AckOutcome.DEAD_LETTERED else "not invoked"


def lane_label(lane: Lane) -> str:
    """What a lane is, in a few words: invocation, environment, message and receive."""
    message = f"message {lane.message_no} {lane.kind}, receive {lane.receive_count}"
    if lane.invocation_id is None:
        return f"{lane_name(lane)}: {message}"
    return f"inv {lane.invocation_id} env {lane.environment}: {message}"


def _item_key(evidence: Evidence, order_key: str) -> str:
    """The primary key under which the order belongs in the first orders table."""
    for table in evidence.run.tables:
        if table.name in orders_tables(evidence):
            key = {table.key: {table.key_type: order_key}}
            for kind in table.items:
                for name, form in ((table.key, kind.key), (table.sort, kind.sort)):
                    if name is not None and form is not None:
                        key[name] = {"S": filled(form, order_key) or ""}
            return item_text(key)
    return NO_ITEM


def _lane(
    row: dict[str, Any], calls: list[dict[str, Any]], origin: int, faults: list[LaneFault]
) -> Lane:
    def relative(time: int | None) -> int | None:
        return None if time is None else time - origin

    return Lane(
        message_no=row["message_no"],
        kind=row["kind"],
        details=_details(row["expected_item"], row["order_key"]),
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
        calls=tuple(_call(call, origin) for call in calls),
        calls_left_out=calls[0]["total"] - len(calls) if calls else 0,
        faults=tuple(LaneFault(fault.name, fault.at_ns - origin) for fault in faults),
    )


def _details(expected_item: str | None, order_key: str) -> str | None:
    if expected_item is None:
        return None
    attributes = json.loads(expected_item)
    rest = {name: value for name, value in attributes.items() if value != {"S": order_key}}
    return short_item(json.dumps(rest), SHORT_DETAILS) if rest else None


def _call(row: dict[str, Any], origin: int) -> LaneCall:
    decision = Decision(row["decision"])
    read = row["action"] == "read" and decision is Decision.ACCEPTED
    return LaneCall(
        call_id=row["call_id"],
        attempt=row["attempt"],
        service=row["service"],
        operation=visible(row["operation"]),
        sent_ns=row["sent_at"] - origin,
        answered_ns=None if row["answered_at"] is None else row["answered_at"] - origin,
        decision=decision,
        mark=Mark.READ if read else Mark[decision.name],
        action=None if row["action"] is None else Action(row["action"]),
        table=row["resource"],
        item_key=row["item_key"],
        condition=None if row["condition"] is None else visible(row["condition"]),
        before=row["before"],
        after=row["after"],
        stored=None if row["stored"] is None else Decision(row["stored"]),
        error_code=None if row["error_code"] is None else visible(row["error_code"]),
        fault=row["fault"],
    )


def overlaps(lanes: Sequence[Lane]) -> tuple[tuple[int, int], ...]:
    """Closed stretches in which the call windows of at least two lanes are open."""
    edges = sorted(
        edge
        for window in (lane.window for lane in lanes)
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
    return _axis([(lane.received_ns, lane.end_ns) for lane in lanes], _CUT_ABOVE)


def steps_axis(steps: Sequence[Step]) -> Axis:
    """The stretch in which the steps of a proof happened. Short pauses between them stay."""
    return _axis([time for step in steps if (time := _span(step)) is not None], _CUT_STEPS_ABOVE)


def _span(step: Step) -> tuple[int, int] | None:
    if step.at_ns is None or step.actor is None:
        return None
    return step.at_ns, step.at_ns if step.until_ns is None else max(step.at_ns, step.until_ns)


def _axis(intervals: Sequence[tuple[int, int]], cut_above: float) -> Axis:
    busy: list[list[int]] = []
    for first, last in sorted(intervals):
        if busy and first <= busy[-1][1]:
            busy[-1][1] = max(busy[-1][1], last)
        else:
            busy.append([first, last])
    total = sum(last - first for first, last in busy)  # 0: only moments, nothing to compare with
    spans: list[list[int]] = []
    for first, last in busy:
        if spans and (first - spans[-1][1] <= total * cut_above or not total):
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
