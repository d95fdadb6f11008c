"""A second judge: plain Python, one order at a time, decided from the words of the findings.

It answers the same questions as the SQL of :mod:`analysis`, is written apart from it and
shares nothing with it but the schema. It is slow and says only *that* something is wrong:
:func:`judge` returns pairs of kind and order key (the item's key where there is no order) and
the items about which the evidence leaves a question open.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from analysis.findings import FindingKind
from analysis.schema import (
    NO_ITEM,
    Ack,
    AckOutcome,
    Action,
    Call,
    CallItem,
    Decision,
    Delivery,
    Effect,
    Fault,
    Invocation,
    ItemRow,
    ItemsInfo,
    Message,
    MessageKind,
    Outcome,
    Phase,
    QueueRole,
    Result,
    ResultRow,
    Row,
    RunInfo,
    RunStatus,
    TableInfo,
    TableRole,
)

Found = tuple[FindingKind, str]
_HAPPENED = (Decision.ACCEPTED, Decision.UNKNOWN)
_GENTLE = {
    "cold-start",
    "freeze",
    "clock",
    "redeliver-during",
    "redeliver-after",
    "same-message-twice",
    "short-visibility",
    "out-of-order",
    "long-delay",
    "delete-fails",
    "receive-without-run",
    "item-deleted",
    "redrive",
    "resend",
}
"""Faults that leave an invocation all it needs to do its work."""
_ENDED_IF_READ = (RunStatus.INTERRUPTED, RunStatus.NOT_DRAINED)


@lru_cache(maxsize=100_000)
def _parsed(text: str) -> dict[str, Any]:
    item: dict[str, Any] = json.loads(text)
    return item


def _text(attributes: dict[str, Any], name: str | None) -> str:
    return str(next(iter(attributes.get(name or "", {"S": ""}).values())))


def _fits(form: str, text: str) -> bool:
    """A form of a key, in which ``{id}`` and ``*`` stand for any text."""
    return fnmatchcase(text, form.replace("{id}", "?*"))


@dataclass(frozen=True, slots=True)
class _Write:
    """A put, update or delete of one item, with the call that carried it."""

    item: CallItem
    call: Call
    table: TableInfo
    insert_only: bool  # its condition lets it only insert
    key_text: str
    sort_text: str

    @property
    def before(self) -> str | None:
        """What is not on record is known where the condition leaves no choice."""
        accepted = self.item.decision is Decision.ACCEPTED
        return (
            NO_ITEM
            if self.item.before is None and accepted and self.insert_only
            else (self.item.before)
        )

    @property
    def place(self) -> tuple[str, str]:
        return self.item.resource, self.item.item_key

    @property
    def over_at(self) -> float:
        return math.inf if self.call.answered_at is None else self.call.answered_at

    @property
    def when(self) -> tuple[float, int]:
        return self.over_at, self.call.call_id

    @property
    def accepted(self) -> bool:
        return self.item.decision is Decision.ACCEPTED

    @property
    def told(self) -> bool:
        """The handler knows that it was accepted."""
        return self.accepted and self.call.decision is Decision.ACCEPTED

    @property
    def changes(self) -> bool:
        return self.item.action in (Action.PUT, Action.UPDATE)


@dataclass(slots=True)
class _Physical:
    """One message in the queue and what became of it."""

    message: Message
    deliveries: list[Delivery] = field(default_factory=list)
    fate: str = "open"
    refused: bool = False

    @property
    def last(self) -> Delivery | None:
        return max(self.deliveries, key=lambda d: d.delivery_id, default=None)

    @property
    def dead(self) -> bool:
        return self.fate in ("dead", "set aside")


class _Oracle:
    def __init__(self, run: RunInfo, rows: Iterable[Row]) -> None:
        self.run = run
        self.tables = {table.name: table for table in run.tables}
        # A kind of items in a table of several is a table of its own.
        for table in run.tables:
            rest = [ItemsInfo(TableRole.OTHER)] if table.items else []
            for number, kind in enumerate([*table.items, *rest]):
                self.tables[f"{table.name}/{number}"] = replace(
                    table, role=kind.role, complete_when=kind.complete_when, items=(kind,)
                )
        rows = [
            replace(row, resource=self.kind(row)) if isinstance(row, CallItem | ItemRow) else row
            for row in rows
        ]
        last: dict[tuple[Any, ...], Row] = {}
        for row in rows:
            last[row.TABLE, *(getattr(row, name) for name in row.KEY)] = row
        kinds: dict[type[Row], list[Any]] = defaultdict(list)
        for row in last.values():
            kinds[type(row)].append(row)
        self.messages: dict[int, Message] = {m.message_no: m for m in kinds[Message]}
        self.invocations: dict[int, Invocation] = {i.invocation_id: i for i in kinds[Invocation]}
        self.calls: dict[int, Call] = {c.call_id: c for c in kinds[Call]}
        self.acks: dict[int, Ack] = {a.delivery_id: a for a in kinds[Ack]}
        self.results: list[ResultRow] = kinds[ResultRow]
        self.deliveries: list[Delivery] = kinds[Delivery]
        images: dict[Phase, dict[tuple[str, str], str]] = {phase: {} for phase in Phase}
        for row in kinds[ItemRow]:
            images[row.phase][row.resource, row.item_key] = row.item
        self.before, self.after = images[Phase.BEFORE], images[Phase.AFTER]
        self.ended = run.status is RunStatus.FINISHED or (
            run.status in _ENDED_IF_READ and bool(self.after)
        )
        self.poison = {m.order_key for m in kinds[Message] if m.kind is MessageKind.POISON}
        self.planned: dict[str, set[str]] = defaultdict(set)
        for message in kinds[Message]:
            if message.expected_item is not None:
                self.planned[message.order_key].add(self.details(message.expected_item) or "")
        self.given: dict[int, dict[str, list[Message]]] = defaultdict(lambda: defaultdict(list))
        for delivery in self.deliveries:
            if delivery.queue is QueueRole.QUEUE and delivery.invocation_id is not None:
                message = self.messages[delivery.message_no or 0]
                self.given[delivery.invocation_id][message.order_key].append(message)
        self.work: dict[str, set[int]] = defaultdict(set)
        for invocation_id, orders in self.given.items():
            for key in orders:
                self.work[key].add(invocation_id)
        self.touches: dict[int | None, list[tuple[Call, CallItem | None]]] = defaultdict(list)
        items: dict[int, list[CallItem]] = defaultdict(list)
        for item in kinds[CallItem]:
            items[item.call_id].append(item)
        for call in self.calls.values():
            touched: list[CallItem | None] = [*items[call.call_id]] or [None]
            self.touches[call.invocation_id] += [(call, item) for item in touched]
        self.faults: list[Fault] = kinds[Fault]
        self.faulted = set(self.find_faulted())
        self.writes = [self.write(item) for item in kinds[CallItem] if self.is_write(item)]
        self.owners = {id(w): self.owner(w) for w in self.writes}
        self.of_order: dict[str, list[_Write]] = defaultdict(list)
        self.of_place: dict[tuple[str, str], list[_Write]] = defaultdict(list)
        for write in self.writes:
            self.of_place[write.place].append(write)
            owner = self.owners[id(write)]
            if write.table.role is TableRole.ORDERS and owner is not None:
                self.of_order[owner].append(write)
        self.wiped: dict[str, list[_Write]] = defaultdict(list)
        for write in self.writes:
            if self.by_somebody(write) and write.before != NO_ITEM:
                self.wiped[self.wiped_order(write)].append(write)
        self.effects: dict[tuple[str | None, int], list[Effect]] = defaultdict(list)
        for effect in kinds[Effect]:
            if effect.decision in _HAPPENED:
                self.effects[self.effect_owner(effect), effect.effect].append(effect)
        self.physical: dict[str, list[_Physical]] = defaultdict(list)
        self.find_fates()

    # --- kinds of items ---

    def kind(self, row: CallItem | ItemRow) -> str:
        """Where the item is: its table, or its kind's."""
        table, key = self.tables.get(row.resource), _parsed(row.item_key)
        if table is None or not table.items:
            return row.resource
        for number, kind in enumerate(table.items):
            texts = (kind.key, _text(key, table.key)), (kind.sort, _text(key, table.sort))
            if all(form is None or _fits(form, text) for form, text in texts):
                return f"{row.resource}/{number}"
        return f"{row.resource}/{len(table.items)}"

    def texts_of_key(self, place: tuple[str, str]) -> tuple[str, str]:
        """The texts in which an order's key may stand."""
        table, key = self.tables[place[0]], _parsed(place[1])
        texts = _text(key, table.key), _text(key, table.sort)
        for kind in table.items:
            for form, text in zip((kind.key, kind.sort), texts, strict=True):
                before, found, after = (form or "").partition("{id}")
                if found:
                    return text[len(before) : len(text) - len(after)], ""
        return texts

    # --- faults ---

    def find_faulted(self) -> Iterator[int]:
        """Invocations that the tester kept from their work."""
        met = [(c.invocation_id, c.fault) for c in self.calls.values() if c.fault is not None]
        met += [(fault.invocation_id, fault.name) for fault in self.faults]
        for invocation_id, text in met:
            if invocation_id is None:
                continue
            name = text.partition(":")[0]
            if name == "slow":
                invocation = self.invocations.get(invocation_id)
                if invocation is None or invocation.outcome is not Outcome.TIMED_OUT:
                    continue
            if name not in _GENTLE:
                yield invocation_id

    def by_somebody(self, write: _Write) -> bool:
        """The tester deleted an order's item, as somebody else would."""
        return (
            write.call.invocation_id is None
            and write.call.fault == "item-deleted"
            and write.accepted
            and write.item.action is Action.DELETE
            and write.table.role is TableRole.ORDERS
        )

    def wiped_order(self, write: _Write) -> str:
        for fault in self.faults:
            if fault.call_id == write.call.call_id and fault.message_no is not None:
                return self.messages[fault.message_no].order_key
        return self.owners[id(write)] or ""

    def effect_owner(self, effect: Effect) -> str | None:
        """The order of a side effect."""
        keys = self.planned.keys() | self.poison
        if effect.order_key in keys:
            return effect.order_key
        orders = self.given.get(self.calls[effect.call_id].invocation_id or 0, {})
        inside = sorted((k for k in orders if k in (effect.order_key or "")), key=len)
        if inside:
            return inside[-1]
        return next(iter(orders)) if len(orders) == 1 else None

    # --- words ---

    def is_write(self, item: CallItem) -> bool:
        table = self.tables.get(item.resource)
        return item.action in (Action.PUT, Action.UPDATE, Action.DELETE) and (
            table is not None and table.role in (TableRole.ORDERS, TableRole.GUARD)
        )

    def write(self, item: CallItem) -> _Write:
        table = self.tables[item.resource]
        condition = item.condition or ""
        only = f"attribute_not_exists({table.key})" in condition and " OR " not in condition
        return _Write(
            item,
            self.calls[item.call_id],
            table,
            only,
            *self.texts_of_key((item.resource, item.item_key)),
        )

    def details(self, image: str | None) -> str | None:
        """The attributes that carry the order, its key left out; None where there is no item."""
        if image is None or image == NO_ITEM:
            return None
        keys = {t.key for t in self.run.tables} | {t.sort for t in self.run.tables}
        names = set(self.run.order.attributes.values()) - keys
        return json.dumps({n: v for n, v in sorted(_parsed(image).items()) if n in names})

    def complete(self, resource: str, image: str | None) -> bool:
        """The item counts as the order's result."""
        if image is None or image == NO_ITEM:
            return False
        wanted = self.tables[resource].complete_when
        return all(_text(_parsed(image), name) in texts for name, texts in wanted.items())

    def owner(self, write: _Write) -> str | None:
        """Whose item it is."""
        orders = self.given.get(write.call.invocation_id or 0, {})
        texts = (write.key_text, write.sort_text)
        exact = [key for key in orders if key in texts]
        inside = sorted((k for k in orders if any(k in t for t in texts)), key=len)
        if exact or inside:
            return exact[0] if exact else inside[-1]
        image = write.item.after if write.item.after not in (None, NO_ITEM) else write.item.before
        named = _text(_parsed(image or NO_ITEM), self.run.order.attributes[self.run.order.key])
        if named in orders:
            return named
        if len(orders) == 1:
            return next(iter(orders))
        return next((t for t in texts if t in self.planned or t in self.poison), None)

    def misplaced(self, write: _Write) -> bool:
        """An invocation that had messages wrote under a key that is none of their orders'."""
        orders = self.given.get(write.call.invocation_id or 0, {})
        texts = (write.key_text, write.sort_text)
        return bool(orders) and not any(key in text for key in orders for text in texts)

    def inserts(self, writes: Iterable[_Write]) -> list[_Write]:
        """Writes that gave the order its result and were not taken back by who made them."""
        found = []
        for write in writes:
            image = write.item.after
            if not (write.accepted and write.changes and write.before is not None):
                continue
            if self.complete(write.item.resource, write.before):
                continue
            if image is not None and not self.complete(write.item.resource, image):
                continue
            taken_back = any(
                other.accepted
                and other.item.action is Action.DELETE
                and other.call.invocation_id == write.call.invocation_id
                and other.call.call_id > write.call.call_id
                for other in self.of_place[write.place]
            )
            if not taken_back:
                found.append(write)
        return sorted(found, key=lambda w: w.when)

    # --- fates ---

    def find_fates(self) -> None:
        by_id: dict[str, _Physical] = {}
        for delivery in self.deliveries:
            if delivery.queue is QueueRole.QUEUE:
                message = self.messages[delivery.message_no or 0]
                by_id.setdefault(delivery.sqs_message_id, _Physical(message)).deliveries.append(
                    delivery
                )
        for message in self.messages.values():
            if message.accepted_at is not None and message.sqs_message_id is not None:
                by_id.setdefault(message.sqs_message_id, _Physical(message))
        letters: dict[str, tuple[int, int]] = {}  # id -> when it was last seen dead, and message
        for delivery in self.deliveries:
            if delivery.queue is QueueRole.DEAD_LETTER:
                sqs_id, number = delivery.sqs_message_id, delivery.message_no or 0
                seen = letters.get(sqs_id, (0, number))
                letters[sqs_id] = max(delivery.received_at, seen[0]), min(number, seen[1])
        # Moved back to the queue: no dead letter any more.
        moved = {
            sqs_id: at
            for sqs_id, (at, number) in letters.items()
            if any(
                fault.name == "redrive" and fault.at >= at and self.is_moved(fault, sqs_id, number)
                for fault in self.faults
            )
        }
        strangers = {number for i, (_, number) in letters.items() if i not in by_id}
        bodies = {self.messages[number].body for number in strangers}
        # Arrived in the dead-letter queue under an id of its own, and is there still.
        renamed = {n for i, (_, n) in letters.items() if i not in by_id and i not in moved}
        first_at = {
            sqs_id: min(d.received_at for d in physical.deliveries)
            for sqs_id, physical in by_id.items()
            if physical.deliveries
        }
        for sqs_id, physical in by_id.items():
            number = physical.message.message_no
            last_at = max((d.received_at for d in physical.deliveries), default=0)
            left = [at for i, at in moved.items() if i == sqs_id]
            foreign = [i for i in moved if letters[i][1] == number and i not in by_id]
            left += [max(moved[i] for i in foreign)] if foreign else []
            newest = max(
                (at for i, at in first_at.items() if by_id[i].message.message_no == number),
                default=0,
            )
            if any(last_at <= at < newest for at in left):
                continue  # it goes on under another id
            dead_at = letters[sqs_id][0] if sqs_id in letters and sqs_id not in moved else None
            physical.fate = self.fate(physical, dead_at, renamed, bodies)
            last = physical.last
            ack = self.acks.get(last.delivery_id) if last is not None else None
            said_no = ack is not None and (
                ack.outcome is AckOutcome.RETURNED
                or (ack.outcome is AckOutcome.DELETED and physical.fate == "set aside")
            )
            physical.refused = said_no and last is not None and not self.hindered(last)
            self.physical[physical.message.order_key].append(physical)

    def is_moved(self, fault: Fault, sqs_id: str, number: int) -> bool:
        """The redrive was of this dead letter; it need not say of which."""
        for delivery in self.deliveries:
            if delivery.delivery_id == fault.delivery_id:
                return delivery.sqs_message_id == sqs_id
        return fault.message_no in (None, number)

    def fate(
        self, physical: _Physical, dead_at: int | None, strangers: set[int], bodies: set[str]
    ) -> str:
        last_received = max((d.received_at for d in physical.deliveries), default=0)
        if dead_at is not None and dead_at >= last_received:
            return "dead"
        deletes, kept = [], []
        for delivery in physical.deliveries:
            ack = self.acks.get(delivery.delivery_id)
            if ack is not None and ack.outcome is AckOutcome.DELETED:
                deletes.append(ack.acked_at)
            else:
                kept.append(delivery.received_at)
        if deletes and max(kept, default=0) <= max(deletes):
            if not any(self.called_sqs(d.invocation_id) for d in physical.deliveries):
                return "deleted"
            if physical.message.body in bodies:
                return "set aside"
            return "deleted" if self.ended else "open"
        return "dead" if physical.message.message_no in strangers else "open"

    def called_sqs(self, invocation_id: int | None) -> bool:
        return invocation_id is not None and any(
            call.service == "sqs" and call.decision in _HAPPENED
            for call, _ in self.touches[invocation_id]
        )

    def hindered(self, delivery: Delivery) -> bool:
        """The handler's no says nothing about it: it had no chance, or somebody was at work."""
        if delivery.invocation_id is None or delivery.invocation_id in self.faulted:
            return True
        return any(
            item is not None
            and (item.decision is Decision.REJECTED or item.action is Action.READ)
            and self.tables[item.resource].role in (TableRole.ORDERS, TableRole.GUARD)
            and item.before not in (None, NO_ITEM)
            and not self.complete(item.resource, item.before)
            for _, item in self.touches[delivery.invocation_id]
        )

    # --- the order's details and items ---

    def final_owner(self, place: tuple[str, str]) -> str | None:
        writers = [w for w in self.of_place[place] if w.item.decision in _HAPPENED]
        if writers:
            owner = self.owners[id(max(writers, key=lambda w: w.call.call_id))]
            if owner is not None:
                return owner
        texts = self.texts_of_key(place)
        return next((t for t in texts if t in self.planned or t in self.poison), None)

    def finals(self) -> Iterator[tuple[tuple[str, str], str, str | None]]:
        if self.ended:
            for place, image in self.after.items():
                if self.tables[place[0]].role is TableRole.ORDERS:
                    yield place, image, self.final_owner(place)

    def vanished(self, place: tuple[str, str]) -> bool:
        """More writes took the final image away than put it there."""
        final = self.after.get(place, NO_ITEM)
        there = int(self.before.get(place, NO_ITEM) == final)
        for write in self.of_place[place]:
            if write.item.decision in _HAPPENED and write.item.after in (None, final):
                there += 1
            if write.accepted and write.before == final:
                there -= 1
        return there <= 0

    # --- one order ---

    def judge_order(self, key: str) -> Iterator[FindingKind]:
        poison = key in self.poison
        writes = sorted(self.of_order[key], key=lambda w: w.when)
        accepted = [w for w in writes if w.accepted]
        places = {w.place for w in accepted}
        finals = [(p, i) for p, i, owner in self.all_finals if owner == key]
        vanished = self.ended and any(self.vanished(place) for place in places)
        physical = self.physical[key]
        if poison:
            yield from self.judge_poison(accepted, finals, physical)
            return
        if vanished:
            yield FindingKind.VANISHED_ORDER
        inserts = self.inserts(writes)
        # Each time that somebody else took it away it may be stored once more.
        again = sum(self.complete(w.item.resource, w.before) for w in self.wiped[key])
        if len({w.place for w in inserts}) + again < len(inserts) or (
            len({(w.call.invocation_id, w.call.invocation_id or w.call.call_id) for w in inserts})
            > 1 + again
        ):
            yield FindingKind.DOUBLE_ACCEPT
        if any(self.overwrites(write) for write in accepted):
            yield FindingKind.OVERWRITE
        if any(w.changes and self.misplaced(w) for w in accepted):
            yield FindingKind.WRONG_KEY
        known = self.planned[key]
        images = [
            w.item.after
            for w in accepted
            if w.changes and not self.misplaced(w) and self.complete(w.item.resource, w.item.after)
        ]
        images += [
            image
            for place, image in finals
            if self.complete(place[0], image)
            and place not in self.before
            and not any(w.item.decision in _HAPPENED for w in self.of_place[place])
        ]
        if any(self.details(image) not in known for image in images):
            yield FindingKind.PHANTOM_WRITE
        stored, stored_at = None, math.inf
        for write in inserts:
            if stored is None and self.details(write.item.after) in known:
                stored, stored_at = self.details(write.item.after), write.over_at
        for place, image in finals:
            if stored is None and self.complete(place[0], image) and self.details(image) in known:
                stored = self.details(image)
        if self.wiped[key] and len(known) > 1:
            stored = None  # any of its messages may rightly have been stored next
        if stored is not None:
            yield from self.judge_copies(physical, stored, stored_at)
        yield from self.judge_effects(key, writes, physical, stored)
        yield from self.judge_retries(key, writes, physical, stored)
        if self.ended and physical and not vanished and not finals and not self.wiped[key]:
            settled = all(p.fate != "open" for p in physical)
            if settled and not any(p.dead for p in physical):
                yield FindingKind.LOST_ORDER
            if settled and any(p.dead and p.refused for p in physical):
                yield FindingKind.DEAD_LETTERED_ORDER
        yield from self.judge_words(key, writes)
        yield from self.judge_acks(key, writes)
        yield from self.judge_batches(key, physical)

    def judge_poison(
        self,
        accepted: list[_Write],
        finals: list[tuple[tuple[str, str], str]],
        physical: list[_Physical],
    ) -> Iterator[FindingKind]:
        if self.run.expect.poison != "drop" and any(p.fate == "deleted" for p in physical):
            yield FindingKind.POISON_ACKNOWLEDGED
        key = physical[0].message.order_key if physical else ""
        yield from self.judge_effects(key, [], physical, None)
        if self.ended:
            if any(self.complete(place[0], image) for place, image in finals):
                yield FindingKind.POISON_STORED
            return
        for place in {w.place for w in accepted}:
            here = [w for w in accepted if w.place == place]
            if here[-1].changes and any(self.complete(place[0], w.item.after) for w in here):
                yield FindingKind.POISON_STORED

    def overwrites(self, write: _Write) -> bool:
        if not write.changes or not self.complete(write.item.resource, write.before):
            return False
        own = any(
            other.item.decision in _HAPPENED
            and other.call.invocation_id is not None
            and other.call.invocation_id == write.call.invocation_id
            and other.call.call_id < write.call.call_id
            for other in self.of_place[write.place]
        )
        kept = write.item.after is None or (
            self.details(write.item.after) == self.details(write.before)
        )
        return not (own and kept)

    def judge_copies(
        self, physical: list[_Physical], stored: str, stored_at: float
    ) -> Iterator[FindingKind]:
        for one in physical:
            details, last = self.details(one.message.expected_item), one.last
            if details != stored:
                if one.fate == "deleted":
                    yield FindingKind.CONFLICT_ACKNOWLEDGED
                continue
            if not (one.dead and one.refused) or last is None or last.invocation_id is None:
                continue
            if self.wiped[one.message.order_key]:
                continue
            begun = self.invocations[last.invocation_id].started_at
            saw_it = any(
                item is not None
                and (item.decision is Decision.REJECTED or item.action is Action.READ)
                and self.tables[item.resource].role is TableRole.ORDERS
                and self.complete(item.resource, item.before)
                and self.details(item.before) == stored
                for _, item in self.touches[last.invocation_id]
            )
            if begun > stored_at or saw_it:
                yield FindingKind.DUPLICATE_FAILED
        for row in self.results_of[physical[0].message.order_key] if physical else ():
            message = self.messages[row.message_no]
            if row.result is Result.FAILED or self.details(message.expected_item) != stored:
                continue
            said, body = json.loads(row.detail or "{}"), json.loads(message.body)
            if any(name in said and said[name] != body[name] for name in body):
                yield FindingKind.DIVERGENT_RESULT

    # --- side effects ---

    def judge_effects(
        self, key: str, writes: list[_Write], physical: list[_Physical], stored: str | None
    ) -> Iterator[FindingKind]:
        for number, _ in enumerate(self.run.effects, 1):
            happened = [e for e in self.effects[key, number] if e.decision is Decision.ACCEPTED]
            too_often = len(happened) > 1 + len(self.wiped[key])
            if too_often or (happened and self.never_stored(key, writes, physical)):
                yield FindingKind.DUPLICATE_EFFECT
        if self.missing(key, physical, stored):
            yield FindingKind.MISSING_EFFECT

    def never_stored(self, key: str, writes: list[_Write], physical: list[_Physical]) -> bool:
        """Nothing of it was ever there, and that is the handler's last word."""
        if not self.ended or not physical or any(p.fate == "open" for p in physical):
            return False
        if any(owner == key and key not in self.poison for _, _, owner in self.all_finals):
            return False
        kept = any(
            w.item.decision is Decision.UNKNOWN
            or (w.accepted and self.complete(w.item.resource, w.item.after))
            for w in writes
        )
        if kept or self.inserts(writes):
            return False
        return any(p.fate == "deleted" or p.refused for p in physical)

    def missing(self, key: str, physical: list[_Physical], stored: str | None) -> bool:
        """An effect is owed and can come no more."""
        there = any(
            owner == key and place not in self.before and self.complete(place[0], image)
            for place, image, owner in self.all_finals
        )
        if not there or key in self.poison or self.wiped[key]:
            return False
        if not physical or any(p.fate == "open" for p in physical):
            return False
        for one in physical:
            if (
                one.dead
                and not one.refused
                and (stored is not None and self.details(one.message.expected_item) == stored)
            ):
                return False  # moved back, it can still bring it about
        numbers = range(1, len(self.run.effects) + 1)
        return any(not self.effects[key, number] for number in numbers)

    # --- a handler's own attempts ---

    def judge_retries(
        self, key: str, writes: list[_Write], physical: list[_Physical], stored: str | None
    ) -> Iterator[FindingKind]:
        """A call that the same invocation's own earlier attempt refused, and what came of it."""
        for invocation_id in self.work[key]:
            orders = self.given[invocation_id]
            if len(orders[key]) != 1:
                continue
            mine = [
                w
                for w in self.by_invocation[invocation_id]
                if w.table.role is TableRole.GUARD or self.owners[id(w)] == key
            ]
            met = [w for w in mine if self.by_own_attempt(w)]
            if len(orders) > 1:
                met = [w for w in met if w.table.role is TableRole.ORDERS]
            results = {
                row.result for row in self.results_of[key] if row.invocation_id == invocation_id
            }
            for refused in met:
                invocation = self.invocations[invocation_id]
                outcome = invocation.outcome
                own_word = outcome is Outcome.RETURNED or (
                    outcome is Outcome.RAISED and len(orders) == 1
                )
                hindered = any(
                    call.call_id > refused.call.call_id
                    and call.decision is not Decision.ACCEPTED
                    and not (item is not None and self.is_own_again(invocation_id, item))
                    and self.concerns(key, item, call)
                    for call, item in self.touches[invocation_id]
                )
                if Result.FAILED in results and own_word and not hindered:
                    yield FindingKind.SELF_CONFLICT
                if self.missing(key, physical, stored):
                    yield FindingKind.SELF_CONFLICT
                said = {row.result for row in self.results_of[key]}
                if (
                    self.ended
                    and self.run.result.processed is not None
                    and Result.DUPLICATE in results
                    and self.stored_by(refused, writes)
                    and Result.PROCESSED not in said
                    and all(p.fate != "open" for p in physical)
                ):
                    yield FindingKind.SELF_CONFLICT

    def by_own_attempt(self, write: _Write) -> bool:
        return bool(self.own_attempts(write))

    def own_attempts(self, write: _Write) -> list[_Write]:
        """Those earlier ones that it was refused by."""
        if write.item.decision is not Decision.REJECTED:
            return []
        if write.call.decision is not Decision.REJECTED:
            return []  # the handler does not know
        return [
            other
            for other in self.of_place[write.place]
            if other.accepted
            and not other.told
            and other.changes
            and other.item.action is write.item.action
            and other.call.invocation_id == write.call.invocation_id
            and other.call.call_id < write.call.call_id
            and (None in (write.before, other.item.after) or write.before == other.item.after)
        ]

    def stored_by(self, refused: _Write, writes: list[_Write]) -> bool:
        """What refused it gave the order its result."""
        inserts = {w.call.call_id for w in self.inserts(writes)}
        return any(w.call.call_id in inserts for w in self.own_attempts(refused))

    def is_own_again(self, invocation_id: int, item: CallItem) -> bool:
        return any(
            w.item == item and self.by_own_attempt(w) for w in self.by_invocation[invocation_id]
        )

    def concerns(self, key: str, item: CallItem | None, call: Call) -> bool:
        """The call was for this order, or for none in particular."""
        if item is None or not self.is_write(item):
            return True
        write = next(w for w in self.by_invocation[call.invocation_id] if w.item == item)
        return write.table.role is TableRole.GUARD or self.owners[id(write)] in (None, key)

    def judge_words(self, key: str, writes: list[_Write]) -> Iterator[FindingKind]:
        """Rejections, and what was reported."""
        for write in writes:
            condition = write.item.condition
            if (
                write.item.decision is Decision.REJECTED
                and write.place not in self.before
                and (condition is None or "attribute_not_exists" in condition or "<>" in condition)
                and not any(
                    other.item.decision in _HAPPENED and other.call.sent_at <= write.over_at
                    for other in self.of_place[write.place]
                )
            ):
                yield FindingKind.UNJUSTIFIED_REJECTION
        for row in self.results_of[key]:
            invocation = self.invocations[row.invocation_id]
            end = math.inf if invocation.ended_at is None else invocation.ended_at
            if row.result is Result.PROCESSED:
                had = self.had_message[row.message_no]
                if not any(w.item.action is not Action.DELETE for w in self.done(key, had, end)):
                    yield FindingKind.RESULT_MISMATCH
            if row.result is Result.DUPLICATE:
                own = [
                    w
                    for w in self.inserts(writes)
                    if w.call.invocation_id == row.invocation_id and w.told
                ]
                if own and len(self.given[row.invocation_id][key]) == 1:
                    yield FindingKind.RESULT_MISMATCH
                there_before = any(
                    owner == key and place in self.before for place, _, owner in self.all_finals
                )
                under_its_key = any(
                    w.item.decision in _HAPPENED and w.call.sent_at <= end for w in self.by_key[key]
                )
                if not (there_before or under_its_key or self.done(key, self.work[key], end)):
                    yield FindingKind.UNJUSTIFIED_REJECTION

    def done(self, key: str, invocations: set[int], end: float) -> list[_Write]:
        """Writes for the order, or to a guard, that these invocations began by then."""
        return [
            write
            for invocation_id in invocations
            for write in self.by_invocation[invocation_id]
            if write.item.decision in _HAPPENED
            and write.call.sent_at <= end
            and (write.table.role is TableRole.GUARD or self.owners[id(write)] == key)
        ]

    def judge_acks(self, key: str, writes: list[_Write]) -> Iterator[FindingKind]:
        for delivery, ack in self.deleted_of[key]:
            invocation_id = delivery.invocation_id or 0
            end = self.invocations[invocation_id].ended_at
            if end is not None and ack.acked_at < end:
                yield FindingKind.PREMATURE_ACK
            for write in writes:
                if not write.accepted or not ack.acked_at < write.over_at < math.inf:
                    continue
                if self.by_somebody(write):
                    continue
                background = write.call.invocation_id is None and (
                    end is not None and end < write.over_at
                )
                if background or write.call.invocation_id == invocation_id:
                    yield FindingKind.PREMATURE_ACK

    def judge_batches(self, key: str, physical: list[_Physical]) -> Iterator[FindingKind]:
        report = self.run.report_batch_item_failures
        for one in physical:
            for delivery in one.deliveries:
                if delivery.invocation_id is None:
                    continue
                invocation = self.invocations.get(delivery.invocation_id)
                if invocation is None:
                    continue
                ack = self.acks.get(delivery.delivery_id)
                deleted = ack is not None and ack.outcome is AckOutcome.DELETED
                returned = invocation.outcome is Outcome.RETURNED
                writes = [
                    w
                    for w in self.by_invocation[delivery.invocation_id]
                    if w.table.role is TableRole.ORDERS
                ]
                mine = [w for w in writes if self.owners[id(w)] == key]
                others = [
                    call
                    for call, item in self.touches[delivery.invocation_id]
                    if item is None
                    or not self.is_write(item)
                    or self.tables[item.resource].role is not TableRole.ORDERS
                ]
                if deleted and returned and one.fate == "deleted" and mine:
                    nothing = all(
                        w.item.decision is Decision.FAILED and w.call.decision is Decision.FAILED
                        for w in mine
                    )
                    if nothing and all(call.decision is Decision.FAILED for call in others):
                        yield FindingKind.BATCH_MISREPORT
                if report:
                    reported = any(
                        row.invocation_id == delivery.invocation_id
                        and row.message_no == one.message.message_no
                        and row.result is Result.FAILED
                        for row in self.results_of[key]
                    )
                    several = len(self.deliveries_of[delivery.invocation_id]) > 1
                    own_way = returned or (invocation.outcome is Outcome.RAISED and several)
                    went_wrong = any(w.call.decision is not Decision.ACCEPTED for w in mine) or any(
                        call.decision is not Decision.ACCEPTED for call in others
                    )
                    details = self.details(one.message.expected_item)
                    inserted = any(
                        w.item.after is None or self.details(w.item.after) == details
                        for w in self.inserts(mine)
                        if w.told
                    )
                    given = [
                        other
                        for other in self.deliveries_of[delivery.invocation_id]
                        if self.messages[other.message_no or 0].order_key == key
                    ]
                    # The first may have been refused because of an item that was then deleted.
                    uncertain = bool(self.wiped[key]) and len(given) > 1
                    if (
                        reported
                        and own_way
                        and not uncertain
                        and not went_wrong
                        and inserted
                        and delivery.invocation_id not in self.faulted
                    ):
                        yield FindingKind.BATCH_MISREPORT
                elif returned and deleted:
                    answer = json.loads(invocation.response or "null")
                    named = answer.get("batchItemFailures", ()) if isinstance(answer, dict) else ()
                    if any(n.get("itemIdentifier") == delivery.sqs_message_id for n in named):
                        yield FindingKind.BATCH_MISREPORT

    def judge_claims(self) -> Iterator[Found]:
        """A claim at the end that nobody will finish any more."""
        if not self.ended:
            return
        for place, image in self.after.items():
            table = self.tables[place[0]]
            writers = [
                w
                for w in self.of_place[place]
                if w.item.decision in _HAPPENED and w.call.invocation_id in self.given
            ]
            if (
                table.role not in (TableRole.ORDERS, TableRole.GUARD)
                or self.complete(place[0], image)
                or self.before.get(place) == image
                or not writers
            ):
                continue
            touching = [w for w in self.of_place[place] if w.call.invocation_id in self.given]
            owners = set.intersection(
                *(
                    {
                        key
                        for key in self.given[w.call.invocation_id or 0]
                        if self.owners[id(w)] in (None, key)
                    }
                    for w in touching
                )
            )
            accepted = [w for w in writers if w.accepted]
            holders = {w.call.invocation_id or 0 for w in writers if not w.accepted}
            if accepted:
                holders.add(max(accepted, key=lambda w: w.call.call_id).call.invocation_id or 0)
            if owners and all(self.left_behind(key, holders) for key in owners):
                yield FindingKind.STUCK_MESSAGE, owners.pop() if len(owners) == 1 else ""

    def left_behind(self, key: str, holders: set[int]) -> bool:
        """All is settled, and nobody who may hold it was hindered, or somebody came after."""
        if any(p.fate == "open" for p in self.physical[key]):
            return False
        ends = [self.invocations[holder].ended_at for holder in holders & self.faulted]
        return all(
            end is not None
            and any(
                self.invocations[i].started_at > end and i not in self.faulted
                for i in self.work[key]
                if i in self.invocations
            )
            for end in ends
        )

    def judge_queue(self) -> Iterator[Found]:
        limit = 2 * self.run.visibility_timeout_s * 10**9
        for key, physical in self.physical.items():
            for one in physical:
                receives = 0 if one.last is None else one.last.receive_count
                last = max((d.received_at for d in one.deliveries), default=0)
                if (
                    one.fate == "open"
                    and receives >= self.run.max_receive_count
                    and self.run.ended_at is not None
                    and last + limit < self.run.ended_at
                    and self.ended
                ):
                    yield FindingKind.STUCK_MESSAGE, key

    def judge_rest(self) -> Iterator[Found]:
        """What does not belong to the run."""
        if self.ended:
            for place in {*self.before, *self.after}:
                changed = self.before.get(place) != self.after.get(place)
                role = self.tables[place[0]].role
                stranger = place in self.before and (
                    self.texts_of_key(place)[0] not in self.planned.keys() | self.poison
                )
                if changed and (
                    role is TableRole.REFERENCE or (role is TableRole.ORDERS and stranger)
                ):
                    yield FindingKind.UNRELATED_WRITE, place[1]
        for touches in self.touches.values():
            for _, item in touches:
                if (
                    item is not None
                    and self.tables[item.resource].role is TableRole.REFERENCE
                    and item.action is not Action.READ
                    and item.decision is Decision.ACCEPTED
                    and item.before != item.after
                ):
                    yield FindingKind.UNRELATED_WRITE, item.item_key

    def open_questions(self) -> set[str]:
        """Keys of the items of which the evidence does not tell what was done to them."""
        found = set()
        for place, writes in self.of_place.items():
            if not any(w.table.role is TableRole.ORDERS for w in writes):
                continue
            deleted = any(
                w.item.action is Action.DELETE and w.item.decision in _HAPPENED for w in writes
            )
            seen = {self.after.get(place)}
            for write in writes:
                seen.add(write.before)
                if write.accepted:
                    seen.add(write.item.after)
            blind = any(w.accepted and w.before is None for w in writes)
            for write in writes:
                if write.accepted and write.before is None and write.changes:
                    found.add(place[1])
                if write.item.decision is not Decision.UNKNOWN:
                    continue
                # It can only have inserted, and nobody deleted: it replaced nothing.
                harmless = write.insert_only and not deleted
                # What it would have left was never seen: it did not happen.
                never = (
                    write.item.action is not Action.DELETE
                    and write.item.after is not None
                    and write.item.after not in seen
                    and not blind
                )
                if not (self.ended and (harmless or never)):
                    found.add(place[1])
        for (key, _), effects in self.effects.items():
            decisions = [effect.decision for effect in effects]
            if Decision.UNKNOWN in decisions and decisions.count(Decision.ACCEPTED) < 2:
                found.add(key or "")
        for place, _, _ in self.all_finals:
            happened = any(w.item.decision in _HAPPENED for w in self.of_place[place])
            if not happened and place not in self.before:
                found.add(place[1])
        return found

    def judge(self) -> tuple[set[Found], set[str]]:
        self.all_finals = list(self.finals())
        self.results_of: dict[str, list[ResultRow]] = defaultdict(list)
        for row in self.results:
            self.results_of[self.messages[row.message_no].order_key].append(row)
        self.had_message: dict[int, set[int]] = defaultdict(set)
        self.deliveries_of: dict[int, list[Delivery]] = defaultdict(list)
        self.deleted_of: dict[str, list[tuple[Delivery, Ack]]] = defaultdict(list)
        for delivery in self.deliveries:
            if delivery.queue is not QueueRole.QUEUE or delivery.invocation_id is None:
                continue
            self.had_message[delivery.message_no or 0].add(delivery.invocation_id)
            self.deliveries_of[delivery.invocation_id].append(delivery)
            ack = self.acks.get(delivery.delivery_id)
            known = delivery.invocation_id in self.invocations
            if ack is not None and ack.outcome is AckOutcome.DELETED and known:
                key = self.messages[delivery.message_no or 0].order_key
                self.deleted_of[key].append((delivery, ack))
        self.by_invocation: dict[int | None, list[_Write]] = defaultdict(list)
        self.by_key: dict[str, list[_Write]] = defaultdict(list)
        for write in self.writes:
            self.by_invocation[write.call.invocation_id].append(write)
            self.by_key[write.key_text].append(write)
        found = {
            (kind, key)
            for key in self.planned.keys() | self.poison
            for kind in self.judge_order(key)
        }
        found |= {*self.judge_claims(), *self.judge_queue(), *self.judge_rest()}
        return found, self.open_questions()


def judge(run: RunInfo, rows: Iterable[Row]) -> tuple[set[Found], set[str]]:
    """The findings, and the keys of the items about which a question is left open."""
    return _Oracle(run, rows).judge()
