"""Proofs: why a finding holds, told in steps from the rows of the evidence.

A proof names the invocations that took part by letters (A began first), says in order what
each of them did, and what follows. Text and picture come from the same lanes
(:mod:`analysis.lanes`). Only the example of each group is proved: at most
:data:`analysis.findings.MAX_GROUPS` of a kind, each with at most :data:`MOST_STEPS` steps.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase

from analysis.findings import (
    Actor,
    CheckReport,
    FaultCount,
    Finding,
    FindingGroup,
    FindingKind,
    Proof,
    Step,
)
from analysis.lanes import (
    Lane,
    LaneCall,
    Lanes,
    Wanted,
    calls_by_id,
    orders_lanes,
    steps_text,
    stray_call,
)
from analysis.schema import NO_ITEM, AckOutcome, Action, Decision, Outcome
from analysis.store import Evidence
from analysis.text import count, quoted, short_item, visible

WIDTH = 76  # columns of a proof as text: indented it still fits 80
MOST_ACTORS = 6
MOST_STEPS = 12

_CONTENT = 60  # characters of an item in a sentence
_EXPLANATION = 600  # characters
_WRITES = (Action.PUT, Action.UPDATE, Action.DELETE)

# What a write did is the whole story; elsewhere it matters what was reported and acknowledged.
_WRITES_ONLY = {
    FindingKind.OVERWRITE,
    FindingKind.DOUBLE_ACCEPT,
    FindingKind.PHANTOM_WRITE,
    FindingKind.WRONG_KEY,
    FindingKind.VANISHED_ORDER,
    FindingKind.POISON_STORED,
    FindingKind.UNRELATED_WRITE,
}
_END_MATTERS = {
    FindingKind.LOST_ORDER,
    FindingKind.VANISHED_ORDER,
    FindingKind.POISON_STORED,
    FindingKind.MISSING_EFFECT,
    FindingKind.DEAD_LETTERED_ORDER,
    FindingKind.STUCK_MESSAGE,
}

# Why what the explanation says must not be.
_WHY = {
    FindingKind.PHANTOM_WRITE: "What is stored must be what was sent.",
    FindingKind.WRONG_KEY: "Copies share the order's id and nothing else, so under another key "
    "they cannot be recognised.",
    FindingKind.LOST_ORDER: "No message is left that could bring it back.",
    FindingKind.VANISHED_ORDER: "What was stored once must stay.",
    FindingKind.CONFLICT_ACKNOWLEDGED: "It will not come again, and nobody learns that two "
    "different orders had one id.",
    FindingKind.POISON_ACKNOWLEDGED: "It will not come again, and nobody sees it in the "
    "dead-letter queue.",
    FindingKind.POISON_STORED: "No handler can accept that message, so there is nothing to store.",
    FindingKind.DUPLICATE_FAILED: "A copy of a stored order has nothing left to do, so it must be "
    "acknowledged.",
    FindingKind.UNJUSTIFIED_REJECTION: "An order that is taken for a duplicate too early may never "
    "be stored.",
    FindingKind.SELF_CONFLICT: "An attempt that is refused by its own earlier one has succeeded.",
    FindingKind.DUPLICATE_EFFECT: "A side effect is owed once for an order that is stored, and "
    "never for one that is not.",
    FindingKind.MISSING_EFFECT: "No message is left that could bring it about.",
    FindingKind.RESULT_MISMATCH: "What is reported must be what was done.",
    FindingKind.DIVERGENT_RESULT: "Every copy must be answered with what is stored.",
    FindingKind.PREMATURE_ACK: "Had the process died in between, the message would be gone and "
    "its work not done.",
    FindingKind.BATCH_MISREPORT: "A message that is not reported as failed is gone; one that is "
    "reported as failed comes again.",
    FindingKind.DEAD_LETTERED_ORDER: "A valid order must end in an item.",
    FindingKind.STUCK_MESSAGE: "Nothing is left that would finish it.",
    FindingKind.UNRELATED_WRITE: "A handler must touch nothing but the orders it was given.",
}


def prove_examples(
    evidence: Evidence, checks: Sequence[CheckReport]
) -> tuple[tuple[CheckReport, ...], tuple[str, ...]]:
    """The checks with a proof for the example of each group, and what could not be proved.

    A finding stands without its proof: one that cannot be told is noted and left as it is.
    """
    examples = [group.example for check in checks for group in check.groups]
    if not examples:
        return tuple(checks), ()
    try:
        stories = _stories(evidence, examples)
    except Exception as error:
        return tuple(checks), (f"The findings could not be told in steps: {_said(error)}.",)
    proved: list[CheckReport] = []
    notes: list[str] = []
    for check in checks:
        groups = []
        for group in check.groups:
            finding, story = group.example, next(stories)
            try:
                finding = replace(finding, proof=_prove(finding, story))
            except Exception as error:
                notes.append(f"An example of {check.kind} could not be told: {_said(error)}.")
            groups.append(replace(group, example=finding))
        proved.append(replace(check, groups=tuple(groups)))
    return tuple(proved), tuple(notes)


def _said(error: Exception) -> str:
    return visible(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class _Story:
    """What is known of the order that a finding is about."""

    lanes: Lanes
    strays: tuple[tuple[int | None, LaneCall], ...]  # named calls in no lane, with their invocation


def _stories(evidence: Evidence, examples: Sequence[Finding]) -> Iterator[_Story | None]:
    """The story of each example, in turn; None for one that no order goes with."""
    named = sorted({call for finding in examples for call in finding.call_ids[:MOST_STEPS]})
    rows = calls_by_id(evidence, named)
    keys = _keys(evidence, examples)
    wanted: list[Wanted | None] = []
    for finding, key in zip(examples, keys, strict=True):
        invocations = [*finding.invocation_ids[:MOST_ACTORS]]
        invocations += [
            rows[call]["invocation_id"]
            for call in finding.call_ids
            if call in rows and rows[call]["invocation_id"] is not None
        ]
        wanted.append(None if key is None else Wanted(key, invocations, finding.call_ids))
    drawn = iter(orders_lanes(evidence, [entry for entry in wanted if entry is not None]))
    stories: list[_Story | None] = []
    for finding, entry in zip(examples, wanted, strict=True):
        if entry is None:
            stories.append(None)
            continue
        lanes = next(drawn)
        known = {call.call_id for lane in lanes.lanes for call in lane.calls}
        strays = tuple(
            (rows[call]["invocation_id"], stray_call(rows[call], lanes))
            for call in finding.call_ids
            if call in rows and call not in known
        )
        stories.append(_Story(lanes, strays))
    return iter(stories)


def _keys(evidence: Evidence, examples: Sequence[Finding]) -> list[str | None]:
    """The order of each finding; where it names none, one that its invocation was given."""
    invocations = sorted(
        {
            invocation
            for finding in examples
            if finding.order_key is None
            for invocation in finding.invocation_ids[:1]
        }
    )
    given = {
        row["invocation_id"]: row["order_key"]
        for row in evidence.rows(
            "SELECT invocation_id, arg_min(order_key, message_no) AS order_key "
            "FROM deliveries JOIN messages USING (message_no) "
            "WHERE invocation_id IN (SELECT unnest($invocations::BIGINT[])) GROUP BY ALL",
            {"invocations": invocations},
        )
    }
    return [
        next((given.get(number) for number in finding.invocation_ids[:1]), None)
        if finding.order_key is None
        else finding.order_key
        for finding in examples
    ]


# --- one proof ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Event:
    """A step, with what decides its place and whether it may be left out."""

    step: Step
    moment: int
    weight: int  # the lightest are kept


@dataclass(frozen=True, slots=True)
class _Timed:
    over: int  # when the call was answered, or its lane ended
    letter: str
    lane: Lane
    call: LaneCall


def _prove(finding: Finding, story: _Story | None) -> Proof:
    """The story of a finding told in steps; without one, what follows from it alone."""
    if story is None:
        conclusion = _follows(finding)
        return Proof(finding.order_key, (), None, (), 0, conclusion, (), None)
    lanes = story.lanes
    cast = _cast(finding, lanes)
    letters = dict(zip(cast, ascii_uppercase, strict=False))
    teller = _Teller(finding, story, letters)
    events = teller.events()
    lightest = sorted(range(len(events)), key=lambda place: events[place].weight)[:MOST_STEPS]
    steps = tuple(events[place].step for place in sorted(lightest))
    actors = tuple(
        Actor(letter, invocation, _actor_text(lanes, invocation))
        for invocation, letter in letters.items()
    )
    return Proof(
        order_key=lanes.order_key,
        actors=actors,
        item=teller.item_text,
        steps=steps,
        steps_left_out=len(events) - len(steps),
        conclusion=teller.conclusion(),
        drawing=tuple(steps_text(lanes, actors, steps, WIDTH)),
        query=_query(tuple(letters)),
    )


def _place(event: _Event) -> int:
    return event.moment


def _cast(finding: Finding, lanes: Lanes) -> list[int]:
    """The invocations that take part, in the order in which they began to act.

    Those that the finding names, those that made a call it names, and those that wrote what
    these found there. Of an overwrite, the one whose item was replaced comes first.
    """
    lane_of = {
        lane.invocation_id: lane for lane in reversed(lanes.lanes) if lane.invocation_id is not None
    }
    named = [number for number in finding.invocation_ids if number in lane_of]
    named += [
        number
        for number, lane in lane_of.items()
        if any(call.call_id in finding.call_ids for call in lane.calls)
    ]
    chosen = list(dict.fromkeys(named))[:MOST_ACTORS]
    if finding.kind is FindingKind.OVERWRITE:
        if len(chosen) == 1:
            replaced = {c.before for c in lane_of[chosen[0]].calls if c.call_id in finding.call_ids}
            makers = [number for image in replaced for number in _writers(lane_of, image)]
            chosen = [number for number in makers if number != chosen[0]][:1] + chosen
        return chosen
    if finding.kind is FindingKind.UNJUSTIFIED_REJECTION:
        chosen += _writers(lane_of, None)[:1]
    elif "resurrected" in finding.flags:
        chosen += _writers(lane_of, NO_ITEM)[:1]
    else:
        found = {call.before for number in chosen for call in lane_of[number].calls}
        mine = {call.after for number in chosen for call in _accepted(lane_of[number])}
        for image in sorted(image for image in found - mine if image not in (None, NO_ITEM)):
            chosen += _writers(lane_of, image)[:1]
    chosen = list(dict.fromkeys(chosen))[:MOST_ACTORS]
    return sorted(chosen, key=lambda number: (_begin(lane_of[number]), number))


def _writers(lane_of: dict[int, Lane], image: str | None) -> list[int]:
    """Invocations that wrote, or may have written, that image (any), the earliest first."""
    found = [
        (call.sent_ns, number)
        for number, lane in lane_of.items()
        for call in lane.calls
        if _may_have_written(call) and image in (None, call.after)
    ]
    return list(dict.fromkeys(number for _, number in sorted(found)))


def _accepted(lane: Lane) -> list[LaneCall]:
    return [
        call for call in lane.calls if call.stored is Decision.ACCEPTED and call.action in _WRITES
    ]


def _may_have_written(call: LaneCall) -> bool:
    return call.action in _WRITES and call.stored in (Decision.ACCEPTED, Decision.UNKNOWN)


def _begin(lane: Lane) -> int:
    if lane.calls:
        return lane.calls[0].sent_ns
    return lane.received_ns if lane.started_ns is None else lane.started_ns


def _actor_text(lanes: Lanes, invocation: int) -> str:
    own = [lane for lane in lanes.lanes if lane.invocation_id == invocation]
    given = []
    for lane in own:
        again = f", receive {lane.receive_count}" if lane.receive_count > 1 else ""
        details = "" if lane.details is None else f", {lane.details}"
        given.append(f"message {lane.message_no} ({lane.kind}{details}{again})")
    return f"invocation {invocation}, environment {own[0].environment}, with {' and '.join(given)}"


def _query(invocations: Sequence[int]) -> str | None:
    """A statement for ``loadtest sql`` (see :mod:`analysis.query`)."""
    if not invocations:
        return None
    numbers = ", ".join(map(str, sorted(invocations)))
    return f"SELECT * FROM item_calls WHERE invocation_id IN ({numbers})"


class _Teller:
    """Puts one finding into words. Images of the item are known by who wrote them last."""

    def __init__(self, finding: Finding, story: _Story, letters: dict[int, str]) -> None:
        self.finding = finding
        self.kind = finding.kind
        self.lanes = story.lanes
        self.strays = story.strays
        self.letters = letters
        self.calls = [
            (letter, lane, call)
            for invocation, letter in letters.items()
            for lane in story.lanes.lanes
            if lane.invocation_id == invocation
            for call in lane.calls
        ]
        # Two copies of the order in one batch make two lanes with the same calls.
        self.calls = list({entry[2].call_id: entry for entry in self.calls}.values())
        self.item = self._main_item()
        self.owner: dict[str, str] = {}  # image -> letter of who wrote it last

    # --- what happened ---

    def events(self) -> list[_Event]:
        events = self._call_events()
        if self.kind not in _WRITES_ONLY:
            events += self._end_events()
        events.sort(key=_place)
        if self.kind in _END_MATTERS and self.lanes.final is not None:
            text = f"At the end there was {self.lanes.final} under the order's key."
            if self.lanes.final != "no item":
                text = f"At the end the table held {self.lanes.final}."
            last = events[-1].moment if events else 0
            events.append(_Event(Step(text), last, 0))
        return events

    def _call_events(self) -> list[_Event]:
        named = set(self.finding.call_ids)
        timed = [_Timed(_over(lane, call), letter, lane, call) for letter, lane, call in self.calls]
        timed.sort(key=lambda entry: (entry.over, entry.call.call_id))
        if self.kind is FindingKind.OVERWRITE:
            timed = self._up_to_the_overwrite(timed)
        events = []
        for invocation, call in self.strays:
            if call.operation in _STREAMED:
                made = "known from the table's stream"
            elif invocation is None:
                made = "made outside any invocation"
            else:
                made = f"made by invocation {invocation}"
            step = replace(self._call_step(f"Call {call.call_id}, {made},", call), actor=None)
            moment = step.until_ns or step.at_ns or 0
            if call.operation in _STREAMED:  # which tells whole seconds
                step = replace(step, at_ns=None, until_ns=None)
            events.append(_Event(step, moment, 1))
        for entry in timed:
            lane, call = entry.lane, entry.call
            if not self._matters(lane, call):
                continue
            weight = 1 if call.call_id in named else 3 if call.action in _WRITES else 4
            events.append(_Event(self._call_step(entry.letter, call), entry.over, weight))
            if call in _accepted(lane) and call.after is not None:
                self.owner[call.after] = entry.letter
        return events

    def _matters(self, lane: Lane, call: LaneCall) -> bool:
        """Of an invocation that the finding does not name only what it wrote counts."""
        return (
            lane.invocation_id in self.finding.invocation_ids
            or call.call_id in self.finding.call_ids
            or _may_have_written(call)
        )

    def _up_to_the_overwrite(self, timed: list[_Timed]) -> list[_Timed]:
        """Nothing after the overwriting write; the write it replaced stands before it,
        because the store said so, whichever answer came first."""
        last = next((entry for entry in timed if entry.call == self._overwriting()), None)
        if last is None:
            return timed
        replaced = self._replaced()
        kept = [
            replace(entry, over=min(entry.over, last.over))
            for entry in timed
            if entry is not last and (entry.over <= last.over or entry.call == replaced)
        ]
        kept.sort(key=lambda entry: entry.over)
        return [*kept, last]

    def _overwriting(self) -> LaneCall | None:
        """The write that an overwrite is about: the last call that the finding names."""
        made = {call.call_id: call for _, _, call in self.calls}
        return made.get(self.finding.call_ids[-1]) if self.finding.call_ids else None

    def _replaced(self) -> LaneCall | None:
        """The write whose item the overwriting one replaced, where it is known."""
        write = self._overwriting()
        if write is None:
            return None
        made = {call.call_id: call for _, _, call in self.calls}
        if self.finding.call_ids[0] != write.call_id:
            return made.get(self.finding.call_ids[0])
        writers = [
            call
            for _, lane, call in self.calls
            if call in _accepted(lane) and call != write and call.after == write.before
            and call.item_key == write.item_key
        ]  # fmt: skip
        return min(writers, key=lambda call: call.sent_ns, default=None)

    def _call_step(self, actor: str, call: LaneCall) -> Step:
        step = Step(
            text=f"{actor} {self._deed(call)}",
            at_ns=call.sent_ns,
            until_ns=call.answered_ns,
            actor=actor,
            call_id=call.call_id,
            fault=call.fault,
        )
        if call.action is None or call.item_key is None:
            return step
        return replace(
            step,
            key=short_item(call.item_key),
            condition=call.condition,
            before=None if call.before is None else short_item(call.before),
            after=None if call.after is None else short_item(call.after),
        )

    def _deed(self, call: LaneCall) -> str:
        extra = f" (attempt {call.attempt})" if call.attempt > 1 else ""
        if call.fault is not None:
            extra += f" (injected fault: {visible(call.fault)})"
        if call.action is None:
            failed = f" ({call.error_code})" if call.error_code else ""
            return f"called {visible(call.service)} {call.operation}{extra}: " + (
                f"{call.decision.value}{failed}."
            )
        item = "the item" if (call.table, call.item_key) == self.item else _where(call)
        if call.action is Action.READ:
            if call.stored is not Decision.ACCEPTED:
                return f"tried to read {item}{extra}: {_failure(call)}."
            return f"read {item}{extra}: {self._seen(call.before)}."
        verb = {Action.PUT: "put", Action.UPDATE: "updated", Action.DELETE: "deleted"}
        what = f"{verb.get(call.action, 'checked')} {item}"
        # A refused write has no image of its own in the evidence.
        if call.action in (Action.PUT, Action.UPDATE) and _may_have_written(call):
            what += f" ({self._content(call.after, call.item_key)})"
        means = "" if call.operation in _PLAIN | _STREAMED else f" by {call.operation}"
        if call.operation in _STREAMED:
            condition = ""
        elif call.condition is None:
            condition = " without a condition"
        else:
            condition = f" if {visible(call.condition)}"
        return f"{what}{means}{condition}{extra}. {self._outcome(call)}"

    def _outcome(self, call: LaneCall) -> str:
        there = self._image(call.before, call.item_key)
        match call.stored:
            case Decision.ACCEPTED:
                lost = (
                    " The reply was lost."
                    if call.decision is Decision.UNKNOWN or call.answered_ns is None
                    else ""
                )
                if call.action is Action.CHECK:
                    return f"It held.{lost}"
                if call.before is None:
                    return f"Accepted; what was there before is not known.{lost}"
                if call.before == NO_ITEM:
                    return f"Accepted: no item was there.{lost}"
                if call.action is Action.DELETE:
                    return f"Accepted: {there} is gone.{lost}"
                if call.before == call.after:
                    return f"Accepted: it replaced {there}, which was identical.{lost}"
                return f"Accepted: it replaced {there}.{lost}"
            case Decision.REJECTED:
                if call.before == NO_ITEM:
                    return "Rejected, although no item was there."
                return "Rejected." if call.before is None else f"Rejected: {there} was there."
            case Decision.FAILED:
                return f"{_failure(call).capitalize()}: nothing was written."
        return "No reply: whether it was written is not known."

    def _end_events(self) -> list[_Event]:
        events = []
        for lane in self.lanes.lanes:
            letter = self.letters.get(lane.invocation_id or 0)
            if letter is not None and lane.invocation_id in self.finding.invocation_ids:
                events += self._end_of(lane, letter)
            elif lane.invocation_id is None and lane.ack is AckOutcome.DEAD_LETTERED:
                text = f"Message {lane.message_no} was found in the dead-letter queue."
                named = lane.message_no in self.finding.message_nos
                events.append(
                    _Event(Step(text, lane.received_ns), lane.received_ns, 1 if named else 5)
                )
            elif lane.invocation_id is None and lane.message_no in self.finding.message_nos:
                text = f"Message {lane.message_no} was received, and given to no invocation"
                if lane.ack is AckOutcome.DELETED:
                    text = (
                        f"Message {lane.message_no} was deleted as done, by an unknown invocation"
                    )
                step = Step(f"{text}{_met(lane)}.", lane.received_ns, fault=lane.fault)
                events.append(_Event(step, lane.received_ns, 3))
        return events

    def _end_of(self, lane: Lane, letter: str) -> list[_Event]:
        weight = 2 if lane.message_no in self.finding.message_nos else 4
        ended = _ending(lane) + _met(lane)
        acked = _ACKED.get(lane.ack) if lane.ack is not None else None
        if acked is None or lane.acked_ns is None:
            step = Step(f"{letter} {ended}.", lane.ended_ns, None, letter, fault=lane.fault)
            return [_Event(step, lane.end_ns if lane.ended_ns is None else lane.ended_ns, weight)]
        if lane.ended_ns is not None and lane.ended_ns <= lane.acked_ns:
            message = (
                "it"
                if lane.outcome == Outcome.RETURNED and lane.result
                else (f"message {lane.message_no}")
            )
            text = f"{letter} {ended}, and {message} {acked}."
            step = Step(text, lane.ended_ns, lane.acked_ns, letter, fault=lane.fault)
            return [_Event(step, lane.acked_ns, weight)]
        step = Step(f"Message {lane.message_no} {acked}.", lane.acked_ns, None, letter)
        end = Step(f"{letter} {ended}.", lane.ended_ns, None, letter, fault=lane.fault)
        last = lane.end_ns if lane.ended_ns is None else lane.ended_ns
        return [_Event(step, lane.acked_ns, 1), _Event(end, max(last, lane.acked_ns), weight)]

    # --- items in words ---

    def _main_item(self) -> tuple[str | None, str | None] | None:
        """The item that the story is about: of a named call, else the first one written."""
        named = [c for _, c in self.strays if c.item_key]
        named += [c for _, _, c in self.calls if c.call_id in self.finding.call_ids and c.item_key]
        written = [c for _, _, c in self.calls if c.action in _WRITES]
        touched = [c for _, _, c in self.calls if c.item_key]
        for call in (*named, *written, *touched):
            return call.table, call.item_key
        return None

    @property
    def item_text(self) -> str | None:
        if self.item is None or self.item[1] is None:
            return None
        return f"{short_item(self.item[1])} in {visible(self.item[0] or 'not known')}"

    def _content(self, image: str | None, key: str | None) -> str:
        """An item without its key; who wrote it does not matter."""
        if image is None:
            return "content not known"
        try:
            attributes, names = json.loads(image), json.loads(key or "{}")
            rest = {name: value for name, value in attributes.items() if name not in names}
        except (ValueError, AttributeError):
            return short_item(image, _CONTENT)
        return short_item(json.dumps(rest), _CONTENT) if rest else "nothing but the key"

    def _image(self, image: str | None, key: str | None) -> str:
        if image is None or image == NO_ITEM:
            return "no item"
        letter = self.owner.get(image)
        content = self._content(image, key)
        return f"an item ({content})" if letter is None else f"{letter}'s item ({content})"

    def _seen(self, image: str | None) -> str:
        if image is None:
            return "what it saw is not known"
        if image == NO_ITEM:
            return "no item was there"
        return self._image(image, self.item[1] if self.item else None)

    # --- what follows ---

    def conclusion(self) -> str:
        match self.kind:
            case FindingKind.OVERWRITE:
                return self._overwritten()
            case FindingKind.DOUBLE_ACCEPT:
                return self._accepted_twice()
        return _follows(self.finding)

    def _overwritten(self) -> str:
        write, earlier = self._overwriting(), self._replaced()
        if write is None:
            return _follows(self.finding)
        of = {call.call_id: letter for letter, _, call in self.calls}
        letter, owner = of[write.call_id], None if earlier is None else of[earlier.call_id]
        if owner is None:
            text = f"{letter} replaced an order that was already stored"
        elif owner == letter:
            text = f"{letter} replaced what it had stored itself"
        else:
            text = f"{letter} replaced the order that {owner} had stored"
        text += ", with the same content." if write.before == write.after else "."
        read = [
            call
            for who, _, call in self.calls
            if who == letter and call.mark == "r" and call.item_key == write.item_key
            and call.sent_ns <= write.sent_ns and call.before == NO_ITEM
        ]  # fmt: skip
        late = (
            earlier is not None
            and read
            and (earlier.answered_ns is None or read[-1].sent_ns <= earlier.answered_ns)
        )
        if late and write.condition is None:
            text += (
                f" It had looked before {owner}'s write was there, found nothing, and no "
                "condition on its own write noticed that this was no longer true."
            )
        elif write.condition is None:
            text += " Its write had no condition, so the store could not refuse it."
        else:
            text += f" Its condition ({visible(write.condition)}) does not exclude a stored order."
        return text

    def _accepted_twice(self) -> str:
        inserts = [
            (letter, call)
            for letter, _, call in self.calls
            if call.call_id in self.finding.call_ids
        ]
        actors = list(dict.fromkeys(letter for letter, _ in inserts))
        others = len(self.finding.invocation_ids) - len(actors)
        if others > 0:
            actors.append(f"{others} more")
        order = f"order {quoted(self.lanes.order_key)}"
        if len(actors) == 1:
            text = f"{actors[0]} inserted {order} {len(self.finding.call_ids)} times"
        else:
            text = f"{_listed(actors)} each inserted {order}"
        keys = {(call.table, call.item_key) for _, call in inserts}
        if len(keys) > 1:
            text += f", under {len(keys)} different keys"
        elif "resurrected" in self.finding.flags:
            text += "; a delete in between made room for it"
        return f"{text}. An order must be inserted once."


_PLAIN = {"GetItem", "PutItem", "UpdateItem", "DeleteItem"}
_STREAMED = {"INSERT", "MODIFY", "REMOVE"}
"""Of a write that is known from a record of its table's stream, and from nothing else."""
_ACKED = {
    AckOutcome.DELETED: "was deleted as done",
    AckOutcome.RETURNED: "went back to the queue",
    AckOutcome.DELETE_FAILED: "could not be deleted",
    AckOutcome.DEAD_LETTERED: "was dead-lettered",
}


def _follows(finding: Finding) -> str:
    """What was found, and why it must not be."""
    explanation = visible(finding.explanation, _EXPLANATION)
    return " ".join(filter(None, (explanation, _WHY.get(finding.kind))))


def _over(lane: Lane, call: LaneCall) -> int:
    return lane.end_ns if call.answered_ns is None else call.answered_ns


def _where(call: LaneCall) -> str:
    key = "an item" if call.item_key is None else short_item(call.item_key)
    return f"{key} in {visible(call.table or 'not known')}"


def _failure(call: LaneCall) -> str:
    return "failed" if call.error_code is None else f"failed ({call.error_code})"


def _ending(lane: Lane) -> str:
    match lane.outcome:
        case None:
            return "had not ended when the record ends"
        case Outcome.RAISED:
            return f"raised {lane.error or 'an error'}"
        case Outcome.TIMED_OUT:
            return "was stopped at its timeout"
        case Outcome.CRASHED:
            return "crashed"
    if lane.result is None:
        return "returned"
    return f"reported message {lane.message_no} as {lane.result}"


def _met(lane: Lane) -> str:
    return f" (injected fault: {lane.fault})" if lane.faults else ""


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# --- in words -------------------------------------------------------------------------


def group_line(group: FindingGroup) -> str:
    """How many findings, and what was the same: ``412 orders, same pattern: ...``."""
    return f"{group_head(group)}: {group.pattern}"


def group_head(group: FindingGroup) -> str:
    """How many findings: ``412 orders, same pattern``."""
    orders = count(group.orders, "order")
    if group.count != group.orders:
        findings = count(group.count, "finding")
        orders = f"{findings} in {orders}" if group.orders else findings
    same = ", same pattern" if group.count > 1 else ""
    return f"{orders}{same}"


def check_text(check: CheckReport, run: str, proved: int = 1) -> list[str]:
    """The findings of a check as lines of at most 78 columns: a line for each group, and the
    first ``proved`` of them with their example. Only commands, to be copied, are longer.

    :param run: the run's directory as a shell would take it
    """
    lines: list[str] = []
    for place, group in enumerate(check.groups):
        lines += _told(group_line(group), "", "  ")
        if place < proved and group.example.proof is not None:
            lines += _example_text(group, check.assumption, run)
    hidden = check.patterns - len(check.groups)
    if hidden > 0:
        lines.append(f"{count(hidden, 'further pattern')} not shown")
    return lines


def _example_text(group: FindingGroup, assumption: str, run: str) -> list[str]:
    proof = group.example.proof
    assert proof is not None
    lines: list[str] = []
    if proof.order_key is not None:
        which = "Smallest example: order" if group.count > 1 else "Order"
        lines += _told(f"{which} {quoted(proof.order_key)}", "  ", "    ")
    if group.example.faults:
        lines += _told(f"Faults on the way: {faults_text(group.example)}", "  ", "    ")
    lines += [f"  {line}" if line else "" for line in proof_text(proof, assumption)]
    if proof.query is not None:
        lines.append(f'  More: loadtest sql {run} "{proof.query}"')
    return lines


def faults_text(finding: Finding) -> str:
    """The faults that led to a finding, in one line; empty for none."""
    told = [fault.text for fault in finding.faults]
    if finding.fault_count > len(told):
        told.append(f"and {finding.fault_count - len(told):,} more")
    return "; ".join(told)


def fault_line(rule: FaultCount) -> str:
    """What was asked of a fault, and what came of it."""
    fired = "never fired" if not rule.fired else f"fired {count(rule.fired, 'time')}"
    return f"{visible(rule.text)}: {fired}, could have struck {count(rule.opportunities, 'time')}"


def proof_text(proof: Proof, assumption: str) -> list[str]:
    """A proof as lines of at most 76 columns: actors, numbered steps with times, what follows,
    and the drawing."""
    lines: list[str] = []
    for actor in proof.actors:
        lines += _told(f"{actor.letter} = {actor.text}", "", "    ", WIDTH)
    if proof.item is not None:
        lines += _told(f"item = {proof.item}", "", "    ", WIDTH)
    if proof.steps:
        times = [step_time(step) for step in proof.steps]
        room = max(map(len, times))
        for number, (time, step) in enumerate(zip(times, proof.steps, strict=True), 1):
            head = f"{time:>{room}}{' ms' if time else '   '}  {number:>2}. "
            lines += _told(step.text, head, " " * len(head), WIDTH)
    if proof.steps_left_out:
        lines.append(f"({count(proof.steps_left_out, 'further step')} left out)")
    if proof.drawing:
        faults = ["% injected fault"] if any(step.fault for step in proof.steps) else []
        lines += ["", *proof.drawing, _LEGEND, *faults, ""]
    lines += _told(f"So: {proof.conclusion}", "", "    ", WIDTH)
    lines += _told(f"Assumed: {assumption}.", "", "    ", WIDTH)
    return lines


def step_time(step: Step) -> str:
    """When a step was over, in ms since the first receive of the order; empty: no known time."""
    if step.at_ns is None:
        return ""
    return f"{(step.at_ns if step.until_ns is None else step.until_ns) / 1e6:,.3f}"


def _told(text: str, first: str, rest: str, width: int = WIDTH + 2) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


_LEGEND = ". waiting  - handler  = call, the step's number where it was answered"
