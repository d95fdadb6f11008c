"""``loadtest lab --target aws``: the four-message story, consumed by a deployed function.

One order alone, then two copies of it, then one other order, sent to the queue of a sample stack
and given to the function by its own event source mapping. What happened is told by the function's
log, the table's stream and strongly consistent reads; what these do not show is said.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from analysis.errors import TargetError, UsageError
from analysis.schema import TableInfo, TableRole
from analysis.text import visible
from consumer.clock import Clock
from loadtest.aws.account import Account
from loadtest.aws.clean import remove_stack
from loadtest.aws.commands import Talk, Where, check_whole, stack_plan
from loadtest.aws.cost import Load, expected, usd_text
from loadtest.aws.deploy import Deployment, present
from loadtest.aws.deployed import counters
from loadtest.aws.items import items_of, remove_items
from loadtest.aws.logs import Logged, environments, read_invocations, read_log
from loadtest.aws.stack import MEMORY_MB, Names, StackRecord, record_path
from loadtest.aws.streams import StreamReader
from loadtest.lab import STORY, Held, print_held
from loadtest.targets import KEEP_UNCHANGED

_TOLD_LIMIT_S = 600.0
"""Log lines arrive within seconds as a rule; five to ten minutes were documented (Lambda developer
guide, "Using CloudWatch logs with Lambda")."""
_EMPTY_LIMIT_S = 120.0
"""Counters may be inconsistent for a minute after the last send (SQS API reference,
GetQueueAttributes)."""
_WRITTEN_LIMIT_S = 30.0
_CLOCKS_APART_MS = 60_000
"""By how much this machine's clock may differ from that of the log."""
_RESULT = "RESULT "
_UNSEEN = (
    "the calls of the function. That a second write of an order was refused is told by the "
    "function itself, and shown by an item that stayed as it was.",
    "the mapping at work. What it received and deleted is known from the queue's counters alone, "
    "and they are approximate.",
    "whether the two copies overlapped: log lines carry milliseconds.",
)


async def walk_deployed(
    where: Where, *, stack: str | None, out: Path, clock: Clock, talk: Talk
) -> bool:
    """Walk the story and print it; whether everything it promises held.

    :param stack: one that is there already; None makes one and removes it again.
    :raises OnceproofError: it could not be walked.
    """
    async with where.account() as account, contextlib.AsyncExitStack() as leaving:
        names = Names(stack or f"lab-{secrets.token_hex(3)}", account.identity.region)
        lab = _Lab(account, names, clock, talk)
        cost = expected(Load(messages=4, body_bytes=64, messages_per_send=2, memory_mb=MEMORY_MB))
        messages = f"the four messages {usd_text(cost.usd)} at most, an estimate"
        gone: list[str] = []
        if stack is None:
            path = record_path(out, names.stack)
            talk.facts([*stack_plan(names, account.identity, path), ("", messages)])
            _agree(talk, "Make it, send four messages, and remove it again?")
            record = await Deployment(account, names, path, clock=clock, say=talk.hint).make()
            leaving.push_async_callback(_remove, account, record, path, talk, gone)
        else:
            there = await present(account, names)
            if not there:
                raise UsageError(
                    f"--stack: there is no stack {stack} in {account.identity}. Make it with "
                    f"loadtest deploy --name {stack}, or leave --stack out."
                )
            check_whole(names, there)
            talk.facts([("in", str(account.identity)), ("stack", stack), ("cost", messages)])
            _agree(talk, f"Send four messages to queue {names.queue}?")
            leaving.push_async_callback(lab.remove_items, gone)
        try:
            promises = await lab.walk()
        except BaseException as error:
            try:
                await leaving.aclose()
            except TargetError as left:
                error.add_note(f"Not everything was removed: {left}")
            raise
        await leaving.aclose()
    what = f"all {len(gone)} parts of the stack" if stack is None else ", ".join(gone)
    promises.append(Held("everything removed and proven gone", bool(gone), what))
    print_held(talk.console, promises)
    talk.hint("Not to be seen of a deployed function:")
    for text in _UNSEEN:
        talk.hint(f"- {text}")
    return all(promise.holds for promise in promises)


def _agree(talk: Talk, question: str) -> None:
    """:raises UsageError: the answer was no."""
    if not talk.agreed(question):
        raise UsageError("nothing was made or sent: it was not confirmed.")


async def _remove(
    account: Account, record: StackRecord, path: Path, talk: Talk, gone: list[str]
) -> None:
    talk.hint("removing the stack")

    def said(text: str) -> None:
        talk.hint(text)
        gone.append(text.removeprefix("gone: "))

    await remove_stack(account, record, path, say=said)


class _Lab:
    """The story at one stack."""

    def __init__(self, account: Account, names: Names, clock: Clock, talk: Talk) -> None:
        self._account = account
        self._names = names
        self._talk = talk
        self._prefix = secrets.token_hex(3)  # its items can be told from all others
        self._since_ms = clock.now_ns() // 1_000_000 - _CLOCKS_APART_MS
        self._sent: dict[str, str] = {}  # SQS message id -> step
        self._invocations: list[Logged] = []
        self._items: list[dict[str, Mapping[str, Any]]] = []  # after each step: key -> item
        self._counters = (-1, -1)  # waiting, in flight

    @property
    def _keys(self) -> list[Mapping[str, Any]]:
        names = dict.fromkeys(key for _, orders in STORY for key, _ in orders)
        return [{"id": {"S": self._key(name)}} for name in names]

    def _key(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    async def walk(self) -> list[Held]:
        """Send, wait and look, step by step; then print what was seen."""
        queue = await self._account.call("sqs", "GetQueueUrl", QueueName=self._names.queue)
        self._queue_url = str(queue["QueueUrl"])
        stream = await self._stream()
        await stream.start()
        for name, orders in STORY:
            self._talk.hint(name)
            await self._send(name, orders)
            await self._account.wait(
                f"the log of {self._names.function} does not tell what became of every message",
                self._told,
                limit_s=_TOLD_LIMIT_S,
            )
            items = [item async for item in items_of(self._account, self._names.orders, self._keys)]
            self._items.append({item["id"]["S"]: item for item in items})
        with contextlib.suppress(TargetError):  # what is there by then is shown
            await self._account.wait(
                "the stream is behind", lambda: self._written(stream), limit_s=_WRITTEN_LIMIT_S
            )
        with contextlib.suppress(TargetError):
            await self._account.wait("not empty", self._empty, limit_s=_EMPTY_LIMIT_S)
        self._talk.console.print(self._table())
        return self._promises(stream, await self._reference())

    async def _stream(self) -> StreamReader:
        about = await self._account.call("dynamodb", "DescribeTable", TableName=self._names.orders)
        keys = {self._key(key) for _, orders in STORY for key, _ in orders}
        return StreamReader(
            self._account,
            TableInfo(self._names.orders, TableRole.ORDERS, "id"),
            str(about["Table"]["LatestStreamArn"]),
            lambda record: record.keys["id"].get("S") in keys,
        )

    async def _send(self, step: str, orders: Sequence[tuple[str, int]]) -> None:
        entries = [
            {
                "Id": str(number),
                "MessageBody": json.dumps({"id": self._key(key), "quantity": quantity}),
            }
            for number, (key, quantity) in enumerate(orders)
        ]
        answer = await self._account.call(
            "sqs", "SendMessageBatch", QueueUrl=self._queue_url, Entries=entries
        )
        if answer.get("Failed"):
            raise TargetError(f"the queue did not take all messages: {answer['Failed']}")
        self._sent |= {entry["MessageId"]: step for entry in answer["Successful"]}

    async def _told(self) -> bool | None:
        """Whether the log tells of a result for every message so far."""
        events = await read_log(self._account, self._names.log_group, self._since_ms)
        numbers = dict.fromkeys(self._sent, 0)
        self._invocations = [one for one in read_invocations(events) if one.sqs_ids(numbers)]
        done = {
            sqs_id
            for one in self._invocations
            if one.is_whole and _result(one) is not None
            for sqs_id in one.sqs_ids(numbers)
        }
        return True if done == self._sent.keys() else None

    async def _written(self, stream: StreamReader) -> bool | None:
        await stream.read()
        return True if len(stream.records) >= len(self._items[-1]) else None

    async def _empty(self) -> bool | None:
        answer = await self._account.call(
            "sqs", "GetQueueAttributes", QueueUrl=self._queue_url, AttributeNames=["All"]
        )
        waiting, in_flight, delayed = counters(answer.get("Attributes", {}))
        self._counters = (waiting + delayed, in_flight)
        return True if self._counters == (0, 0) else None

    async def _reference(self) -> list[str]:
        keys = [{"id": {"S": "reference"}}]
        found = items_of(self._account, self._names.reference, keys)
        return [str(item["note"]["S"]) async for item in found]

    async def remove_items(self, gone: list[str]) -> None:
        self._talk.hint("removing its items")
        await remove_items(self._account, self._names.orders, self._keys)
        gone.append(f"{len(self._keys)} items of table {self._names.orders}")

    # --- what is shown ---

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE, padding=(0, 1), pad_edge=False)
        for name in ("step", "env", "took", "order", "result, as logged"):
            table.add_column(name, overflow="fold")
        slots = environments(self._invocations)
        for one in self._invocations:
            (sqs_id, *_) = one.sqs_ids(dict.fromkeys(self._sent, 0))
            result = _result(one)
            said = [name for name in ("processed", "duplicate") if (result or {}).get(name)]
            cold = " cold" if one.init_ms is not None else ""
            table.add_row(
                self._sent[sqs_id],
                f"{slots[one.stream]}{cold}",
                f"{one.duration_ms:g} ms",
                Text("" if result is None else visible(f"{result['id']}/{result['quantity']}")),
                ", ".join(said) or "none",
            )
        return table

    def _promises(self, stream: StreamReader, reference: Sequence[str]) -> list[Held]:
        results = [found for found in map(_result, self._invocations) if found is not None]
        processed = sum(bool(result.get("processed")) for result in results)
        duplicates = sum(bool(result.get("duplicate")) for result in results)
        told = {
            one
            for logged in self._invocations
            for one in logged.sqs_ids(dict.fromkeys(self._sent, 0))
        }
        writes = [record.event for record in stream.records]
        first = self._key(STORY[0][1][0][0])
        images = [items.get(first) for items in self._items]
        items = sorted(
            "/".join(
                item[name][kind]
                for name, kind in (("id", "S"), ("quantity", "N"), ("total_cents", "N"))
            )
            for item in self._items[-1].values()
        )
        wanted = [f"{self._prefix}-dedup-order/4/1100", f"{self._prefix}-other-order/1/350"]
        return [
            Held(
                "four messages given to the function",
                len(told) == 4,
                f"{len(told)} in {len(self._invocations)} invocations, by its log",
            ),
            Held(
                "two results processed, all others duplicate",
                processed == 2 and duplicates == len(results) - 2,
                f"{processed}, {duplicates}",
            ),
            Held(
                "two accepted writes, both of new items",
                writes == ["INSERT", "INSERT"],
                f"{', '.join(writes)}, by the table's stream",
            ),
            Held(
                "copies changed nothing",
                images[0] is not None and all(image == images[0] for image in images),
                "no item" if images[0] is None else f"attempt {images[0]['attempt']['S']} stays",
            ),
            Held("items exactly those two", items == wanted, ", ".join(items)),
            Held(
                "queue empty (waiting and in flight)",
                self._counters == (0, 0),
                f"{self._counters[0]} and {self._counters[1]}, approximately",
            ),
            Held(
                "reference item untouched",
                list(reference) == [KEEP_UNCHANGED],
                ", ".join(reference),
            ),
        ]


def _result(logged: Logged) -> Mapping[str, Any] | None:
    """What the handler logged as its result; None when it did not."""
    for line in logged.lines:
        if line.startswith(_RESULT):
            with contextlib.suppress(ValueError):
                found = json.loads(line.removeprefix(_RESULT))
                return found if isinstance(found, dict) else None
    return None
