"""A simulated run that writes a complete evidence directory.

The same arguments always give the same rows. The simulated handler is the reference one
(one conditional put); for ``overwrites`` orders it reads first and then puts without a
condition, so that copies in flight together overwrite each other. No process, socket or
clock is used: time is a number that the simulation moves forward.

``python -m tests.sample_run DIR [--overwrites N] ...`` writes one to look at.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from analysis.schema import (
    NO_ITEM,
    TABLES,
    Ack,
    AckOutcome,
    Action,
    Call,
    CallItem,
    Decision,
    Delivery,
    ExpectInfo,
    Invocation,
    ItemRow,
    Message,
    MessageKind,
    OrderInfo,
    Outcome,
    Phase,
    PlanInfo,
    QueueRole,
    QueueSample,
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

START_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
MS = 1_000_000
ORDERS_TABLE = "onceproof-sample-orders"
REFERENCE_TABLE = "onceproof-sample-reference"
HOSTILE = '</script><img src=x onerror="alert(1)">'
CONDITION = "attribute_not_exists(id)"

_Planned = tuple[str, MessageKind, str, str | None]  # order key, kind, body, details


@dataclass(frozen=True, slots=True)
class Sample:
    """What to simulate."""

    orders: int = 200
    copies: int = 5
    conflicts: float = 0.05  # share of the orders that get one conflicting message
    poison: float = 0.02  # poison messages, as a share of the orders
    transient: float = 0.01  # share of the invocations whose write fails and is tried again
    rate_per_s: float | None = None
    concurrency: int = 8
    overwrites: int = 0  # orders handled by read-then-write
    hostile: bool = False  # order keys, bodies and errors that try to break out of a page
    visibility_timeout_s: int = 2
    max_receive_count: int = 3
    seed: int = 1
    status: RunStatus = RunStatus.FINISHED


def _item(key: str, quantity: int) -> str:
    total = quantity * 250 + 100
    return item_text(
        {"id": {"S": key}, "quantity": {"N": str(quantity)}, "total_cents": {"N": str(total)}}
    )


def _details(key: str, quantity: int) -> str:
    return item_text({"id": {"S": key}, "quantity": {"N": str(quantity)}})


def _plan(sample: Sample, rng: random.Random) -> list[Message]:
    """The messages of the run: copies of one order adjacent, poison in between."""
    groups: list[list[_Planned]] = []
    for number in range(1, sample.orders + 1):
        key = f"{rng.choice('AKtz')}{number:04d}-{rng.randrange(16**4):04x}"
        if sample.hostile and number <= 3:
            key = f"{HOSTILE}{number}"
        quantity = rng.randint(1, 10)
        body = json.dumps({"id": key, "quantity": quantity})
        group: list[_Planned] = [
            (key, MessageKind.COPY if copy else MessageKind.ORDER, body, _details(key, quantity))
            for copy in range(sample.copies)
        ]
        if rng.random() < sample.conflicts:
            other = quantity % 10 + 1
            conflict = json.dumps({"id": key, "quantity": other})
            place = rng.randint(1, len(group))
            group.insert(place, (key, MessageKind.CONFLICT, conflict, _details(key, other)))
        groups.append(group)
    for number in range(round(sample.orders * sample.poison)):
        key = f"poison-{number:03d}"
        body = f'{{"id": "{key}", "quantity": "{HOSTILE if sample.hostile else "many"}"'
        groups.insert(rng.randint(0, len(groups)), [(key, MessageKind.POISON, body, None)])
    step = 0 if sample.rate_per_s is None else round(1e9 / sample.rate_per_s)
    rows = [row for group in groups for row in group]
    return [
        Message(index + 1, key, kind, body, details, START_NS + index * step)
        for index, (key, kind, body, details) in enumerate(rows)
    ]


@dataclass(slots=True)
class _Simulation:
    sample: Sample
    rng: random.Random
    now: int = START_NS
    events: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    scheduled: int = 0
    rows: dict[tuple[str, tuple[Any, ...]], Row] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    store: dict[str, str] = field(default_factory=dict)
    visible: deque[tuple[Message, int]] = field(default_factory=deque)
    in_flight: int = 0
    dead: int = 0
    settled: int = 0
    idle: list[int] = field(default_factory=list)
    warm: set[int] = field(default_factory=set)
    careless: frozenset[str] = frozenset()
    messages: list[Message] = field(default_factory=list)

    def at(self, time: int, action: Callable[[], None]) -> None:
        self.scheduled += 1
        heapq.heappush(self.events, (time, self.scheduled, action))

    def after(self, low_ms: float, high_ms: float, action: Callable[[], None]) -> None:
        self.at(self.now + round(self.rng.uniform(low_ms, high_ms) * MS), action)

    def keep(self, row: Row) -> None:
        self.rows[row.TABLE, tuple(getattr(row, name) for name in row.KEY)] = row

    def next_id(self, name: str) -> int:
        self.ids[name] = self.ids.get(name, 0) + 1
        return self.ids[name]

    def run(self) -> None:
        self.messages = _plan(self.sample, self.rng)
        keys = list(dict.fromkeys(m.order_key for m in self.messages if m.expected_item))
        chosen = keys[:1] + self.rng.sample(keys[1:], max(0, self.sample.overwrites - 1))
        self.careless = frozenset(chosen if self.sample.overwrites else ())
        self.idle = list(range(1, self.sample.concurrency + 1))
        note = item_text({"id": {"S": "reference"}, "note": {"S": "keep unchanged"}})
        note_key = item_text({"id": {"S": "reference"}})
        for phase in Phase:
            self.keep(ItemRow(REFERENCE_TABLE, note_key, note, phase))
        for message in self.messages:
            self.keep(message)
        for first in range(0, len(self.messages), 10):
            self.plan_send(self.messages[first : first + 10])
        self.sample_queues()
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()
        for key, item in self.store.items():
            self.keep(ItemRow(ORDERS_TABLE, item_text({"id": {"S": key}}), item, Phase.AFTER))

    def plan_send(self, batch: list[Message]) -> None:
        """At rate "max" four senders share the work; at a given rate a batch waits for its last."""
        if self.sample.rate_per_s is None:
            due = START_NS + (batch[0].message_no // 40) * 6 * MS
        else:
            due = batch[-1].intended_at
        sent = due + round(self.rng.uniform(0.2, 2) * MS)
        accepted = sent + round(self.rng.lognormvariate(1.2, 0.4) * MS)
        numbers = [message.message_no for message in batch]

        def deliver() -> None:
            for number in numbers:
                message = replace(
                    self.messages[number - 1],
                    sent_at=sent,
                    accepted_at=accepted,
                    sqs_message_id=f"00000000-0000-4000-8000-{number:012d}",
                    attempts=1,
                )
                self.messages[number - 1] = message
                self.keep(message)
                self.visible.append((message, 1))
            self.receive()

        self.at(accepted, deliver)

    def receive(self) -> None:
        while self.idle and self.visible:
            environment = self.idle.pop(self.rng.randrange(len(self.idle)))
            message, count = self.visible.popleft()
            delivery = Delivery(
                self.next_id("delivery"),
                QueueRole.QUEUE,
                message.sqs_message_id or "",
                message.message_no,
                count,
                self.now,
                self.next_id("invocation"),
            )
            self.in_flight += 1
            self.keep(delivery)
            self.after(0.2, 0.9, partial(self.start, delivery, message, environment))

    def start(self, delivery: Delivery, message: Message, environment: int) -> None:
        invocation = Invocation(
            delivery.invocation_id or 0,
            f"11111111-0000-4000-8000-{delivery.invocation_id:012d}",
            environment,
            environment not in self.warm,
            self.now,
        )
        self.warm.add(environment)
        low_ms, high_ms = (60, 90) if invocation.cold else (0.4, 1.6)
        if message.kind is MessageKind.POISON:
            error = f"body is not an order: {message.body}"
            self.after(low_ms, high_ms, lambda: self.end(delivery, message, invocation, error))
        elif message.order_key in self.careless:
            self.after(low_ms, high_ms, lambda: self.read(delivery, message, invocation))
        else:
            self.after(
                low_ms, high_ms, lambda: self.write(delivery, message, invocation, CONDITION)
            )

    def call(self, invocation: Invocation, operation: str, request: dict[str, Any]) -> Call:
        number = self.next_id("call")
        return Call(
            number,
            invocation.invocation_id,
            1,
            f"22222222-0000-4000-8000-{number:012d}",
            "dynamodb",
            operation,
            ORDERS_TABLE,
            json.dumps(request, sort_keys=True),
            self.now,
        )

    def answer(
        self, call: Call, item: CallItem, decision: Decision, error_code: str | None = None
    ) -> None:
        self.keep(replace(call, answered_at=self.now, decision=decision, error_code=error_code))
        self.keep(item)

    def read(self, delivery: Delivery, message: Message, invocation: Invocation) -> None:
        key = message.order_key
        item_key = item_text({"id": {"S": key}})
        call = self.call(invocation, "GetItem", {"Key": {"id": {"S": key}}})

        def decide() -> None:
            seen = self.store.get(key, NO_ITEM)
            item = CallItem(
                call.call_id,
                ORDERS_TABLE,
                item_key,
                Action.READ,
                None,
                Decision.ACCEPTED,
                None,
                seen,
                seen,
            )

            def answered() -> None:
                self.answer(call, item, Decision.ACCEPTED)
                if seen == NO_ITEM:
                    self.after(0.8, 4, lambda: self.write(delivery, message, invocation, None))
                else:
                    self.finish(delivery, message, invocation, Decision.REJECTED, seen)

            self.after(0.3, 1.5, answered)

        self.after(0.3, 1.5, decide)

    def write(
        self, delivery: Delivery, message: Message, invocation: Invocation, condition: str | None
    ) -> None:
        key = message.order_key
        item_key = item_text({"id": {"S": key}})
        item = _item(key, json.loads(message.body)["quantity"])
        request = {"Item": json.loads(item), "ConditionExpression": condition}
        call = self.call(invocation, "PutItem", request)

        def decide() -> None:
            before = self.store.get(key, NO_ITEM)
            after, decision, error_code = item, Decision.ACCEPTED, None
            if self.rng.random() < self.sample.transient:
                after, decision = before, Decision.FAILED
                error_code = "ProvisionedThroughputExceededException"
            elif condition is not None and before != NO_ITEM:
                after, decision = before, Decision.REJECTED
                error_code = "ConditionalCheckFailedException"
            else:
                self.store[key] = item
            row = CallItem(
                call.call_id,
                ORDERS_TABLE,
                item_key,
                Action.PUT,
                condition,
                decision,
                error_code,
                before,
                after,
            )

            def answered() -> None:
                self.answer(call, row, decision, error_code)
                self.finish(delivery, message, invocation, decision, before)

            self.at(self.now + round(self.rng.lognormvariate(0.3, 0.6) * MS), answered)

        self.at(self.now + round(self.rng.lognormvariate(0.3, 0.6) * MS), decide)

    def finish(
        self,
        delivery: Delivery,
        message: Message,
        invocation: Invocation,
        decision: Decision,
        before: str,
    ) -> None:
        error, quantity = None, json.loads(message.body)["quantity"]
        if decision is Decision.FAILED:
            error = "ProvisionedThroughputExceededException: rate exceeded"
        elif decision is Decision.REJECTED and before != _item(message.order_key, quantity):
            error = f"order {message.order_key} is stored with other details"
        answer = {
            "id": message.order_key,
            "quantity": quantity,
            "processed": decision is Decision.ACCEPTED,
            "duplicate": decision is Decision.REJECTED,
        }
        self.after(
            0.2, 0.8, lambda: self.end(delivery, message, invocation, error, json.dumps(answer))
        )

    def end(
        self,
        delivery: Delivery,
        message: Message,
        invocation: Invocation,
        error: str | None,
        response: str | None = None,
    ) -> None:
        result = Result.FAILED
        if error is None and response is not None:
            result = Result.PROCESSED if json.loads(response)["processed"] else Result.DUPLICATE
        self.keep(
            replace(
                invocation,
                ended_at=self.now,
                outcome=Outcome.RETURNED if error is None else Outcome.RAISED,
                response=response if error is None else None,
                error_type=None if error is None else "ValueError",
                error_message=error,
            )
        )
        detail = error or response
        self.keep(ResultRow(invocation.invocation_id, message.message_no, result, detail))
        self.idle.append(invocation.environment)
        self.after(1, 4, lambda: self.acknowledge(delivery, message, deleted=error is None))
        self.receive()

    def acknowledge(self, delivery: Delivery, message: Message, *, deleted: bool) -> None:
        outcome = AckOutcome.DELETED if deleted else AckOutcome.RETURNED
        self.keep(Ack(delivery.delivery_id, self.now, outcome))
        if deleted:
            self.in_flight -= 1
            self.settled += 1
            return
        again = delivery.received_at + self.sample.visibility_timeout_s * 1000 * MS

        def come_back() -> None:
            self.in_flight -= 1
            if delivery.receive_count < self.sample.max_receive_count:
                self.visible.append((message, delivery.receive_count + 1))
                self.receive()
            else:
                self.dead += 1
                self.after(5, 40, lambda: self.bury(message, delivery.receive_count + 1))

        self.at(again, come_back)

    def bury(self, message: Message, count: int) -> None:
        number = self.next_id("delivery")
        self.settled += 1
        self.keep(
            Delivery(
                number,
                QueueRole.DEAD_LETTER,
                message.sqs_message_id or "",
                message.message_no,
                count,
                self.now,
                None,
            )
        )
        self.keep(Ack(number, self.now, AckOutcome.DEAD_LETTERED))

    def sample_queues(self) -> None:
        waiting = len(self.visible)
        self.keep(QueueSample(self.now, QueueRole.QUEUE, waiting, self.in_flight, 0))
        self.keep(QueueSample(self.now, QueueRole.DEAD_LETTER, self.dead, 0, 0))
        if self.settled < len(self.messages):
            self.at(self.now + 100 * MS, self.sample_queues)


def write_run(run_dir: Path, sample: Sample | None = None) -> Path:
    """Write ``run.json`` and ``evidence/*.jsonl`` of a simulated run; returns ``run_dir``."""
    sample = sample or Sample()
    simulation = _Simulation(sample, random.Random(sample.seed))
    simulation.run()
    evidence = run_dir / "evidence"
    evidence.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[bytes]] = {table.TABLE: [] for table in TABLES}
    for row in simulation.rows.values():
        lines[row.TABLE].append(msgspec.json.encode(row))
    for table, encoded in lines.items():
        (evidence / f"{table}.jsonl").write_bytes(b"".join(line + b"\n" for line in encoded))
    run = RunInfo(
        run_id=f"20260101T000000Z-{sample.seed:04x}",
        tool_version="0.1.0",
        created_at=START_NS - 2_000 * MS,
        target="local",
        handler="app.handler",
        code="consumer",
        timeout_s=5.0,
        visibility_timeout_s=sample.visibility_timeout_s,
        max_receive_count=sample.max_receive_count,
        batch_size=1,
        report_batch_item_failures=False,
        plan=PlanInfo(
            seed=sample.seed,
            orders=sample.orders,
            copies=sample.copies,
            messages=len(simulation.messages),
            rate_per_s=sample.rate_per_s,
            arrangement="burst",
            concurrency=sample.concurrency,
        ),
        order=OrderInfo(key="id", attributes={"id": "id", "quantity": "quantity"}),
        tables=(
            TableInfo(ORDERS_TABLE, TableRole.ORDERS, "id"),
            TableInfo(REFERENCE_TABLE, TableRole.REFERENCE, "id"),
        ),
        result=ResultInfo(processed="processed", duplicate="duplicate"),
        expect=ExpectInfo(),
        versions={"python": "3.11.7", "boto3": "1.40.61", "ministack": "1.4.21"},
        status=sample.status,
        started_at=START_NS,
        ended_at=simulation.now + 50 * MS,
        command=f"loadtest run --orders {sample.orders} --seed {sample.seed}",
    )
    (run_dir / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(run)) + b"\n")
    return run_dir


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a simulated run directory.")
    parser.add_argument("run_dir", type=Path)
    for name, value in asdict(Sample()).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            parser.add_argument(flag, action="store_true")
        elif name == "rate_per_s":
            parser.add_argument(flag, type=float)
        elif name != "status":
            parser.add_argument(flag, type=type(value), default=value)
    options = vars(parser.parse_args())
    write_run(options.pop("run_dir"), Sample(**options))


if __name__ == "__main__":
    main()
