"""The drawing of a schedule, from the evidence of its live run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from analysis.lanes import Lane, LaneCall, Mark, Wanted, orders_lanes
from analysis.schedules import Drawing, Row
from analysis.schema import NO_ITEM, AckOutcome, Action, Decision, MessageKind
from analysis.store import Evidence
from analysis.text import quoted, short_item, visible
from loadtest.explore.model import Choice, Fault, Received, Schedule

_ENDS_RUN = frozenset({Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.TIMEOUT})
_CONTENT = 60  # characters of an item

_KINDS = {
    MessageKind.ORDER: "order",
    MessageKind.COPY: "a copy of order",
    MessageKind.CONFLICT: "other details under the id of order",
    MessageKind.POISON: "what no handler can accept, under the id",
}

_ACKS = {
    AckOutcome.DELETED: ("d", "deleted"),
    AckOutcome.RETURNED: ("b", "back to the queue"),
    AckOutcome.DELETE_FAILED: ("e", "its delete failed"),
    AckOutcome.DEAD_LETTERED: ("q", "dead-lettered"),
}


def draw(evidence: Evidence, schedule: Schedule, racing: Collection[int] = ()) -> Drawing:
    """
    :param evidence: of a live run of this schedule alone.
    :param racing: positions of the steps whose order decides, from 0.
    """
    messages = evidence.rows("SELECT message_no, order_key, kind FROM messages ORDER BY message_no")
    keys = list(dict.fromkeys(row["order_key"] for row in messages))
    lanes: dict[Received, Lane] = {}
    calls: dict[int, dict[int, LaneCall]] = {}  # of each invocation, of all orders
    dead: set[int] = set()  # copies
    for one in orders_lanes(evidence, [Wanted(key) for key in keys]):
        for lane in one.lanes:
            if lane.message_no is None:
                continue
            if lane.ack is AckOutcome.DEAD_LETTERED:
                dead.add(lane.message_no - 1)
            if lane.invocation_id is not None:
                lanes[lane.message_no - 1, lane.receive_count] = lane
                made = calls.setdefault(lane.invocation_id, {})
                made |= {call.call_id: call for call in lane.calls if call.call_id not in made}
    in_order = {number: [made[i] for i in sorted(made)] for number, made in calls.items()}
    return Drawing(
        tuple(f"{_KINDS[row['kind']]} {quoted(row['order_key'])}" for row in messages),
        tuple(_rows(schedule, lanes, in_order, dead, racing)),
    )


def _rows(
    schedule: Schedule,
    lanes: Mapping[Received, Lane],
    calls: Mapping[int, Sequence[LaneCall]],
    dead: Collection[int],
    racing: Collection[int],
) -> list[Row]:
    rows: list[Row] = []
    going: set[Received] = set()
    seen: set[Received] = set()
    made: Counter[Received] = Counter()  # calls of a run that have been let go
    again: set[Received] = set()  # received again at once
    last = {copy: place for place, choice in enumerate(schedule) for copy, _ in choice.messages}
    for position, choice in enumerate(schedule):
        run = choice.copy, choice.receive
        lane = lanes.get(run)
        starts = run not in going
        starts_late = starts and run not in again and choice.receive > 1
        going.update(choice.messages)
        seen.update(choice.messages)
        intro = ""
        if choice.receive > 1 or sum(copy == choice.copy for copy, _ in going) > 1:
            later = ", a visibility timeout later" if starts_late else ""
            intro = f"receive {choice.receive}{later}: "
        if starts and choice.others:
            late = any(one not in again and one[1] > 1 for one in choice.messages)
            intro = f"{_event(choice)}{', a visibility timeout later' if late else ''}: "
        is_let_go = choice.call is not None and choice.fault is not Fault.REDELIVER
        call = None
        if is_let_go:
            made[run] += 1
            of_run = calls.get(lane.invocation_id or 0, ()) if lane else ()
            call = of_run[made[run] - 1] if len(of_run) >= made[run] else None
        for place, (copy, receive) in enumerate(choice.messages):
            if place and choice.call is not None:
                break  # a call is drawn once, an end for each message
            sign, symbol, look, text = _told(choice, lanes.get((copy, receive)), call)
            rows.append(
                Row(
                    None if place else position + 1,
                    copy,
                    sign,
                    symbol,
                    look,
                    intro + text,
                    frozenset(copy for copy, _ in going),
                    None if place else choice.fault,
                    position in racing and not place,
                )
            )
            intro = ""
            if choice.call is None:
                going.discard((copy, receive))
        if choice.fault in _ENDS_RUN:
            going.difference_update(choice.messages)
        if choice.fault is Fault.REDELIVER:
            returned = {
                (copy, receive + 1)
                for copy, receive in choice.messages
                if choice.call is not None or lanes[copy, receive].ack is AckOutcome.DELETED
            }
            returned &= lanes.keys() - seen
            again |= returned
            going |= returned
            seen |= returned
        for copy, _ in choice.messages:
            if position == last[copy] and copy in dead:
                open_copies = frozenset(copy for copy, _ in going)
                text = "received too often: dead-lettered"
                rows.append(Row(None, copy, "q", "ack-dead_lettered", "ack", text, open_copies))
    return rows


def _event(choice: Choice) -> str:
    """``one event of copy 1 and copy 3 (receive 2)``."""
    named = [
        f"copy {copy + 1}" + (f" (receive {receive})" if receive > 1 else "")
        for copy, receive in choice.messages
    ]
    return f"one event of {', '.join(named[:-1])} and {named[-1]}"


def _told(choice: Choice, lane: Lane | None, call: LaneCall | None) -> tuple[str, str, str, str]:
    """Sign, symbol, look and words of a step."""
    if choice.call is None:
        return _end(choice, lane)
    if choice.fault is Fault.REDELIVER:
        what = "another run" if choice.others else f"receive {choice.receive + 1}"
        text = f"received again while this run goes on: {what} starts"
        return "%", "fault", "fault", text
    if call is None:
        text = f"{operation(choice)}{_fault(choice)}"
        return (
            "%" if choice.fault else "?",
            "fault" if choice.fault else "mark-unknown",
            ("fault" if choice.fault else "unknown"),
            text,
        )
    look = "read" if call.mark is Mark.READ else call.decision.value
    return call.mark.value, f"mark-{look}", look, f"{_call(call)}{_fault(choice)}"


def operation(choice: Choice) -> str:
    """The name of the call that a choice lets go: ``PutItem``, ``sns:Publish``."""
    return visible((choice.call or "").partition(" ")[0].removeprefix("dynamodb:"))


_FAULTS = {
    Fault.CRASH_BEFORE: "the process is killed before the call is made",
    Fault.CRASH_AFTER: "the process is killed after the call was made",
    Fault.TIMEOUT: "no reply comes, and the run is killed at its timeout",
    Fault.LOST_REPLY: "the reply is lost, and the SDK asks again",
    Fault.THROTTLE: "it is throttled, and the SDK asks again",
    Fault.TRANSACTION_CONFLICT: "another transaction holds an item, and this one is cancelled",
    Fault.STALE_READ: "it answers from before the item's last write",
    Fault.CRASH_BEFORE_ANSWER: "the process is killed before its answer is taken",
    Fault.REDELIVER: "the message is received again all the same",
}


def _fault(choice: Choice) -> str:
    return "" if choice.fault is None else f"  [{choice.fault}: {_FAULTS[choice.fault]}]"


def _end(choice: Choice, lane: Lane | None) -> tuple[str, str, str, str]:
    fault = _fault(choice)
    if lane is None or lane.ack is None:
        return "?", "end", "ack", f"ends{fault}"
    sign, acked = _ACKS[lane.ack]
    if lane.error is not None:
        how = lane.error.partition("\\n")[0]  # made visible already
    else:
        how = f"reports {lane.result}" if lane.result else f"{lane.outcome}"
    return sign, f"ack-{lane.ack.value}", "ack", f"{how}, {acked}{fault}"


def _call(call: LaneCall) -> str:
    """``PutItem id="a" without a condition: accepted, no item -> quantity=4``."""
    if call.action is None or call.item_key is None:
        where = f" {visible(call.table)}" if call.table else ""
        failed = f" ({call.error_code})" if call.error_code else ""
        service = "" if call.service == "dynamodb" else f"{visible(call.service)} "
        return f"{service}{call.operation}{where}: {call.decision.value}{failed}"
    what = f"{call.operation} {short_item(call.item_key)}"
    if call.action is Action.READ:
        seen = _content(call.before, call.item_key)
        return f"{what}: {seen if call.stored is Decision.ACCEPTED else _failed(call)}"
    what += " without a condition" if call.condition is None else f" if {call.condition}"
    before, after = (_content(image, call.item_key) for image in (call.before, call.after))
    match call.stored:
        case Decision.ACCEPTED:
            return f"{what}: accepted, {before} -> {after}"
        case Decision.REJECTED:
            return f"{what}: rejected, {before} was there" if call.before else f"{what}: rejected"
    return f"{what}: {_failed(call)}"


def _failed(call: LaneCall) -> str:
    return f"{call.decision.value} ({call.error_code})" if call.error_code else call.decision.value


def _content(image: str | None, key: str) -> str:
    """An item without its key."""
    if image is None:
        return "not known"
    if image == NO_ITEM:
        return "no item"
    attributes, names = json.loads(image), json.loads(key)
    rest = {name: value for name, value in attributes.items() if name not in names}
    return short_item(json.dumps(rest), _CONTENT) if rest else "nothing but the key"


def step_name(choice: Choice, number: int) -> str:
    """``step 3 (copy 1, PutItem)``, ``step 4 (copy 1, receive 2, PutItem)``."""
    what = "its end" if choice.call is None else operation(choice)
    receive = f", receive {choice.receive}" if choice.receive > 1 else ""
    return f"step {number} (copy {choice.copy + 1}{receive}, {what})"


def schedules_differ(
    failing: Schedule, passing: Schedule, position: int, race: Sequence[int] | None
) -> str:
    """What differs between a failing schedule and the nearest one that passes.

    :param position: of the first step that differs, from 0.
    :param race: positions in the failing schedule of two steps that come in the other order.
    """
    taken, other = failing[position], passing[position]
    if taken.fault is not None and other == replace(taken, fault=None):
        return f"the same without the fault {taken.fault} at step {position + 1}"
    goes_on = "ends" if other.call is None else f"makes its {operation(other)}"
    fault = f" with the fault {other.fault}" if other.fault is not None else ""
    who = f"copy {other.copy + 1}"
    if other.others:
        who = _event(other)
    elif other.receive > 1:
        who += f", receive {other.receive},"
    text = f"the same up to step {position}, then {who} {goes_on}{fault}"
    if position == 0:
        text = f"{who} {goes_on}{fault} first"
    if race is not None:
        first, second = race
        text += f", so that step {second + 1} comes before step {first + 1}"
    return text
