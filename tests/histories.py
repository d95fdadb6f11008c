"""Histories in one line, and the evidence they stand for.

``history("1<A4 1+ 1>p  2<A4 2- 2>d")``: invocation 1 gets a message of order A with
quantity 4, its put is accepted, it reports the order as processed; invocation 2 gets a copy,
its put is rejected, it reports a duplicate.

Each word is one event, and time moves on by one from word to word; words joined by ``&``
happen at the same time. A small store is kept, so that the images of writes and the final
items come by themselves. Words, with ``1`` for any invocation:

=============== =====================================================================
``1<A4``        starts with a new message: order A, quantity 4; ``1<A4,B2`` a batch;
                ``1<X!`` poison; ``1<#2`` message 2 again; ``1<#2/resent`` as another
                physical message, and so the second one of ``1<#2,#2``, not with ``/same``
``1.``          a call is sent and not yet answered; without it a call takes no time
``1+ 1- 1! 1?`` a put is accepted, rejected, fails, is never answered
``1r``          a read of the order's item is answered
``1@sqs``       an accepted call to another service; ``1@sns/effect`` one that is a declared
                effect for the order, ``/effect=unknown`` with this decision
``1>p 1>d 1>f`` returns processed or duplicate and is deleted; raises and is returned
``1>.``         returns without a result and is deleted
``1>b``         returns with all its messages reported failed
``1>timeout``   is timed out; ``1>crash`` likewise
``1*``          its messages are deleted now
``send#A4``     a message that nobody receives; ``plan#A4`` one that the queue never took
``dlq#2``       message 2 is in the dead-letter queue; ``aside#2`` another one with its body
``redrive#2``   it is moved back from there (``redrive#0``: all are): ``1<#2/resent`` is then
                its new physical message, ``dlq#2/resent`` that one in the dead-letter queue
``resend#0``    the plan is sent again
``skip#2``      message 2 is received and given to no invocation (receive-without-run)
``wipe#2``      somebody deletes the item of message 2's order (item-deleted)
``=A4 =A``      the final item of order A has quantity 4, or is missing
=============== =====================================================================

A word takes options behind slashes. ``/fault=throttle`` on any word: a fault of that name
fired there (``/fault`` alone: lost-reply), and its rule is added to the run. Calls: ``/of=B``
for which order of the batch, ``/key=K`` under another key, ``/q=7`` with another quantity,
``/before={}`` and ``/before=?`` (not known), ``/after=?``, ``/update``, ``/delete``, ``/any``
(without a condition), ``/cond=...`` (another condition), ``/reply=unknown`` (the store did it,
the handler does not know), ``/did`` (never answered, but the store did it), ``/on=guard``
(another table), ``/by=0`` (outside any invocation), and any other ``/name=value`` as an
attribute of the item. Ends: ``/keep`` (the delete fails), ``/open`` (neither deleted nor
returned by this word), ``/says=7`` (a quantity in the result), ``/names`` (the messages in
batchItemFailures), ``/failed=B`` and ``/failed=#2`` (the messages of order B, or message 2,
are reported failed and returned).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    Effect,
    EffectInfo,
    ExpectInfo,
    Fault,
    FaultRuleInfo,
    Invocation,
    ItemRow,
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

KEEP_UNCHANGED = item_text({"id": {"S": "reference"}, "note": {"S": "keep unchanged"}})
TABLE_INFOS = (
    TableInfo("orders", TableRole.ORDERS, "id"),
    TableInfo("guard", TableRole.GUARD, "id", complete_when={"status": ["COMPLETED"]}),
    TableInfo("reference", TableRole.REFERENCE, "id"),
)
RUN = RunInfo(
    run_id="history",
    tool_version="0",
    created_at=0,
    target="local",
    handler="app.handler",
    code="code",
    timeout_s=3,
    visibility_timeout_s=1,
    max_receive_count=3,
    batch_size=1,
    report_batch_item_failures=False,
    plan=PlanInfo(1, 1, 1, 1, None, "burst", 2),
    order=OrderInfo("id", {"id": "id", "quantity": "quantity"}),
    tables=TABLE_INFOS,
    result=ResultInfo("processed", "duplicate"),
    expect=ExpectInfo(contended_orders=0),
    status=RunStatus.FINISHED,
    started_at=0,
    ended_at=1_000_000,
)
"""The run of a history; change it with ``dataclasses.replace``."""

EFFECTS = (EffectInfo("sns", "Publish", "receipts", "id", "sns:Publish receipts"),)
"""What a run declares that has words with ``/effect``."""

_DECISIONS = {
    "+": Decision.ACCEPTED,
    "-": Decision.REJECTED,
    "!": Decision.FAILED,
    "?": Decision.UNKNOWN,
}
_RESULTS = {"p": Result.PROCESSED, "d": Result.DUPLICATE, "f": Result.FAILED, "b": Result.FAILED}
_OUTCOMES = {
    "f": Outcome.RAISED,
    "timeout": Outcome.TIMED_OUT,
    "crash": Outcome.CRASHED,
}
_PLACES = ("message_no", "receive", "call", "delivery_id", "invocation_id", "call_id")
_OF_CALLS = {"of", "key", "q", "before", "after", "cond", "reply", "on", "by", "fault", "effect"}


@dataclass(slots=True)
class _History:
    composite: bool = False
    rows: dict[tuple[str, tuple[Any, ...]], Row] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    given: dict[int, list[Delivery]] = field(default_factory=dict)
    pending: dict[int, list[int]] = field(default_factory=dict)
    store: dict[tuple[str, str], str] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)  # names, in the order of their first use

    def keep(self, row: Row) -> None:
        self.rows[row.TABLE, tuple(getattr(row, name) for name in row.KEY)] = row

    def next_id(self, table: type[Row]) -> int:
        self.ids[table.TABLE] = self.ids.get(table.TABLE, 0) + 1
        return self.ids[table.TABLE]

    def event(self, word: str, now: int) -> None:
        what, *rest = word.split("/")
        options = dict(option.partition("=")[::2] for option in rest)
        if what.startswith("="):
            self.final(what[1:], options)
        elif "#" in what and "<" not in what:
            verb, _, argument = what.partition("#")
            self.message_event(verb, argument, options, now)
        else:
            match = re.fullmatch(r"(\d+)([<+\-!?r@.>*])(.*)", what)
            assert match, word
            number, verb, argument = int(match[1]), match[2], match[3]
            match verb:
                case "<":
                    self.start(number, argument.split(","), options, now)
                case ".":
                    self.pending.setdefault(number, []).append(now)
                case ">":
                    self.end(number, argument, options, now)
                case "*":
                    self.delete(number, now)
                case "@":
                    self.call(number, argument, "SendMessage", Decision.ACCEPTED, options, now)
                case "r":
                    self.write(number, Action.READ, Decision.ACCEPTED, options, now)
                case _:
                    action = next((a for a in Action if a in options), Action.PUT)
                    self.write(number, action, _DECISIONS[verb], options, now)

    def fired(self, options: Mapping[str, str], now: int, **where: Any) -> str | None:
        """Keep the fault of a word, if it has one; its name."""
        if "fault" not in options:
            return None
        name = options["fault"] or "lost-reply"
        if name not in self.faults:
            self.faults.append(name)
        number = self.faults.index(name) + 1
        fault = Fault(self.next_id(Fault), number, name, now, 0, *[None] * len(_PLACES))
        self.keep(replace(fault, **where))
        return name

    # --- messages ---

    def message(self, text: str, now: int | None) -> Message:
        number = len(self.messages) + 1
        if text.endswith("!"):
            kind, details = MessageKind.POISON, None
            key, body = text, f"poison {text}"
        else:
            key, quantity = _order(text)
            details = _item(key, quantity)
            body = json.dumps({"id": key, "quantity": quantity})
            same = [m for m in self.messages if m.order_key == key]
            kind = MessageKind.COPY if same else MessageKind.ORDER
            if same and same[0].expected_item != details:
                kind = MessageKind.CONFLICT
        sqs_id = None if now is None else f"s{number}"
        message = Message(number, key, kind, body, details, 0, now, now, sqs_id, attempts=1)
        self.messages.append(message)
        self.keep(message)
        return message

    def start(self, number: int, texts: list[str], options: Mapping[str, str], now: int) -> None:
        self.given[number] = []
        self.keep(Invocation(number, f"r{number}", int(options.get("env", number)), False, now))
        for text in texts:
            if text.startswith("#"):
                message = self.messages[int(text[1:]) - 1]
            else:
                message = self.message(text, now)
            twice = any(d.message_no == message.message_no for d in self.given[number])
            other = "resent" in options or (twice and "same" not in options)
            sqs_id = f"s{message.message_no}" + ("-resent" if other else "")
            earlier = [
                row
                for row in self.rows.values()
                if isinstance(row, Delivery) and row.sqs_message_id == sqs_id
            ]
            delivery = Delivery(
                self.next_id(Delivery),
                QueueRole.QUEUE,
                sqs_id,
                message.message_no,
                int(options.get("receives", len(earlier) + 1)),
                now,
                number,
            )
            self.given[number].append(delivery)
            self.keep(delivery)
        (first, *_) = self.given[number]
        self.fired(
            options,
            now,
            message_no=first.message_no,
            receive=first.receive_count,
            delivery_id=first.delivery_id,
            invocation_id=number,
        )

    def message_event(self, verb: str, argument: str, options: Mapping[str, str], now: int) -> None:
        if verb in ("send", "plan"):
            self.message(argument, now if verb == "send" else None)
            return
        if verb == "wipe":
            self.wipe(self.messages[int(argument) - 1], now)
            return
        if verb == "skip":
            self.skip(self.messages[int(argument) - 1], now)
            return
        if verb in ("redrive", "resend"):
            self.fired({"fault": verb}, now, message_no=int(argument) or None)
            return
        sqs_id = f"s{argument}" if verb == "dlq" else f"set-aside-{argument}"
        sqs_id += "-resent" if "resent" in options else ""
        delivery = Delivery(
            self.next_id(Delivery), QueueRole.DEAD_LETTER, sqs_id, int(argument), 1, now, None
        )
        self.keep(delivery)
        self.keep(Ack(delivery.delivery_id, now, AckOutcome.DEAD_LETTERED))

    def skip(self, message: Message, now: int) -> None:
        sqs_id = f"s{message.message_no}"
        receives = 1 + sum(
            isinstance(row, Delivery) and row.sqs_message_id == sqs_id for row in self.rows.values()
        )
        delivery = Delivery(
            self.next_id(Delivery), QueueRole.QUEUE, sqs_id, message.message_no, receives, now, None
        )
        self.keep(delivery)
        self.keep(Ack(delivery.delivery_id, now, AckOutcome.RETURNED))
        self.fired(
            {"fault": "receive-without-run"},
            now,
            message_no=message.message_no,
            receive=receives,
            delivery_id=delivery.delivery_id,
        )

    def wipe(self, message: Message, now: int) -> None:
        call_id, item_key = self.next_id(Call), item_text({"id": {"S": message.order_key}})
        before = self.store.pop(("orders", item_key), NO_ITEM)
        self.keep(
            Call(
                call_id,
                None,
                1,
                None,
                "dynamodb",
                "DeleteItem",
                "orders",
                None,
                now,
                now,
                Decision.ACCEPTED,
                fault="item-deleted",
            )
        )
        deleted = (Action.DELETE, None, Decision.ACCEPTED, None, before, NO_ITEM)
        self.keep(CallItem(call_id, "orders", item_key, *deleted))
        self.fired({"fault": "item-deleted"}, now, message_no=message.message_no, call_id=call_id)

    # --- calls ---

    def call(
        self,
        number: int,
        service: str,
        operation: str,
        decision: Decision,
        options: Mapping[str, str],
        now: int,
    ) -> int:
        call_id = self.next_id(Call)
        sent = self.pending[number].pop(0) if self.pending.get(number) else now
        invocation = int(options.get("by", number)) or None
        fault = self.fired(options, now, invocation_id=invocation, call_id=call_id)
        if "effect" in options:
            key, _ = self.order_of(number, options)
            done = Decision(options["effect"] or decision)
            self.keep(Effect(call_id, 1, 1, options.get("key", key), done))
        self.keep(
            Call(
                call_id,
                invocation,
                1,
                None,
                service,
                operation,
                options.get("on", "orders"),
                None,
                sent,
                None if decision is Decision.UNKNOWN else now,
                Decision(options.get("reply", decision)),
                fault=fault,
            )
        )
        return call_id

    def write(
        self, number: int, action: Action, decision: Decision, options: Mapping[str, str], now: int
    ) -> None:
        call_id = self.call(number, "dynamodb", "PutItem", decision, options, now)
        table = options.get("on", "orders")
        order_key, quantity = self.order_of(number, options)
        attributes = {
            name: value
            for name, value in options.items()
            if name not in _OF_CALLS and value and name != "sk"
        }
        key = options.get("key", f"digest-{order_key}" if table == "guard" else order_key)
        key_item = {"id": {"S": key}} | ({"sk": {"S": options["sk"]}} if "sk" in options else {})
        item_key = item_text(key_item)
        before: str | None = self.store.get((table, item_key), NO_ITEM)
        after: str | None = before
        if action in (Action.PUT, Action.UPDATE) and decision is not Decision.REJECTED:
            after = _item(
                key, quantity, attributes | {n: options[n] for n in ("sk",) if n in options}
            )
        elif action is Action.DELETE and decision is not Decision.REJECTED:
            after = NO_ITEM
        if (decision is Decision.ACCEPTED or "did" in options) and after is not None:
            self.store[table, item_key] = after
        if decision in (Decision.UNKNOWN, Decision.FAILED):
            before = None
        if "before" in options:
            before = None if options["before"] == "?" else options["before"]
        if options.get("after") == "?":
            after = None
        condition = options.get("cond", "attribute_not_exists(id)")
        free = "any" in options or action in (Action.READ, Action.DELETE)
        self.keep(
            CallItem(
                call_id,
                table,
                item_key,
                action,
                None if free else condition,
                decision,
                None,
                before,
                after,
            )
        )

    def order_of(self, number: int, options: Mapping[str, str]) -> tuple[str, int]:
        given = [self.messages[d.message_no - 1] for d in self.given[number] if d.message_no]
        keys = [m.order_key for m in given]
        message = given[keys.index(options["of"])] if "of" in options else given[0]
        quantity = json.loads(message.body)["quantity"] if message.expected_item else 0
        return message.order_key, int(options.get("q", quantity))

    # --- ends ---

    def end(self, number: int, how: str, options: Mapping[str, str], now: int) -> None:
        row = self.rows["invocations", (number,)]
        assert isinstance(row, Invocation)
        response: dict[str, object] = {"processed": how == "p", "duplicate": how == "d"}
        if "says" in options:
            response["quantity"] = int(options["says"])
        if "names" in options:
            response = {
                "batchItemFailures": [
                    {"itemIdentifier": d.sqs_message_id} for d in self.given[number]
                ]
            }
        ending = _OUTCOMES.get(how, Outcome.RETURNED)
        self.fired(options, now, invocation_id=number)
        self.keep(replace(row, ended_at=now, outcome=ending, response=json.dumps(response)))
        said = Result.FAILED if how in _OUTCOMES else _RESULTS.get(how)
        for delivery in self.given[number]:
            assert delivery.message_no is not None
            order_key = self.messages[delivery.message_no - 1].order_key
            named = options.get("failed") in (order_key, f"#{delivery.message_no}")
            result = Result.FAILED if named else said
            if result is not None:
                self.keep(ResultRow(number, delivery.message_no, result, json.dumps(response)))
            if "open" in options:
                continue
            outcome = AckOutcome.RETURNED if result is Result.FAILED else AckOutcome.DELETED
            if "keep" in options:
                outcome = AckOutcome.DELETE_FAILED
            self.keep(Ack(delivery.delivery_id, now, outcome))

    def delete(self, number: int, now: int) -> None:
        for delivery in self.given[number]:
            self.keep(Ack(delivery.delivery_id, now, AckOutcome.DELETED))

    def final(self, text: str, options: Mapping[str, str]) -> None:
        key, quantity = _order(text)
        place = options.get("on", "orders"), item_text({"id": {"S": options.get("key", key)}})
        self.store.pop(place, None)
        if quantity:
            self.store[place] = _item(options.get("key", key), quantity)


def _order(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*?)(\d*)", text)
    assert match, text
    return match[1], int(match[2] or 0)


def _item(key: str, quantity: int, attributes: Mapping[str, str] | None = None) -> str:
    item: dict[str, dict[str, str]] = {"id": {"S": key}, "quantity": {"N": str(quantity)}}
    item |= {name: {"S": value} for name, value in (attributes or {}).items()}
    return item_text(item)


def write_history(run_dir: Path, text: str, run: RunInfo = RUN, step_ns: int = 1) -> Path:
    """Write the run directory of a history, as a run leaves it before Parquet is made.

    From word to word ``step_ns`` pass.
    """
    history = _History()
    history.store["reference", item_text({"id": {"S": "reference"}})] = KEEP_UNCHANGED
    history.keep(
        ItemRow("reference", item_text({"id": {"S": "reference"}}), KEEP_UNCHANGED, Phase.BEFORE)
    )
    for now, together in enumerate(text.split(), start=1):
        for word in together.split("&"):
            history.event(word, now * step_ns)
    if run.status is not RunStatus.RUNNING:
        for (table, item_key), item in history.store.items():
            if item != NO_ITEM:
                history.keep(ItemRow(table, item_key, item, Phase.AFTER))
    rules = tuple(FaultRuleInfo(name, f"{name}=1", opportunities=9) for name in history.faults)
    write_rows(run_dir, list(history.rows.values()), replace(run, faults=run.faults or rules))
    return run_dir


def write_rows(run_dir: Path, rows: list[Row], run: RunInfo = RUN) -> None:
    """Write a run directory: ``run.json`` and one file of lines per table."""
    evidence = run_dir / "evidence"
    evidence.mkdir(parents=True, exist_ok=True)
    (run_dir / "run.json").write_bytes(msgspec.json.encode(run))
    for table in TABLES:
        lines = [msgspec.json.encode(row) + b"\n" for row in rows if isinstance(row, table)]
        (evidence / f"{table.TABLE}.jsonl").write_bytes(b"".join(lines))
