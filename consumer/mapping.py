"""The event source mapping: receives, invokes environments concurrently, acknowledges.

What a real mapping does (Lambda developer guide, "Using Lambda with Amazon SQS"), but with
as many batches at once as there are environments from the first moment, which serial
emulators never do. A failed message is left alone: it returns when its visibility timeout
runs out, and the queue's redrive policy moves it to the dead-letter queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from analysis.errors import TargetError
from analysis.schema import (
    Ack,
    AckOutcome,
    Delivery,
    Invocation,
    Message,
    QueueRole,
    QueueSample,
    Result,
    ResultInfo,
    ResultRow,
)
from consumer.batch_response import Fate, fates
from consumer.clock import Clock
from consumer.environment import Environment
from consumer.injector import Injector
from consumer.recorder import Recorder

STAMP = "onceproof.message"
"""Message attribute that carries ``<run id>:<message_no>``: it survives re-sends and redrives."""

_RECEIVE_MAX = 10  # messages a ReceiveMessage may return (SQS API reference)
_LONG_POLL_S = 1
_DELETE_LINGER_S = 0.02
_SAMPLE_EVERY_S = 0.5
_DEAD_LETTER_HIDDEN_S = 43_200  # the longest visibility timeout: each is seen once
_PREFETCH_BELOW_S = 0.5
_PATIENCE = 5  # times an AWS call of the mapping may fail in a row


@dataclass(frozen=True, slots=True)
class QueueAddress:
    url: str
    arn: str
    dead_letter_url: str
    region: str
    visibility_timeout_s: int
    max_receive_count: int


@dataclass(slots=True)
class Tally:
    """Running totals, for the terminal; the verdict counts the evidence instead."""

    deliveries: int = 0
    in_flight: int = 0
    processed: int = 0
    duplicates: int = 0
    failed: int = 0
    deleted: int = 0
    dead_lettered: int = 0
    settled: int = 0
    visible: int = 0
    dead_letters_due_at: int = 0  # when the last message that failed so far has spent its receives


@dataclass(slots=True)
class Ledger:
    """Which messages of the plan have come to their end."""

    run_id: str
    expected: set[int] = field(default_factory=set)  # accepted by the queue
    settled: set[int] = field(default_factory=set)
    open_ids: set[str] = field(default_factory=set)  # received, neither deleted nor dead-lettered
    bodies: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    all_sent: bool = False

    def plan(self, message: Message) -> None:
        self.bodies[message.body].append(message.message_no)

    def message_no(self, received: dict[str, Any]) -> int | None:
        """The planned message a received one is, by its stamp."""
        stamp = received.get("MessageAttributes", {}).get(STAMP, {}).get("StringValue", "")
        run_id, _, number = stamp.rpartition(":")
        return int(number) if run_id == self.run_id and number.isdigit() else None

    def message_no_by_body(self, body: str) -> int | None:
        """A planned message with this body, for one that a handler has put aside itself."""
        numbers = self.bodies.get(body)
        if not numbers:
            return None
        numbers.rotate(-1)
        return numbers[-1]

    def end(self, message_no: int | None, sqs_message_id: str) -> None:
        self.open_ids.discard(sqs_message_id)
        if message_no is not None:
            self.settled.add(message_no)

    @property
    def is_settled(self) -> bool:
        return self.all_sent and not self.open_ids and self.expected <= self.settled


@dataclass(frozen=True, slots=True)
class _Received:
    message: dict[str, Any]
    delivery_id: int
    message_no: int | None
    received_at: int

    @property
    def sqs_message_id(self) -> str:
        return str(self.message["MessageId"])

    @property
    def receive_count(self) -> int:
        return int(self.message.get("Attributes", {}).get("ApproximateReceiveCount", 1))


class EventSourceMapping:
    """Drives the queue's messages through the environments until all are settled.

    :param sqs: an open aioboto3 SQS client with retries off.
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
    ) -> None:
        self._sqs = sqs
        self._queue = queue
        self._environments = environments
        self._ledger = ledger
        self._tally = tally
        self._recorder = recorder
        self._clock = clock
        self._batch_size = batch_size
        self._report = report_batch_item_failures
        self._result_fields = result_fields
        self._injector = injector
        self._batches: asyncio.Queue[list[_Received]] = asyncio.Queue()
        self._idle = 0
        self._buffered = 0
        self._work_changed = asyncio.Event()
        self._handler_s = 0.0  # moving mean of the handler's duration
        self._to_delete: list[_Received] = []
        self._delete_wanted = asyncio.Event()
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
            asyncio.create_task(self._delete_by_tens()),
            asyncio.create_task(self._sample()),
            *(asyncio.create_task(self._work(environment)) for environment in self._environments),
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
            for task in [*tasks, *ends]:
                task.cancel()
            await asyncio.gather(*tasks, *ends, return_exceptions=True)
            with contextlib.suppress(TargetError):
                while self._to_delete:
                    await self._delete(self._to_delete[:_RECEIVE_MAX])
                await self._sample_once()

    # --- receiving ---

    def _room(self) -> int:
        """Messages worth receiving now.

        A message that waits here ages against its visibility timeout, so messages are
        fetched ahead only while the handler is fast, and then by the handful: a receive
        costs about 1 ms of CPU however many it returns.
        """
        if self._handler_s >= _PREFETCH_BELOW_S:
            return self._idle * self._batch_size - self._buffered
        ahead = max(len(self._environments) * self._batch_size, _RECEIVE_MAX)
        return ahead if self._buffered <= ahead // 2 else 0

    async def _poll(self) -> None:
        while not self._stopping:
            self._work_changed.clear()
            room = self._room()
            if room <= 0:
                await self._work_changed.wait()
                continue
            received = await self._receive(
                self._queue.url, min(room, _RECEIVE_MAX), self._queue.visibility_timeout_s
            )
            if received:
                self._accept(received)
            elif self._ledger.is_settled and not self._tally.in_flight and not self._buffered:
                self._quiet.set()
                return

    def _accept(self, messages: list[dict[str, Any]]) -> None:
        now = self._clock.now_ns()
        found = [
            _Received(
                message, self._recorder.next_id(Delivery), self._ledger.message_no(message), now
            )
            for message in messages
        ]
        self._tally.deliveries += len(found)
        self._buffered += len(found)
        for received in found:
            self._ledger.open_ids.add(received.sqs_message_id)
        for start in range(0, len(found), self._batch_size):
            self._batches.put_nowait(found[start : start + self._batch_size])

    async def _receive(
        self, url: str, at_most: int, visibility_timeout_s: int
    ) -> list[dict[str, Any]]:
        response = await self._patiently(
            self._sqs.receive_message,
            QueueUrl=url,
            MaxNumberOfMessages=at_most,
            VisibilityTimeout=visibility_timeout_s,
            WaitTimeSeconds=_LONG_POLL_S,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return list(response.get("Messages", ()))

    async def _patiently(self, call: Any, **arguments: Any) -> dict[str, Any]:
        """An AWS call of the mapping's own, repeated when it fails."""
        for attempt in range(1, _PATIENCE + 1):
            try:
                response: dict[str, Any] = await call(**arguments)
                return response
            except (BotoCoreError, ClientError) as error:
                if attempt == _PATIENCE:
                    raise TargetError(
                        f"the queue failed {_PATIENCE} times in a row during the run: {error}. "
                        "What was recorded can still be judged."
                    ) from error
                await asyncio.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")

    # --- invoking ---

    async def _work(self, environment: Environment) -> None:
        while True:
            await environment.prepare()
            self._idle += 1
            self._work_changed.set()
            batch = await self._batches.get()
            self._idle -= 1
            self._buffered -= len(batch)
            self._work_changed.set()
            await self._handle(environment, batch)

    async def _handle(self, environment: Environment, batch: list[_Received]) -> None:
        age_s = (self._clock.now_ns() - batch[0].received_at) / 1e9
        if age_s >= self._queue.visibility_timeout_s:
            # Already visible to the next receive: running it would be a second run on purpose.
            self._record_deliveries(batch, None)
            for received in batch:
                self._record_ack(received, AckOutcome.RETURNED)
            return
        invocation_id = self._recorder.next_id(Invocation)
        self._record_deliveries(batch, invocation_id)
        self._tally.in_flight += len(batch)
        self._injector.begin(invocation_id, batch[0].message_no, batch[0].receive_count)
        try:
            ended = await environment.invoke(self._event(batch), invocation_id)
        finally:
            self._injector.end(invocation_id)
            self._tally.in_flight -= len(batch)
        assert ended.ended_at is not None
        self._handler_s += 0.2 * ((ended.ended_at - ended.started_at) / 1e9 - self._handler_s)
        found = fates(
            ended,
            [received.sqs_message_id for received in batch],
            report_batch_item_failures=self._report,
            fields=self._result_fields,
        )
        for received, fate in zip(batch, found, strict=True):
            self._settle(received, invocation_id, fate)

    def _settle(self, received: _Received, invocation_id: int, fate: Fate) -> None:
        match fate.result:
            case Result.PROCESSED:
                self._tally.processed += 1
            case Result.DUPLICATE:
                self._tally.duplicates += 1
            case Result.FAILED:
                self._tally.failed += 1
        if fate.result is not None and received.message_no is not None:
            self._recorder.write(
                ResultRow(invocation_id, received.message_no, fate.result, fate.detail)
            )
        if fate.succeeded:
            self._to_delete.append(received)
            self._delete_wanted.set()
        else:
            self._record_ack(received, AckOutcome.RETURNED)
            receives_left = self._queue.max_receive_count - received.receive_count + 1
            due_at = received.received_at + receives_left * self._queue.visibility_timeout_s * 10**9
            self._tally.dead_letters_due_at = max(self._tally.dead_letters_due_at, due_at)

    def _event(self, batch: list[_Received]) -> bytes:
        records = [
            {
                "messageId": received.sqs_message_id,
                "receiptHandle": received.message["ReceiptHandle"],
                "body": received.message["Body"],
                "attributes": received.message.get("Attributes", {}),
                "messageAttributes": {
                    name: _event_attribute(value)
                    for name, value in received.message.get("MessageAttributes", {}).items()
                },
                "md5OfBody": received.message.get("MD5OfBody", ""),
                "eventSource": "aws:sqs",
                "eventSourceARN": self._queue.arn,
                "awsRegion": self._queue.region,
            }
            for received in batch
        ]
        return json.dumps({"Records": records}, ensure_ascii=False).encode()

    # --- acknowledging ---

    async def _delete_by_tens(self) -> None:
        while True:
            await self._delete_wanted.wait()
            if len(self._to_delete) < _RECEIVE_MAX:
                await asyncio.sleep(_DELETE_LINGER_S)
            await self._delete(self._to_delete[:_RECEIVE_MAX])

    async def _delete(self, batch: list[_Received]) -> None:
        entries = [
            {"Id": str(position), "ReceiptHandle": received.message["ReceiptHandle"]}
            for position, received in enumerate(batch)
        ]
        del self._to_delete[: len(batch)]
        if not self._to_delete:
            self._delete_wanted.clear()
        response = await self._patiently(
            self._sqs.delete_message_batch, QueueUrl=self._queue.url, Entries=entries
        )
        failed = {int(entry["Id"]) for entry in response.get("Failed", ())}
        for position, received in enumerate(batch):
            if position in failed:
                self._record_ack(received, AckOutcome.DELETE_FAILED)
            else:
                self._record_ack(received, AckOutcome.DELETED)
                self._tally.deleted += 1
                self._end(received.message_no, received.sqs_message_id)

    async def _poll_dead_letters(self) -> None:
        while not self._stopping:
            messages = await self._receive(
                self._queue.dead_letter_url, _RECEIVE_MAX, _DEAD_LETTER_HIDDEN_S
            )
            for message in messages:
                number = self._ledger.message_no(message)
                if number is None:
                    number = self._ledger.message_no_by_body(message["Body"])
                received = _Received(
                    message, self._recorder.next_id(Delivery), number, self._clock.now_ns()
                )
                self._record_deliveries([received], None, QueueRole.DEAD_LETTER)
                self._record_ack(received, AckOutcome.DEAD_LETTERED)
                self._tally.dead_lettered += 1
                self._end(number, received.sqs_message_id)

    def _end(self, message_no: int | None, sqs_message_id: str) -> None:
        self._ledger.end(message_no, sqs_message_id)
        self._tally.settled = len(self._ledger.settled)

    # --- recording ---

    def _record_deliveries(
        self,
        batch: list[_Received],
        invocation_id: int | None,
        queue: QueueRole = QueueRole.QUEUE,
    ) -> None:
        for received in batch:
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

    def _record_ack(self, received: _Received, outcome: AckOutcome) -> None:
        self._recorder.write(Ack(received.delivery_id, self._clock.now_ns(), outcome))

    async def _sample(self) -> None:
        while True:
            await self._sample_once()
            await asyncio.sleep(_SAMPLE_EVERY_S)

    async def _sample_once(self) -> None:
        """Record both queues' own counters."""
        for role, url in (
            (QueueRole.QUEUE, self._queue.url),
            (QueueRole.DEAD_LETTER, self._queue.dead_letter_url),
        ):
            response = await self._patiently(
                self._sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["All"]
            )
            counters = response.get("Attributes", {})
            sample = QueueSample(
                at=self._clock.now_ns(),
                queue=role,
                visible=int(counters.get("ApproximateNumberOfMessages", 0)),
                in_flight=int(counters.get("ApproximateNumberOfMessagesNotVisible", 0)),
                delayed=int(counters.get("ApproximateNumberOfMessagesDelayed", 0)),
            )
            self._recorder.write(sample)
            if role is QueueRole.QUEUE:
                self._tally.visible = sample.visible


def _event_attribute(value: dict[str, Any]) -> dict[str, Any]:
    """A message attribute as Lambda spells it (camel case)."""
    return {
        "stringValue": value.get("StringValue"),
        "stringListValues": [],
        "binaryListValues": [],
        "dataType": value.get("DataType"),
    }
