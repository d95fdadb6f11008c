"""Evidence of known truth: a simulated store, queue and handlers under a seeded scheduler.

A *world* is one or two orders (and perhaps a poison message) with their messages,
environments and faults; nothing in it touches another world. :func:`evidence_set` puts many
worlds into one run, because a run costs more to judge than to make.

* The store decides puts, updates and deletes under conditions as DynamoDB does, one at a time.
* The queue hides, redelivers and dead-letters; a delete can fail, a message can come again
  while it is at work, the driver can have sent it twice, and it can be redriven. Somebody
  deletes the item of an order that was acknowledged.
* The handlers are correct ones, in several styles (:class:`Style`). Some keep all that they
  have in one table: orders, their lines, a counter, and guards.
* Half of the runs declare a side effect: a record in a table of its own, made under a
  condition, so that it happens once whatever is repeated.
* Calls meet faults; every step of every invocation is put in order at random, with times that
  may be equal; what the record says of a call without an answer is also drawn at random.

A :class:`Plant` makes one message, or the end of one world, wrong in one known way. It says
which findings must come of it; everything else must come out clean.

Pure: the same arguments give the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from analysis.findings import FindingKind
from analysis.schema import (
    Ack,
    AckOutcome,
    Action,
    Call,
    CallItem,
    Decision,
    Delivery,
    Effect,
    EffectInfo,
    ExpectInfo,
    Fault,
    FaultRuleInfo,
    Invocation,
    ItemRow,
    ItemsInfo,
    Message,
    MessageKind,
    OrderInfo,
    Outcome,
    Phase,
    PlanInfo,
    QueueRole,
    Result,
    ResultInfo,
    ResultRow,
    Row,
    RunInfo,
    RunStatus,
    TableInfo,
    TableRole,
    item_text,
)

Item = dict[str, Any]
Steps = Generator[None, None, Any]
Condition = tuple[str, Callable[[Item | None], bool]]
Found = tuple[FindingKind, str]
"""What must be reported: the kind, and the order key; the item's key where there is no order."""

TABLES = (
    TableInfo("orders", TableRole.ORDERS, "id"),
    TableInfo("claims", TableRole.ORDERS, "id", complete_when={"status": ["COMPLETED"]}),
    TableInfo("sorted", TableRole.ORDERS, "id", sort="sk"),
    TableInfo(
        "single",
        TableRole.ORDERS,
        "id",
        sort="sk",
        items=(
            ItemsInfo(TableRole.ORDERS, "ORDER#{id}", "META"),
            ItemsInfo(TableRole.GUARD, "GUARD#*", None, {"status": ["COMPLETED"]}),
        ),
    ),
    TableInfo("guard", TableRole.GUARD, "id", complete_when={"status": ["COMPLETED"]}),
    TableInfo("reference", TableRole.REFERENCE, "id"),
    TableInfo("receipts", TableRole.OTHER, "id"),
)
EFFECT = EffectInfo("dynamodb", "PutItem", "receipts", "id", "dynamodb:PutItem receipts")
VISIBILITY_TIMEOUT_S = 1
_ATTEMPTS = 3  # of one SDK call
PATIENCE = 400  # steps that a planted handler waits for its moment
ABSENT: Condition = ("attribute_not_exists(id)", lambda item: item is None)


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same for a whole run."""

    batch_size: int = 1  # above 1 only with batchItemFailures: else one refusal fails them all
    report_failures: bool = False  # batchItemFailures are read
    max_receives: int = 3
    drop_poison: bool = False
    effects: bool = False
    status: RunStatus = RunStatus.FINISHED

    @property
    def cut(self) -> bool:
        return self.status is not RunStatus.FINISHED


@dataclass(frozen=True, slots=True)
class Style:
    """How the correct handler of an order is written."""

    way: str = "insert"  # one conditional insert; "claim" then complete; "guard" beside the item
    sort_key: bool = False  # the table has a sort key
    single: bool = False  # one table for everything
    reads_first: bool = False
    steps: int = 0  # further writes after the insert
    recognises: bool = False  # knows its own earlier write, and says processed
    sets_aside: bool = False  # puts what it refuses into the dead-letter queue itself
    answers: bool = True  # returns an object per message

    @property
    def table(self) -> str:
        if self.single:
            return "single"
        return "claims" if self.way == "claim" else "sorted" if self.sort_key else "orders"


@dataclass(slots=True)
class Order:
    key: str
    style: Style
    plant: Plant | None = None
    poison: bool = False
    conflicts: bool = False
    settled: int = 0  # physical messages that came to their end
    physical: int = 0

    @property
    def item_key(self) -> Item:
        if self.style.single:
            return {"id": {"S": f"ORDER#{self.key}"}, "sk": {"S": "META"}}
        key = {"id": {"S": self.key}}
        return key | {"sk": {"S": "order"}} if self.style.table == "sorted" else key

    @property
    def reference(self) -> tuple[str, str]:
        """An item that nobody may change."""
        return "reference", item_text({"id": {"S": f"reference of {self.key}"}})

    @property
    def old_item(self) -> tuple[str, str]:
        """An item that was there before the run, and is none of its orders."""
        return "orders", item_text({"id": {"S": f"older than {self.key}"}})


@dataclass(slots=True, eq=False)
class Physical:
    """One message in the queue; a message that was sent twice is two of them."""

    sqs_id: str
    message: Message
    order: Order
    planted: bool
    receives: int = 0
    in_flight: int = 0
    visible: bool = True
    gone: bool = False

    @property
    def quantity(self) -> int:
        return int(json.loads(self.message.body)["quantity"])


class Refused(Exception):  # noqa: N818
    """The handler raises for this message."""


class CallFailed(Exception):  # noqa: N818
    """The SDK gave up."""


class Killed(Exception):  # noqa: N818
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class NotShown(Exception):  # noqa: N818
    """The planted bug had no occasion to show; the world is made again with another seed."""


@dataclass(slots=True)
class Ids:
    counted: dict[str, int] = field(default_factory=dict)

    def next(self, name: str) -> int:
        self.counted[name] = self.counted.get(name, 0) + 1
        return self.counted[name]


@dataclass(slots=True)
class Context:
    """What one invocation has at hand."""

    world: World
    invocation_id: int | None
    fault: str | None = None
    fault_at: int = 0  # which call meets it
    fault_times: int = 1  # attempts in a row that meet it
    calls: int = 0
    last_call: Call | None = None
    early_acks: set[str] = field(default_factory=set)
    wrote: bool = False  # and did not delete it again
    recorded: bool = False  # what the store did is on record even where its reply is lost
    names_all: bool = False  # the answer names every message in batchItemFailures

    def write(
        self,
        table: str,
        key: Item,
        action: Action,
        change: Callable[[Item | None], Item | None],
        condition: Condition | None = None,
        *,
        fails: bool = False,
        spurious: Decision | None = None,
    ) -> Generator[None, None, tuple[Decision, Item | None]]:
        """One SDK call: the decision and the item before it.

        ``fails``: the store answers with an error of its own. ``spurious``: the store decides
        against its own condition, as if nothing were there.
        """
        world, place = self.world, (table, item_text(key))
        number, self.calls = self.calls, self.calls + 1
        sdk_id = f"sdk-{world.ids.next('sdk')}"
        for attempt in range(1, _ATTEMPTS + 1):
            fault = self.fault if self.fault_at == number and attempt <= self.fault_times else None
            call = self.sent("dynamodb", f"{action.title()}Item", table, attempt, sdk_id)
            row = CallItem(call.call_id, *place, action, condition and condition[0])
            world.keep(row)
            yield
            if fault in ("throttle", "lost-request", "crash-before-call") or fails:
                told = fault not in ("lost-request", "crash-before-call")
                if told or world.rng.random() < 0.5:
                    world.keep(replace(row, decision=Decision.FAILED))
                self.answered(call, Decision.FAILED if told else Decision.UNKNOWN, fault)
                if fault == "crash-before-call":
                    raise Killed(world.death())
                continue
            before = None if spurious else world.store.get(place)
            accepted = spurious is not Decision.REJECTED and (
                spurious is not None or condition is None or condition[1](before)
            )
            decision = Decision.ACCEPTED if accepted else Decision.REJECTED
            after = change(before) if accepted else before
            if accepted:
                world.put(place, after)
            known = replace(
                row, decision=decision, before=item_text(before), after=item_text(after)
            )
            in_single = key["id"]["S"].startswith("ORDER#") and key.get("sk") == {"S": "META"}
            is_result = table in ("orders", "claims", "sorted") or in_single
            if accepted and is_result:
                is_claim = (after or {}).get("status") == {"S": "CLAIMED"}
                self.wrote = after is not None and not is_claim
            yield
            if fault in ("lost-reply", "crash-after-call"):
                what = world.rng.random()
                if what < 0.5 or self.recorded:
                    world.keep(known)
                elif what < 0.6 and action is Action.PUT:
                    world.keep(replace(row, after=item_text(change(None))))
                self.answered(call, Decision.UNKNOWN, fault)
                if fault == "crash-after-call":
                    raise Killed(world.death())
                continue
            world.keep(known)
            self.answered(call, decision, None)
            yield
            return decision, before
        raise CallFailed

    def put(
        self, table: str, item: Item, condition: Condition | None = None, **more: Any
    ) -> Generator[None, None, tuple[Decision, Item | None]]:
        names = ("id", "sk") if table in ("sorted", "single") else ("id",)
        key = {name: item[name] for name in names}
        return (yield from self.write(table, key, Action.PUT, lambda _: item, condition, **more))

    def update(
        self, table: str, key: Item, changes: Item, condition: Condition | None = None
    ) -> Generator[None, None, tuple[Decision, Item | None]]:
        return (
            yield from self.write(
                table, key, Action.UPDATE, lambda item: (item or key) | changes, condition
            )
        )

    def delete(
        self, table: str, key: Item, condition: Condition | None = None
    ) -> Generator[None, None, tuple[Decision, Item | None]]:
        return (yield from self.write(table, key, Action.DELETE, lambda _: None, condition))

    def read(self, table: str, key: Item) -> Generator[None, None, Item | None]:
        """An eventually consistent read: it may show what was there one write ago."""
        world, place = self.world, (table, item_text(key))
        self.calls += 1
        call = self.sent("dynamodb", "GetItem", table, 1, f"sdk-{world.ids.next('sdk')}")
        yield
        seen = world.store.get(place)
        if world.rng.random() < 0.2 and place in world.earlier:
            seen = world.earlier[place]
        yield
        image = item_text(seen)
        world.keep(
            CallItem(call.call_id, *place, Action.READ, None, Decision.ACCEPTED, None, image, image)
        )
        self.answered(call, Decision.ACCEPTED, None)
        return seen

    def effect(
        self, physical: Physical, condition: Condition | None = ABSENT, *, fails: bool = False
    ) -> Steps:
        """The side effect of an order, under its condition at most once however often asked."""
        receipt = {"id": {"S": physical.order.key}, "kind": {"S": "receipt"}}
        yield from self.put("receipts", receipt, condition, fails=fails)

    def set_aside(self, physical: Physical) -> Steps:
        """Send the body to the dead-letter queue."""
        world = self.world
        call = self.sent("sqs", "SendMessage", "dlq", 1, f"sdk-{world.ids.next('sdk')}")
        yield
        same = [m.message_no for m in world.messages if m.body == physical.message.body]
        world.tasks.append(
            world.arrive_dead(f"s{world.ids.next('sqs')}", world.rng.choice(same), 1)
        )
        self.answered(call, Decision.ACCEPTED, None)

    def sent(self, service: str, operation: str, resource: str, attempt: int, sdk_id: str) -> Call:
        world = self.world
        call = Call(
            world.ids.next("call"),
            self.invocation_id,
            attempt,
            sdk_id,
            service,
            operation,
            resource,
            None,
            world.now,
        )
        self.last_call = call
        world.keep(call)
        return call

    def answered(self, call: Call, decision: Decision, fault: str | None) -> None:
        world = self.world
        silent = decision is Decision.UNKNOWN and world.rng.random() < 0.5
        self.last_call = replace(
            call, answered_at=None if silent else world.now, decision=decision, fault=fault
        )
        world.keep(self.last_call)


@dataclass(slots=True, eq=False)
class World:
    """One simulated world. ``rows`` holds every version of every row, in order of writing."""

    ids: Ids
    setup: Setup
    rng: Random
    number: int
    now: int = 0
    rows: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)
    store: dict[tuple[str, str], Item] = field(default_factory=dict)
    earlier: dict[tuple[str, str], Item | None] = field(default_factory=dict)
    final: dict[tuple[str, str], Item] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    queue: list[Physical] = field(default_factory=list)
    tasks: list[Steps] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    over: set[str] = field(default_factory=set)  # invocations that have ended
    expected: set[Found] = field(default_factory=set)

    # --- record and store ---

    def fired(self, name: str, **where: Any) -> None:
        """Keep the row of a fault that was carried out."""
        row = Fault(self.ids.next("fault"), 1 + RULES.index(name), name, self.now, 0, *[None] * 6)
        self.keep(replace(row, **where))

    def keep(self, row: Row) -> None:
        key = (row.TABLE, *(getattr(row, name) for name in row.KEY))
        self.rows.setdefault(key, []).append(row)
        if isinstance(row, CallItem) and row.resource == "receipts":
            order_key = json.loads(row.item_key)["id"]["S"]
            self.keep(Effect(row.call_id, 1, 1, order_key, row.decision))

    def put(self, place: tuple[str, str], item: Item | None) -> None:
        self.earlier[place] = self.store.pop(place, None)
        if item is not None:
            self.store[place] = item

    def stored(self, order: Order) -> Item | None:
        """The order's item, once it is its result."""
        item = self.store.get((order.style.table, item_text(order.item_key)))
        done = order.style.way != "claim" or (item or {}).get("status") == {"S": "COMPLETED"}
        return item if done else None

    def death(self) -> Outcome:
        return self.rng.choice((Outcome.CRASHED, Outcome.TIMED_OUT))

    # --- the plan ---

    def plan(self, plants: Sequence[Plant | None]) -> None:
        rng = self.rng
        self.idle = [self.number * 4 + slot for slot in range(1, 4)]
        stem = f"{self.number}-"
        names = rng.choice((("A", "B"), ("a", "A"), ("A1", "A"), ("01", "1")))
        for name, plant in zip(names, plants, strict=False):
            style = plant.style(rng) if plant else _style(rng)
            order = Order(stem + name, style, plant)
            order.poison = plant is not None and plant.message is MessageKind.POISON
            self.orders.append(order)
            self.plan_order(order)
        if rng.random() < 0.15:
            order = Order(f"{stem}poison", _style(rng), poison=True)
            self.orders.append(order)
            self.plan_message(order, MessageKind.POISON, 0, planted=False)
        for order in self.orders:
            for place, attributes in (
                (order.reference, {"note": {"S": "keep unchanged"}}),
                (order.old_item, {"quantity": {"N": "3"}}),
            ):
                self.store[place] = json.loads(place[1]) | attributes
                self.keep(ItemRow(*place, item_text(self.store[place]), Phase.BEFORE))

    def plan_order(self, order: Order) -> None:
        rng, plant = self.rng, order.plant
        if order.poison:
            self.plan_message(order, MessageKind.POISON, 0, planted=True)
            return
        quantity = rng.randint(1, 4)
        if plant is None or not plant.every:
            if plant is None or plant.gate != "alone":
                count = rng.randint(1, 3)
                for copy in range(count):
                    kind = MessageKind.COPY if copy else MessageKind.ORDER
                    self.plan_message(order, kind, quantity, planted=False)
                may_conflict = plant is None or plant.conflicts
                order.conflicts = may_conflict and rng.random() < 0.25
                for _ in range(rng.randint(1, 2) if order.conflicts else 0):
                    self.plan_message(order, MessageKind.CONFLICT, quantity + 1, planted=False)
            if plant is not None and plant.message is not None:
                other = plant.message is MessageKind.CONFLICT
                self.plan_message(order, plant.message, quantity + other, planted=True)
        else:
            for copy in range(rng.randint(1, 3)):
                kind = MessageKind.COPY if copy else MessageKind.ORDER
                self.plan_message(order, kind, quantity, planted=True)

    def plan_message(
        self, order: Order, kind: MessageKind, quantity: int, *, planted: bool
    ) -> None:
        number = self.ids.next("message")
        details = item_text(_item(order.key, quantity) | {"id": order.item_key["id"]})
        body = json.dumps({"id": order.key, "quantity": quantity})
        if kind is MessageKind.POISON:
            details, body = "", f"poison {order.key}"
        message = Message(number, order.key, kind, body, details or None, 0)
        self.messages.append(message)
        self.keep(message)
        self.tasks.append(self.send(order, message, planted=planted))

    # --- queue ---

    def send(self, order: Order, message: Message, *, planted: bool) -> Steps:
        calm = order.plant is not None
        order.physical += 1  # announced, so that nobody thinks the order is settled
        yield
        sent_at, times = self.now, 2 if not calm and self.rng.random() < 0.08 else 1
        order.physical += times - 1
        for _ in range(times):
            yield
            physical = Physical(f"s{self.ids.next('sqs')}", message, order, planted)
            self.queue.append(physical)
        confirmed = calm or self.rng.random() < 0.98
        self.keep(
            replace(
                message,
                sent_at=sent_at,
                accepted_at=self.now if confirmed else None,
                sqs_message_id=self.queue[-1].sqs_id if confirmed else None,
                attempts=times,
                error=None if confirmed else "no reply",
            )
        )

    def may_receive(self, physical: Physical) -> bool:
        plant, order = physical.order.plant, physical.order
        if not physical.visible or physical.gone:
            return False
        if plant is None or plant.every:
            return True
        if not physical.planted:
            return plant.gate != "first" or any(
                p.planted and p.gone for p in self.queue if p.order is order
            )
        if plant.gate in ("first", "alone", "any"):
            return True
        stored = self.stored(order)
        if stored is None or (plant.gate == "last" and order.settled < order.physical - 1):
            return False
        # A copy of what was stored first, whatever the plan called it; or a conflict with it.
        same = stored["quantity"] == {"N": str(physical.quantity)}
        return same is not (plant.message is MessageKind.CONFLICT)

    def receive(self, ready: list[Physical]) -> None:
        rng = self.rng
        rng.shuffle(ready)
        batch = ready[: rng.randint(1, self.setup.batch_size)]
        solo = [p for p in batch if p.planted]
        if solo:
            # What a planted handler answers is not mixed with what others do in its batch.
            batch = solo[:1]
            self.now += 1  # what it waited for lies behind it
        environment = self.idle.pop(rng.randrange(len(self.idle)))
        for physical in batch:
            physical.visible = False
            physical.receives += 1
            physical.in_flight += 1
            if physical.order.plant is None and rng.random() < 0.08:
                self.tasks.append(self.expire(physical))
        skipped = not solo and rng.random() < 0.04
        twice = not solo and not skipped and len(batch) < self.setup.batch_size
        if twice and rng.random() < 0.1:
            batch = [*batch, batch[-1]]
            batch[-1].in_flight += 1
        invocation_id = None if skipped else self.ids.next("invocation")
        deliveries = [self.deliver(physical, invocation_id) for physical in batch]
        if invocation_id is None:
            self.tasks.append(self.skip(environment, batch, deliveries))
            for delivery in deliveries:
                self.fired(
                    "receive-without-run",
                    message_no=delivery.message_no,
                    receive=delivery.receive_count,
                    delivery_id=delivery.delivery_id,
                )
        else:
            self.tasks.append(self.invoke(environment, batch, deliveries, invocation_id))

    def expire(self, physical: Physical) -> Steps:
        """The visibility timeout passes while the message is at work."""
        for _ in range(self.rng.randint(1, 12)):
            yield
        if physical.in_flight:
            self.come_back(physical)

    def come_back(self, physical: Physical) -> None:
        if physical.gone or physical.visible:
            return
        if physical.receives < self.setup.max_receives:
            physical.visible = True
        elif not (physical.planted and physical.order.plant and physical.order.plant.stays):
            self.end(physical)
            self.tasks.append(self.bury(physical))

    def land(self, physical: Physical) -> None:
        """An invocation is over and its message was not deleted."""
        physical.in_flight -= 1
        if not physical.in_flight:
            self.come_back(physical)

    def end(self, physical: Physical) -> None:
        if not physical.gone:
            physical.gone = True
            physical.order.settled += 1
            # What waits for a planted message comes after it, not at the same time.
            self.now += physical.planted

    def bury(self, physical: Physical) -> Steps:
        rng = self.rng
        # A queue that renames and a handler that sets aside look alike where bodies are equal.
        may_rename = not any(order.style.sets_aside for order in self.orders)
        renamed = may_rename and physical.order.plant is None and rng.random() < 0.1
        sqs_id = f"s{self.ids.next('sqs')}" if renamed else physical.sqs_id
        number, receives = physical.message.message_no, physical.receives + 1
        letter = yield from self.arrive_dead(sqs_id, number, receives)
        if physical.order.plant is None and rng.random() < 0.15:
            yield from self.redrive(physical, letter, renamed=renamed)
        elif physical.order.plant is None and not renamed and rng.random() < 0.1:
            yield
            physical.order.physical += 1
            self.now += 1
            self.queue.append(
                Physical(f"s{self.ids.next('sqs')}", physical.message, physical.order, False)
            )

    def redrive(self, physical: Physical, letter: int, *, renamed: bool) -> Steps:
        """The dead letter is moved back, under a new id or its old one. A queue that renames
        what it moves to the dead letters does not give an id twice when it moves it back."""
        yield
        self.fired("redrive", message_no=physical.message.message_no, delivery_id=letter)
        sqs_id = physical.sqs_id
        if self.rng.random() < 0.7 or renamed:
            sqs_id = f"s{self.ids.next('sqs')}"
        physical.order.physical += 1
        self.now += 1
        yield
        self.queue.append(Physical(sqs_id, physical.message, physical.order, False))

    def wipe(self, physical: Physical) -> Steps:
        """Somebody deletes the item of an order that was acknowledged."""
        yield
        order = physical.order
        place = order.style.table, item_text(order.item_key)
        before = self.store.get(place)
        if self.stored(order) is None and before is not None:
            return  # a claim; what is not there any more was deleted by another one
        call_id = self.ids.next("call")
        call = Call(
            call_id, None, 1, None, "dynamodb", "DeleteItem", place[0], None, self.now, self.now
        )
        self.put(place, None)
        self.keep(replace(call, decision=Decision.ACCEPTED, fault="item-deleted"))
        self.keep(
            CallItem(
                call_id,
                *place,
                Action.DELETE,
                None,
                Decision.ACCEPTED,
                None,
                item_text(before),
                item_text(None),
            )
        )
        if before is not None:
            number = physical.message.message_no
            self.fired("item-deleted", message_no=number, call_id=call_id)

    def arrive_dead(self, sqs_id: str, message_no: int, receives: int) -> Steps:
        yield
        delivery_id = self.ids.next("delivery")
        self.keep(
            Delivery(
                delivery_id, QueueRole.DEAD_LETTER, sqs_id, message_no, receives, self.now, None
            )
        )
        self.keep(Ack(delivery_id, self.now, AckOutcome.DEAD_LETTERED))
        return delivery_id

    def deliver(self, physical: Physical, invocation_id: int | None) -> Delivery:
        delivery = Delivery(
            self.ids.next("delivery"),
            QueueRole.QUEUE,
            physical.sqs_id,
            physical.message.message_no,
            physical.receives,
            self.now,
            invocation_id,
        )
        self.keep(delivery)
        return delivery

    def skip(self, environment: int, batch: list[Physical], deliveries: list[Delivery]) -> Steps:
        """Received, and never given to the handler."""
        yield
        self.idle.append(environment)
        for physical, delivery in zip(batch, deliveries, strict=True):
            self.keep(Ack(delivery.delivery_id, self.now, AckOutcome.RETURNED))
            self.land(physical)

    # --- invocations ---

    def invoke(
        self,
        environment: int,
        batch: list[Physical],
        deliveries: list[Delivery],
        invocation_id: int,
    ) -> Steps:
        rng, report = self.rng, self.setup.report_failures
        planted = batch[0].order.plant if batch[0].planted else None
        yield
        begun = Invocation(invocation_id, f"r{invocation_id}", environment, False, self.now)
        self.keep(begun)
        context = Context(self, invocation_id)
        if planted is None and rng.random() < 0.35:
            context.fault, context.fault_at = rng.choice(_FAULTS), rng.choice((0, 0, 1, 2))
            context.fault_times = rng.randint(1, _ATTEMPTS)
        answers: dict[str, Item | None] = {}
        failed: list[Physical] = []
        outcome = Outcome.RETURNED
        try:
            for physical in batch:
                try:
                    handle = planted.script if planted and planted.script else correct
                    context.wrote = False
                    said = yield from handle(context, physical)
                    if self.setup.effects and self.owes(context, physical, planted):
                        yield from context.effect(physical)
                    if isinstance(said, str):
                        said = _answer(physical, said)
                    answers[physical.sqs_id] = said if physical.order.style.answers else None
                except (Refused, CallFailed):
                    failed.append(physical)
                    if len(batch) == 1 and not report:
                        break
            if context.fault == "crash-before-answer":
                self.fired(context.fault, invocation_id=invocation_id)
                raise Killed(self.death())
            if planted is None and rng.random() < 0.1:
                # What excuses nothing.
                self.fired(
                    rng.choice(("cold-start", "clock", "freeze")), invocation_id=invocation_id
                )
        except Killed as killed:
            outcome = killed.outcome
        yield
        names = [p.sqs_id for p in (batch if context.names_all else failed)]
        if outcome is Outcome.RETURNED and failed and not report:
            outcome = Outcome.RAISED
        response = self.response(batch, answers, names) if outcome is Outcome.RETURNED else None
        self.keep(replace(begun, ended_at=self.now, outcome=outcome, response=response))
        self.over.add(str(invocation_id))
        self.idle.append(environment)
        for physical, delivery in zip(batch, deliveries, strict=True):
            number = physical.message.message_no
            refused = outcome is not Outcome.RETURNED or physical in failed
            answer = answers.get(physical.sqs_id)
            if refused:
                self.keep(ResultRow(invocation_id, number, Result.FAILED, "failed"))
            elif answer is not None:
                said = Result.PROCESSED if answer["processed"] else Result.DUPLICATE
                self.keep(ResultRow(invocation_id, number, said, json.dumps(answer)))
            if physical.sqs_id in context.early_acks:
                physical.in_flight -= 1
                self.end(physical)
            elif refused:
                self.keep(Ack(delivery.delivery_id, self.now, AckOutcome.RETURNED))
                self.land(physical)
            else:
                self.tasks.append(self.acknowledge(physical, delivery))

    def owes(self, context: Context, physical: Physical, planted: Plant | None) -> bool:
        """Whether the effect is made here: the order is stored, or was just now, in any place."""
        if physical.order.poison or (planted is not None and not planted.effect):
            return False
        return context.wrote or self.stored(physical.order) is not None

    def response(
        self, batch: list[Physical], answers: dict[str, Item | None], names: list[str]
    ) -> str | None:
        given = {sqs_id: answer for sqs_id, answer in answers.items() if answer is not None}
        if self.setup.report_failures or names:
            failures = [{"itemIdentifier": name} for name in names]
            return json.dumps({"batchItemFailures": failures} | given)
        if len(batch) == 1:
            return json.dumps(answers.get(batch[0].sqs_id))
        return json.dumps(given)

    def acknowledge(self, physical: Physical, delivery: Delivery) -> Steps:
        yield
        if physical.order.plant is None and self.rng.random() < 0.08:
            self.keep(Ack(delivery.delivery_id, self.now, AckOutcome.DELETE_FAILED))
            self.land(physical)
            return
        self.keep(Ack(delivery.delivery_id, self.now, AckOutcome.DELETED))
        physical.in_flight -= 1
        self.end(physical)
        order = physical.order
        # A later step would make a new item, of which only the step is there.
        alone = order.plant is None and not order.poison and not order.style.steps
        if alone and self.rng.random() < 0.06:
            self.tasks.append(self.wipe(physical))

    # --- time ---

    def run(self, cut: int | None) -> None:
        """Let everything happen, one step at a time; ``cut``: stop after so many steps."""
        rng, steps = self.rng, 0
        while cut is None or steps < cut:
            steps += 1
            ready = [p for p in self.queue if self.may_receive(p)] if self.idle else []
            if not self.tasks and not ready:
                break
            self.now += rng.choice((0, 0, 1, 1, 2))
            if ready and (not self.tasks or rng.random() < 0.3):
                self.receive(ready)
                continue
            task = rng.randrange(len(self.tasks))
            if next(self.tasks[task], self) is self:
                # Swap and pop: the order of the tasks means nothing.
                self.tasks[task] = self.tasks[-1]
                self.tasks.pop()
        self.final = dict(self.store)

    def close(self) -> None:
        if self.setup.status is not RunStatus.RUNNING:
            for place, item in self.final.items():
                self.keep(ItemRow(*place, item_text(item), Phase.AFTER))


RULES = (
    "redrive",
    "item-deleted",
    "receive-without-run",
    "crash-before-answer",
    "cold-start",
    "clock",
    "freeze",
)
_FAULTS = (
    "lost-reply",
    "lost-reply",
    "lost-request",
    "throttle",
    "crash-before-call",
    "crash-after-call",
    "crash-before-answer",
)


def _item(key: str, quantity: int) -> Item:
    return {"id": {"S": key}, "quantity": {"N": str(quantity)}}


def _answer(physical: Physical, word: str) -> Item:
    return {
        "id": physical.order.key,
        "quantity": physical.quantity,
        "processed": word == "processed",
        "duplicate": word == "duplicate",
    }


def _style(rng: Random) -> Style:
    way = rng.choice(("insert", "insert", "insert", "claim", "guard"))
    single = way != "claim" and rng.random() < 0.25
    return Style(
        way,
        sort_key=way == "insert" and not single and rng.random() < 0.2,
        single=single,
        reads_first=rng.random() < 0.3,
        steps=rng.randint(0, 2),
        recognises=rng.random() < 0.3,
        sets_aside=rng.random() < 0.2,
        answers=rng.random() < 0.8,
    )


# --- correct handlers -----------------------------------------------------------------


def correct(context: Context, physical: Physical) -> Steps:
    """Store the order of one message, recognise a copy, refuse what it must not take."""
    order = physical.order
    if order.poison:
        return (yield from _refuse(context, physical))
    match order.style.way:
        case "claim":
            return (yield from _claim(context, physical))
        case "guard":
            return (yield from _guard(context, physical))
    return (yield from _insert(context, physical))


def _refuse(context: Context, physical: Physical) -> Steps:
    if not physical.order.style.sets_aside:
        raise Refused
    yield from context.set_aside(physical)
    return None


def fresh(context: Context, physical: Physical, **attributes: str) -> Item:
    order = physical.order
    item = _item(order.key, physical.quantity) | order.item_key
    item |= {name: {"S": value} for name, value in attributes.items()}
    return item | {"by": {"S": physical.sqs_id}, "invocation": {"S": str(context.invocation_id)}}


def _compare(context: Context, physical: Physical, stored: Item) -> Steps:
    if stored.get("quantity") != {"N": str(physical.quantity)}:
        return (yield from _refuse(context, physical))
    me = {"S": str(context.invocation_id)}
    own = stored.get("by") == {"S": physical.sqs_id} and (
        physical.order.style.recognises or stored.get("invocation") == me
    )
    return "processed" if own else "duplicate"


def _insert(context: Context, physical: Physical) -> Steps:
    order, style = physical.order, physical.order.style
    if style.reads_first:
        seen = yield from context.read(style.table, order.item_key)
        if seen is not None:
            return (yield from _compare(context, physical, seen))
    item = fresh(context, physical, status="NEW")
    decision, old = yield from context.put(style.table, item, ABSENT)
    if decision is Decision.REJECTED and old is not None:
        return (yield from _compare(context, physical, old))
    if style.single:
        # Its other items: one of the order's own, and one that all orders share.
        yield from context.put("single", order.item_key | {"sk": {"S": "LINE#1"}})
        total = {"id": {"S": "TOTALS"}, "sk": {"S": "META"}}
        yield from context.update("single", total, {"count": {"N": str(context.world.now)}})
    for step in range(style.steps):
        yield from context.update(style.table, order.item_key, {"status": {"S": f"STEP{step}"}})
    return "processed"


def free_or_expired(world: World) -> Condition:
    """A lease that outlives every invocation: it has expired when its owner is over."""

    def free(item: Item | None) -> bool:
        return item is None or (
            item["status"] == {"S": "CLAIMED"} and item["invocation"]["S"] in world.over
        )

    return "attribute_not_exists(id) OR (status = CLAIMED AND expires_at < 0)", free


def _mine(context: Context) -> Condition:
    me = {"S": str(context.invocation_id)}
    return (
        f"invocation = {context.invocation_id} AND status = CLAIMED",
        lambda item: (
            item is not None and item["invocation"] == me and item["status"] == {"S": "CLAIMED"}
        ),
    )


def _claim(context: Context, physical: Physical) -> Steps:
    order, me = physical.order, {"S": str(context.invocation_id)}
    claim = fresh(context, physical, status="CLAIMED")
    decision, old = yield from context.put("claims", claim, free_or_expired(context.world))
    if decision is Decision.REJECTED and old is not None:
        if old["status"] == {"S": "COMPLETED"}:
            return (yield from _compare(context, physical, old))
        if old["invocation"] != me or old["by"] != {"S": physical.sqs_id}:
            raise Refused  # another one is at work on it
    done = {"status": {"S": "COMPLETED"}}
    try:
        decision, old = yield from context.update("claims", order.item_key, done, _mine(context))
    except CallFailed:
        if context.world.rng.random() < 0.5:
            yield from context.delete("claims", order.item_key, _mine(context))
        raise
    if decision is Decision.REJECTED and (old is None or old["invocation"] != me):
        raise Refused
    return "processed"


def _guard(context: Context, physical: Physical) -> Steps:
    """A record of its own says who works on the order; the item needs no condition then."""
    order, me = physical.order, {"S": str(context.invocation_id)}
    key, guards = {"id": {"S": f"digest-{hash_text(order.key)}"}}, "guard"
    if order.style.single:
        key, guards = {"id": {"S": f"GUARD#{hash_text(order.key)}"}, "sk": {"S": "META"}}, "single"
    details = {"S": str(physical.quantity)}
    record = key | {
        "status": {"S": "CLAIMED"},
        "invocation": me,
        "details": details,
        "by": {"S": physical.sqs_id},
    }
    decision, old = yield from context.put(guards, record, free_or_expired(context.world))
    if decision is Decision.REJECTED and old is not None:
        if old["status"] == {"S": "COMPLETED"}:
            if old["details"] != details:
                return (yield from _refuse(context, physical))
            own = order.style.recognises and old["by"] == {"S": physical.sqs_id}
            return "processed" if own else "duplicate"
        if old["invocation"] != me or old["by"] != {"S": physical.sqs_id}:
            raise Refused
    item = fresh(context, physical)
    unconditional = decision is Decision.ACCEPTED and old is None and not order.conflicts
    decision, old = yield from context.put(
        order.style.table, item, None if unconditional else ABSENT
    )
    done = {"status": {"S": "COMPLETED"}}
    if decision is Decision.REJECTED and old is not None and old["quantity"]["N"] != details["S"]:
        yield from context.update(
            guards, key, done | {"details": {"S": old["quantity"]["N"]}, "by": old["by"]}
        )
        return (yield from _refuse(context, physical))
    yield from context.update(guards, key, done)
    mine = old is not None and old["invocation"] == me and old["by"] == record["by"]
    return "processed" if decision is Decision.ACCEPTED or mine else "duplicate"


def hash_text(text: str) -> str:
    """A text of which no order key is a part."""
    return "".join(f"{ord(letter):x}" for letter in text)


# --- planted bugs ---------------------------------------------------------------------

Script = Callable[[Context, Physical], Steps]


@dataclass(frozen=True, slots=True)
class Plant:
    """One bug and what must be reported for it, no more and no less.

    ``gate`` says when the planted message may be received, so that the bug surely shows:
    ``first`` of its order and to its end; when its order is ``stored``; ``last``; ``alone``:
    the order has no other message. ``every``: all messages of the order are handled so.
    ``tamper`` changes the world at its end, as something outside the handlers would.
    """

    name: str
    kinds: frozenset[FindingKind]
    script: Script | None = None
    message: MessageKind | None = MessageKind.COPY
    gate: str = "stored"
    every: bool = False
    conflicts: bool = True  # the order may have conflicting messages as well
    ways: tuple[str, ...] = ("insert",)
    sort_key: bool = False
    single: bool = False
    steps: int | None = None
    stays: bool = False  # the queue forgets to dead-letter it
    effect: bool = True  # what is done for a stored order is followed by its side effect
    needs_effects: bool = False  # shows only in a run that declares side effects
    report: bool | None = None  # needs the run's batchItemFailures on or off
    tamper: Callable[[World, Order], str | None] | None = None  # names an item, if not the order
    needs_known: bool = False  # what others wrote must be on record for it to show

    def style(self, rng: Random) -> Style:
        way = rng.choice(self.ways)
        return Style(
            way,
            sort_key=self.sort_key,
            single=self.single,
            reads_first=rng.random() < 0.3,
            steps=rng.randint(0, 2) if self.steps is None else self.steps,
            answers=True,
        )


# --- evidence sets --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EvidenceSet:
    """One run of many worlds. ``rows`` are in the order of the files, old versions first."""

    run: RunInfo
    rows: list[Row] = field(repr=False)
    expected: frozenset[Found] = field(repr=False)  # of a run that was not cut off
    planted: dict[str, int] = field(repr=False)  # how often each plant was used


def evidence_set(
    seed: int, setup: Setup, worlds: int, plants: Sequence[Plant] = (), share: float = 0.5
) -> EvidenceSet:
    """``worlds`` worlds as one run; ``share`` of the orders have one of ``plants``."""
    rng = Random(seed)
    ids = Ids()
    usable = [
        p
        for p in plants
        if p.report in (None, setup.report_failures) and (setup.effects or not p.needs_effects)
    ]
    old: list[Row] = []
    last: list[Row] = []
    expected: set[Found] = set()
    planted: dict[str, int] = {}
    latest = 0
    for number in range(1, worlds + 1):
        chosen = [
            rng.choice(usable) if usable and rng.random() < share else None
            for _ in range(rng.randint(1, 2))
        ]
        cut = rng.randint(0, 150) if setup.cut else None
        world = _world(rng, ids, setup, number, chosen, cut)
        for versions in world.rows.values():
            old += versions[:-1]
            last.append(versions[-1])
        expected |= world.expected
        latest = max(latest, world.now)
        for plant in filter(None, chosen):
            planted[plant.name] = planted.get(plant.name, 0) + 1
    rng.shuffle(old)
    rng.shuffle(last)
    long_after = not setup.cut or rng.random() < 0.3
    run = RunInfo(
        run_id=f"simulated-{seed}",
        tool_version="0",
        created_at=0,
        target="local",
        handler="app.handler",
        code="code",
        timeout_s=3,
        visibility_timeout_s=VISIBILITY_TIMEOUT_S,
        max_receive_count=setup.max_receives,
        batch_size=setup.batch_size,
        report_batch_item_failures=setup.report_failures,
        plan=PlanInfo(seed, worlds, 1, ids.counted.get("message", 0), None, "burst", 3),
        order=OrderInfo("id", {"id": "id", "quantity": "quantity"}),
        tables=TABLES,
        result=ResultInfo("processed", "duplicate"),
        expect=ExpectInfo(
            contended_orders=0, poison="drop" if setup.drop_poison else "dead-letter"
        ),
        status=setup.status,
        faults=tuple(FaultRuleInfo(name, f"{name}=0.1", 0.1) for name in RULES),
        effects=(EFFECT,) if setup.effects else (),
        started_at=0,
        ended_at=None
        if setup.status is RunStatus.RUNNING
        else latest + (10 * VISIBILITY_TIMEOUT_S * 10**9 if long_after else 0),
    )
    return EvidenceSet(run, old + last, frozenset(expected), planted)


def random_set(
    rng: Random, worlds: int, plants: Sequence[Plant], statuses: Sequence[RunStatus]
) -> EvidenceSet:
    """An evidence set with a setup drawn at random; one of the statuses."""
    report = rng.random() < 0.6
    setup = Setup(
        batch_size=rng.randint(1, 3) if report else 1,
        report_failures=report,
        max_receives=rng.randint(2, 3),
        drop_poison=rng.random() < 0.5,
        effects=rng.random() < 0.5,
        status=rng.choice(statuses),
    )
    return evidence_set(rng.getrandbits(32), setup, worlds, plants)


def _world(
    rng: Random,
    ids: Ids,
    setup: Setup,
    number: int,
    plants: Sequence[Plant | None],
    cut: int | None,
) -> World:
    for _ in range(200):
        world = World(ids, setup, Random(rng.getrandbits(64)), number, now=rng.randint(1, 1000))
        try:
            world.plan(plants)
            world.run(cut)
            for order in world.orders:
                if order.plant is not None and cut is None:
                    world.expected |= found(world, order, order.plant)
            world.close()
        except NotShown:
            continue
        return world
    raise AssertionError(f"{[plant and plant.name for plant in plants]} cannot be shown")


def unknown_writes(world: World, order: Order) -> bool:
    """Of a write to the order's item it is not on record what it did, or when it was over."""
    item_key = item_text(order.item_key)
    last = [versions[-1] for versions in world.rows.values()]
    unanswered = {r.call_id for r in last if isinstance(r, Call) and r.answered_at is None}
    return any(
        isinstance(row, CallItem)
        and row.item_key == item_key
        and (row.decision is Decision.UNKNOWN or row.call_id in unanswered)
        for row in last
    )


def found(world: World, order: Order, plant: Plant) -> set[Found]:
    """What must be reported because of the plant."""
    unhandled = [p for p in world.queue if p.order is order and p.planted and not p.receives]
    if unhandled or (plant.needs_known and unknown_writes(world, order)):
        raise NotShown
    kinds, subject = set(plant.kinds), order.key
    if plant.tamper is not None:
        subject = plant.tamper(world, order) or subject
    if world.setup.drop_poison:
        kinds.discard(FindingKind.POISON_ACKNOWLEDGED)
    return {(kind, subject) for kind in kinds}


def evidence_sets(
    worlds: int, plants: Sequence[Plant] = (), statuses: Sequence[RunStatus] = tuple(RunStatus)
) -> st.SearchStrategy[EvidenceSet]:
    return st.builds(
        lambda seed: random_set(Random(seed), worlds, plants, statuses), st.integers(0, 2**32)
    )
