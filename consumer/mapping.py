"""The event source mapping: receives, invokes environments concurrently, acknowledges.

What a real mapping does (Lambda developer guide, "Using Lambda with Amazon SQS"), but with
as many batches at once as there are environments from the first moment, unless told to
grow as AWS does; serial emulators never do either. A failed message is left alone: it
returns when its visibility timeout runs out, and the queue's redrive policy moves it to
the dead-letter queue.

A FIFO queue keeps its groups in order by handing out nothing of a group that has messages
in flight. So one receive is one batch here, of ``batch_size`` messages at most, and the
mapping itself only sees to it that no two batches of a group run at once when a
visibility timeout has passed in the middle of a run.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from analysis.errors import TargetError
from analysis.schema import (
    AckOutcome,
    Delivery,
    Invocation,
    QueueRole,
    Result,
    ResultInfo,
    ResultRow,
)
from consumer.acknowledging import Acknowledger, DeleteItem
from consumer.batch_response import Fate, fates
from consumer.batching import Batch, Batcher, Pair
from consumer.clock import Clock
from consumer.environment import Environment
from consumer.injector import Injector
from consumer.key_locks import KeyLocks
from consumer.ledger import Ledger, Tally
from consumer.recorder import Recorder
from consumer.redelivery import DeliveryFaults
from consumer.scaling import Scaling, joins_after_s
from consumer.sqs_queue import BATCH_MAX, Queue, QueueAddress, Received

_SAMPLE_EVERY_S = 0.5
_PREFETCH_BELOW_S = 0.5


class EventSourceMapping:
    """Drives the queue's messages through the environments until all are settled.

    :param sqs: an open aioboto3 SQS client with retries off.
    :param batching_window_s: how long a batch may wait for more messages.
    :param delete_item: carries out the fault ``item-deleted``.
    :param on_dead_letter: is told of every message seen in the dead-letter queue; answers
        whether it has put it back into the queue.
    """

    def __init__(
        self,
        sqs: Any,
        queue: QueueAddress,
        environments: Sequence[Environment],
        *,
        ledger: Ledger,
        tally: Tally,
        recorder: Recorder,
        clock: Clock,
        batch_size: int,
        report_batch_item_failures: bool,
        result_fields: ResultInfo,
        injector: Injector,
        batching_window_s: float = 0.0,
        scaling: Scaling = Scaling.FIXED,
        delete_item: DeleteItem | None = None,
        on_dead_letter: Callable[[Received], Awaitable[bool]] | None = None,
    ) -> None:
        self._address = queue
        self._queue = Queue(sqs, queue, clock)
        self._environments = environments
        self._ledger = ledger
        self._tally = tally
        self._recorder = recorder
        self._clock = clock
        self._batch_size = batch_size
        self._report = report_batch_item_failures
        self._result_fields = result_fields
        self._injector = injector
        self._scaling = scaling
        self._on_dead_letter = on_dead_letter
        self._acks = Acknowledger(
            self._queue,
            ledger=ledger,
            tally=tally,
            recorder=recorder,
            clock=clock,
            injector=injector,
            delete_item=delete_item,
        )
        self._batcher = Batcher(batch_size, batching_window_s, self._ready)
        self._faults = DeliveryFaults(
            self._queue,
            injector,
            recorder,
            batch_size=batch_size,
            environments=len(environments),
            hand_on=self._hand_on,
            run_together=self._run_together,
            unused=self._unused,
        )
        self._batches: asyncio.Queue[Batch] = asyncio.Queue()
        self._groups = KeyLocks()  # of a FIFO queue
        self._joined = 0
        self._idle = 0
        self._buffered = 0
        self._work_changed = asyncio.Event()
        self._handler_s = 0.0  # moving mean of the handler's duration
        self._quiet = asyncio.Event()
        self._stopping = False

    async def run(self, drain: asyncio.Event) -> None:
        """Work until every message is settled or ``drain`` says to stop.

        :raises HandlerError: an environment cannot be (re)started.
        :raises TargetError: the queue failed several times in a row.
        :raises RecordingError: the evidence cannot be written.
        """
        polls = [
            asyncio.create_task(self._poll()),
            asyncio.create_task(self._poll_dead_letters()),
        ]
        tasks = [
            *polls,
            asyncio.create_task(self._acks.run()),
            asyncio.create_task(self._sample()),
            *(
                asyncio.create_task(self._work(environment, position))
                for position, environment in enumerate(self._environments)
            ),
        ]
        ends = [asyncio.create_task(self._quiet.wait()), asyncio.create_task(drain.wait())]
        try:
            waiting: set[asyncio.Task[Any]] = {*tasks, *ends}
            while not any(end.done() for end in ends):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    await task  # raises what the task raised
            # A receive that is cut off may still be answered, to nobody: what it took would
            # stay hidden until its visibility timeout has passed.
            self._stopping = True
            self._work_changed.set()
            await asyncio.gather(*polls)
        finally:
            self._faults.close()
            for task in [*tasks, *ends]:
                task.cancel()
            await asyncio.gather(*tasks, *ends, return_exceptions=True)
            await self._acks.finish()
            with contextlib.suppress(TargetError):
                await self._sample_once()

    # --- receiving ---

    def _room(self) -> int:
        """Messages worth receiving now.

        A message that waits here ages against its visibility timeout, so messages are
        fetched ahead only while the handler is fast, and then by the handful: a receive
        costs about 1 ms of CPU however many it returns. A message that waits for its
        second receive is asked for in any case.
        """
        if self._handler_s >= _PREFETCH_BELOW_S:
            room = self._idle * self._batch_size - self._buffered
        else:
            ahead = max(self._joined * self._batch_size, BATCH_MAX)
            room = ahead if self._buffered <= ahead // 2 else 0
        most = self._batch_size if self._address.fifo else BATCH_MAX
        return min(max(room, self._faults.held), most)

    async def _poll(self) -> None:
        while not self._stopping:
            self._work_changed.clear()
            room = self._room()
            if room <= 0:
                await self._work_changed.wait()
                continue
            received = await self._queue.receive(room)
            if received:
                await self._accept(received)
            elif self._ledger.is_settled and not self._tally.in_flight and not self._buffered:
                self._quiet.set()
                return

    async def _accept(self, messages: list[dict[str, Any]]) -> None:
        now = self._clock.now_ns()
        found = [
            Received(
                message, self._recorder.next_id(Delivery), self._ledger.message_no(message), now
            )
            for message in messages
        ]
        self._tally.deliveries += len(found)
        for received in found:
            self._ledger.open_ids.add(received.sqs_message_id)
        if self._injector.plan.rules:
            await self._faults.meet(found)
        else:
            self._hand_on([received] for received in found)

    def _hand_on(self, units: Iterable[Sequence[Received]]) -> None:
        units = list(units)
        self._buffered += sum(map(len, units))
        self._batcher.add(units)

    def _ready(self, batch: Batch) -> None:
        self._batches.put_nowait(batch)

    def _run_together(self, pair: Pair) -> None:
        # Side by side in the queue of batches, so the next two free environments have them.
        self._buffered += 2
        for received in (pair.first, pair.second):
            self._ready(Batch([received], pair))

    def _unused(self, received: Received) -> None:
        """Received, but not given to the handler."""
        self._record_deliveries([received], None)
        self._acks.returned(received)

    # --- invoking ---

    async def _work(self, environment: Environment, position: int) -> None:
        await asyncio.sleep(joins_after_s(self._scaling, position))
        self._joined += 1
        while True:
            await environment.prepare()
            self._idle += 1
            self._work_changed.set()
            batch = await self._batches.get()
            self._idle -= 1
            self._buffered -= len(batch.messages)
            self._work_changed.set()
            if batch.pair is not None:
                await batch.pair.start.wait()
                await self._invoke(environment, batch)
                continue
            groups = {("", received.group) for received in batch.messages if received.group}
            async with self._groups.hold(groups, exclusive=True):
                await self._handle(environment, batch)

    async def _handle(self, environment: Environment, batch: Batch) -> None:
        age_s = (self._clock.now_ns() - batch.messages[0].received_at) / 1e9
        if age_s >= self._address.visibility_timeout_s:
            # Already visible to the next receive: running it would be a second run on purpose.
            for received in batch.messages:
                self._unused(received)
        else:
            await self._invoke(environment, batch)

    async def _invoke(self, environment: Environment, batch: Batch) -> None:
        messages, pair = batch.messages, batch.pair
        invocation_id = self._recorder.next_id(Invocation)
        self._record_deliveries(messages, invocation_id)
        if pair is not None and pair.first in messages:
            self._injector.fire(
                pair.strike,
                delivery_id=pair.second.delivery_id,
                invocation_id=invocation_id,
                detail=f"delivery {pair.second.delivery_id} starts together with this run",
            )
        self._tally.in_flight += len(messages)
        self._injector.begin(invocation_id, messages[0].message_no, messages[0].receive_count)
        event = sqs_event([received.message for received in messages], self._address)
        try:
            ended = await environment.invoke(event, invocation_id)
        finally:
            self._injector.end(invocation_id)
            self._tally.in_flight -= len(messages)
        assert ended.ended_at is not None
        self._handler_s += 0.2 * ((ended.ended_at - ended.started_at) / 1e9 - self._handler_s)
        found = fates(
            ended,
            [received.sqs_message_id for received in messages],
            report_batch_item_failures=self._report,
            fields=self._result_fields,
        )
        self._record_results(invocation_id, messages, found)
        for received, fate in zip(messages, found, strict=True):
            if fate.succeeded:
                await self._acks.succeeded(received)
            else:
                self._acks.returned(received)

    def _record_results(
        self, invocation_id: int, messages: Sequence[Received], found: Sequence[Fate]
    ) -> None:
        reported: set[int] = set()
        for received, fate in zip(messages, found, strict=True):
            match fate.result:
                case Result.PROCESSED:
                    self._tally.processed += 1
                case Result.DUPLICATE:
                    self._tally.duplicates += 1
                case Result.FAILED:
                    self._tally.failed += 1
            number = received.message_no
            # Of a message that stands twice in its batch the first record counts.
            if fate.result is not None and number is not None and number not in reported:
                reported.add(number)
                self._recorder.write(ResultRow(invocation_id, number, fate.result, fate.detail))

    # --- the dead-letter queue ---

    async def _poll_dead_letters(self) -> None:
        while not self._stopping:
            messages = await self._queue.receive_dead_letters()
            for message in messages:
                number = self._ledger.message_no(message)
                if number is None:
                    number = self._ledger.message_no_by_body(message["Body"])
                await self._dead_letter(
                    Received(
                        message, self._recorder.next_id(Delivery), number, self._clock.now_ns()
                    )
                )

    async def _dead_letter(self, received: Received) -> None:
        self._record_deliveries([received], None, QueueRole.DEAD_LETTER)
        self._acks.record(received, AckOutcome.DEAD_LETTERED)
        self._tally.dead_lettered += 1
        if self._on_dead_letter is not None and await self._on_dead_letter(received):
            self._ledger.open_ids.discard(received.sqs_message_id)
        else:
            self._acks.end(received.message_no, received.sqs_message_id)
        if self._address.fifo:
            # Hidden, it would hide all that comes after it in its group.
            await self._queue.delete_dead_letters([received.receipt_handle])

    # --- recording ---

    def _record_deliveries(
        self,
        messages: Sequence[Received],
        invocation_id: int | None,
        queue: QueueRole = QueueRole.QUEUE,
    ) -> None:
        for received in messages:
            self._recorder.write(
                Delivery(
                    delivery_id=received.delivery_id,
                    queue=queue,
                    sqs_message_id=received.sqs_message_id,
                    message_no=received.message_no,
                    receive_count=received.receive_count,
                    received_at=received.received_at,
                    invocation_id=invocation_id,
                )
            )

    async def _sample(self) -> None:
        while True:
            await self._sample_once()
            await asyncio.sleep(_SAMPLE_EVERY_S)

    async def _sample_once(self) -> None:
        """Record both queues' own counters."""
        for role in QueueRole:
            sample = await self._queue.sample(role)
            self._recorder.write(sample)
            if role is QueueRole.QUEUE:
                self._tally.visible = sample.visible


def sqs_event(messages: Iterable[Mapping[str, Any]], queue: QueueAddress) -> bytes:
    """The event for a batch.

    :param messages: as ReceiveMessage gives them.
    """
    records = [
        {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": {
                name: _event_attribute(value)
                for name, value in message.get("MessageAttributes", {}).items()
            },
            "md5OfBody": message.get("MD5OfBody", ""),
            "eventSource": "aws:sqs",
            "eventSourceARN": queue.arn,
            "awsRegion": queue.region,
        }
        for message in messages
    ]
    return json.dumps({"Records": records}, ensure_ascii=False).encode()


def _event_attribute(value: dict[str, Any]) -> dict[str, Any]:
    """A message attribute as Lambda spells it: camel case, bytes as base64, and no member for
    the value that it does not have."""
    found: dict[str, Any] = {}
    if "StringValue" in value:
        found["stringValue"] = value["StringValue"]
    if "BinaryValue" in value:
        found["binaryValue"] = base64.b64encode(value["BinaryValue"]).decode()
    return {
        **found,
        "stringListValues": [],
        "binaryListValues": [],
        "dataType": value.get("DataType"),
    }
