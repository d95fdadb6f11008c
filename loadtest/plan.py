"""The plan: which messages are sent, in which order and when, from a seed. Pure.

**Messages.** Each order gets ``copies`` messages with the same details (the first is the
``order``, the others are its ``copy``), in the same bytes unless the shape asks for other
spellings. ``conflicts`` is a share of the orders, each of
which gets one further message with other details, at a random place among its own, the
first included. ``poison`` is a share too, of messages added to the plan: each has an
order key of its own, and the kinds of poison take turns. A share above 0 gives at least
one.

**Arrangement**, shown for the orders a and b with three copies each:

* ``burst``: the messages of one order are adjacent, so that they meet: ``a a a b b b``.
* ``interleaved``: round robin in which chance decides the order of every round:
  ``a b | b a | b a``. With other counts: the messages of one order each take a random
  moment of their own equal share of the run.
* ``spread``: as far apart as possible, the same order in every round: ``a b | a b | a b``.

**Times.** At rate N the message at position i (from 0) is sent i/N seconds after the start;
in a burst all messages of one order share the moment of their first. Without a rate
every message is due at once.

The same arguments give the same plan, on every machine and Python version; its
:meth:`Plan.digest` shows it.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import itemgetter

from analysis.schema import MessageKind, OrderInfo
from loadtest.envelopes import BUCKET, OUTER_POISON, Letter, wrapped
from loadtest.orders import (
    Dice,
    Envelope,
    MessageAttribute,
    OrderShape,
    PoisonKind,
    Value,
    body_text,
    conflicting_values,
    draw_values,
    expected_item,
    message_attributes,
    near_id,
    new_id,
    poison_bodies,
    respelled,
)


class Arrangement(StrEnum):
    BURST = "burst"
    INTERLEAVED = "interleaved"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    message_no: int  # position in the plan, from 1
    order_key: str
    kind: MessageKind
    body: str
    expected_item: str | None  # canonical item text of the details; None for poison
    offset_ns: int  # when to send it, from the start of the run
    attributes: tuple[MessageAttribute, ...] = ()
    group: str | None = None  # of a FIFO queue; None: the order key


@dataclass(frozen=True, slots=True)
class Plan:
    """Messages in the order of sending. Copies share their texts, so a message costs
    little memory beyond its order's."""

    messages: tuple[PlannedMessage, ...]
    objects: Mapping[str, str] = field(default_factory=dict)
    """Key -> content of what must be in the bucket that the messages tell of."""
    order: OrderInfo | None = None
    """What is compared of its items, where only the messages tell it."""

    def for_bucket(self, name: str) -> Plan:
        """The plan with the name of the bucket put in."""
        return replace(
            self,
            messages=tuple(
                replace(message, body=message.body.replace(BUCKET, name))
                for message in self.messages
            ),
        )

    def orders(self) -> int:
        """How many different orders there are, poison not counted."""
        return sum(message.kind is MessageKind.ORDER for message in self.messages)

    def digest(self) -> str:
        """SHA-256 over all rows: equal digests mean equal plans."""
        digest = hashlib.sha256()
        for message in self.messages:
            row: tuple[object, ...] = (
                message.message_no,
                message.order_key,
                message.kind.value,
                message.body,
                message.expected_item,
                message.offset_ns,
            )
            if message.attributes or message.group is not None:
                row += (repr(message.attributes), message.group)
            digest.update(json.dumps(row).encode() + b"\n")
        for key, content in self.objects.items():
            digest.update(json.dumps((key, content)).encode() + b"\n")
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Details:
    """Body and item of one order, or of its conflict; the same object for every copy."""

    order_key: str
    body: str
    expected_item: str | None
    attributes: tuple[MessageAttribute, ...] = ()
    spoiled: PoisonKind | None = None  # of poison: how its envelope is, if that is what is wrong


_Group = list[tuple[MessageKind, _Details]]
"""Messages in the order of sending, as a rule those of one order key."""


def make_plan(
    shape: OrderShape,
    *,
    orders: int,
    copies: int,
    conflicts: float = 0.0,
    poison: float = 0.0,
    rate_per_s: float | None = None,
    arrangement: Arrangement = Arrangement.BURST,
    seed: int = 1,
) -> Plan:
    """The plan for these orders.

    :param orders: before the near ids that ``shape`` adds; at least 1.
    :param copies: messages of one order with the same details, the first included; at least 1.
    :param conflicts: share of the orders, 0 to 1; above 0 only if the shape has conflict fields.
    :param poison: share of the orders, 0 to 1.
    :param rate_per_s: messages a second; None for all at once.
    """
    keys = _order_keys(shape, orders, seed)
    groups = _order_groups(shape, keys, copies, _share(conflicts, len(keys)), seed)
    groups = _with_poison(shape, groups, _share(poison, len(keys)), keys, seed)
    messages = _timed(_arranged(groups, arrangement, seed), rate_per_s, arrangement)
    return _wrapped(shape.envelope, messages, seed)


def _share(fraction: float, count: int) -> int:
    return max(1, int(fraction * count + 0.5)) if fraction > 0 else 0


def _some(dice: Dice, count: int, of: int) -> set[int]:
    numbers = list(range(of))
    dice.shuffle(numbers)
    return set(numbers[:count])


def _order_keys(shape: OrderShape, orders: int, seed: int) -> list[str]:
    """Ids with their near ones right behind, so that a burst brings the two together."""
    dice = Dice(seed, "ids")
    taken: dict[str, None] = {}  # a set that keeps its order
    for _ in range(orders):
        taken[new_id(shape, dice, taken)] = None
    with_near = _some(Dice(seed, "near ids"), _share(shape.near_ids, orders), orders)
    keys: list[str] = []
    nears = 0
    for number, order_key in enumerate(tuple(taken)):
        keys.append(order_key)
        if number in with_near:
            near = near_id(order_key, nears, taken)
            taken[near] = None
            keys.append(near)
            nears += 1
    return keys


def _order_groups(
    shape: OrderShape, keys: list[str], copies: int, conflicts: int, seed: int
) -> list[_Group]:
    dice = Dice(seed, "details")
    conflict_dice = Dice(seed, "conflicts")
    spelling_dice = Dice(seed, "spellings")
    with_conflict = _some(conflict_dice, conflicts, len(keys))
    groups = []
    for number, order_key in enumerate(keys):
        values = draw_values(shape, dice)
        details = _details(shape, order_key, values)
        group = [(MessageKind.ORDER, details)] + [(MessageKind.COPY, details)] * (copies - 1)
        if shape.spellings:
            group[1:] = [
                (kind, replace(copy, body=respelled(copy.body, spelling_dice)))
                for kind, copy in group[1:]
            ]
        if number in with_conflict:
            other = conflicting_values(shape, values, conflict_dice)
            conflict = (MessageKind.CONFLICT, _details(shape, order_key, other))
            group.insert(conflict_dice.below(copies + 1), conflict)
        groups.append(group)
    return groups


def _details(shape: OrderShape, order_key: str, values: Mapping[str, Value]) -> _Details:
    body = body_text(shape, order_key, values)
    attributes = message_attributes(shape, order_key, values)
    return _Details(order_key, body, expected_item(shape, body), attributes)


def _with_poison(
    shape: OrderShape, groups: list[_Group], poison: int, keys: list[str], seed: int
) -> list[_Group]:
    """The groups with poison messages at random places among them."""
    dice = Dice(seed, "poison")
    attribute_dice = Dice(seed, "poison attributes")
    taken = set(keys)
    # The turns begin anywhere: few poison messages are then not the same kinds at every seed.
    turn = dice.below(len(PoisonKind))
    placed = [(float(number), group) for number, group in enumerate(groups)]
    for number in range(poison):
        order_key = new_id(shape, dice, taken)
        taken.add(order_key)
        kinds = list(poison_bodies(shape, order_key, dice).items())
        kind, bodies = kinds[(turn + number) % len(kinds)]
        # One way more: the envelope is spoiled, not what is in it.
        outer = shape.envelope is not None and kind in OUTER_POISON
        way = dice.below(len(bodies) + outer)
        details = _Details(
            order_key,
            bodies[way % len(bodies)],
            None,
            message_attributes(shape, order_key, draw_values(shape, attribute_dice)),
            kind if way == len(bodies) else None,
        )
        message = (MessageKind.POISON, details)
        placed.append((dice.fraction() * len(groups), [message]))
    placed.sort(key=itemgetter(0))
    return [group for _, group in placed]


def _arranged(groups: list[_Group], arrangement: Arrangement, seed: int) -> _Group:
    if arrangement is Arrangement.BURST:
        return [message for group in groups for message in group]
    dice = Dice(seed, "arrangement")
    placed = []
    for number, group in enumerate(groups):
        for at, message in enumerate(group):
            # The group's at-th share of the run, and where in it.
            within = number / len(groups) if arrangement is Arrangement.SPREAD else dice.fraction()
            placed.append(((at + within) / len(group), message))
    placed.sort(key=itemgetter(0))
    return [message for _, message in placed]


def _timed(
    messages: _Group, rate_per_s: float | None, arrangement: Arrangement
) -> Iterator[tuple[PlannedMessage, PoisonKind | None]]:
    position = 0  # the one that sets the time
    previous = None
    for message_no, (kind, details) in enumerate(messages, 1):
        if arrangement is not Arrangement.BURST or details.order_key != previous:
            position = message_no - 1
        previous = details.order_key
        message = PlannedMessage(
            message_no,
            details.order_key,
            kind,
            details.body,
            details.expected_item,
            sent_after_ns(position, rate_per_s),
            details.attributes,
        )
        yield message, details.spoiled


def sent_after_ns(position: int, rate_per_s: float | None) -> int:
    """When the message at this position (from 0) is sent, from the start of the run."""
    return 0 if rate_per_s is None else round(position * 1_000_000_000 / rate_per_s)


def _wrapped(
    envelope: Envelope | None,
    messages: Iterable[tuple[PlannedMessage, PoisonKind | None]],
    seed: int,
) -> Plan:
    if envelope is None:
        return Plan(tuple(message for message, _ in messages))
    variants: dict[str, dict[str, int]] = defaultdict(dict)  # order key -> content -> number
    objects: dict[str, str] = {}
    outside: list[PlannedMessage] = []
    for message, spoiled in messages:
        contents = variants[message.order_key]
        letter = Letter(
            message.body,
            message.message_no,
            message.order_key,
            seed,
            message.offset_ns,
            contents.setdefault(message.body, len(contents) + 1),
            message.attributes,
            spoiled,
        )
        made = wrapped(envelope, letter)
        if made.object_key is not None:
            objects[made.object_key] = message.body
        # Where they are in the envelope, they are not beside it.
        outside.append(replace(message, body=made.body, attributes=()))
    return Plan(tuple(outside), objects)
