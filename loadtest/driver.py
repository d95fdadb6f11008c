"""Carries out a plan: sends every message at its intended time, in batches of ten.

Open loop: a message is due at an absolute time, whether or not earlier sends have been
answered. What falls behind is sent as soon as possible and its lag is on record.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from asyncio_throttle.throttler import Throttler
from botocore.exceptions import BotoCoreError, ClientError

from analysis.errors import OnceproofError, TargetError
from analysis.schema import Message
from consumer.clock import Clock
from consumer.faults import FaultName, Strike, Where
from consumer.injector import Injector
from consumer.ledger import STAMP, Ledger
from consumer.recorder import Recorder
from loadtest.orders import attribute_size, attribute_value
from loadtest.plan import Plan, PlannedMessage

_BATCH_MAX = 10  # entries of a SendMessageBatch (SQS API reference)
_BATCH_BYTES = 1_000_000  # below the 1 MiB limit of a batch, which counts attributes too
_ID_CHARACTERS = 128  # of a message group (SQS API reference, SendMessage)
_SENDS_AT_ONCE = 8
_ATTEMPTS = 5
_CATCH_UP = 2.0
"""After a stall the driver may send at most this many times the planned rate."""
_SINGLY_BELOW_PER_S = 200.0
_LINGER_MAX_S = 0.02
"""Above that rate a send waits this long at most for others that are due, to travel with
them: a call costs about 1 ms of CPU however many messages it carries."""


@dataclass(slots=True)
class Sent:
    """Running totals of the driver."""

    accepted: int = 0
    resent: int = 0
    refused: int = 0


class Driver:
    """
    :param sqs: an open aioboto3 SQS client with retries off: a repeat of the SDK's own
        would enqueue a second message unseen.
    """

    def __init__(
        self,
        sqs: Any,
        queue_url: str,
        plan: Plan,
        *,
        rate_per_s: float | None,
        ledger: Ledger,
        recorder: Recorder,
        clock: Clock,
        sent: Sent,
        injector: Injector,
        fifo: bool = False,
        deduplicate_by_content: bool = False,
        again: bool = False,
    ) -> None:
        """
        :param fifo: the queue is a FIFO queue; the order key is the message group.
        :param deduplicate_by_content: leave it to the FIFO queue to tell copies by their
            bodies; else each planned message has a deduplication id of its own.
        :param again: the plan has been sent before: its rows keep that first send.
        """
        self._sqs = sqs
        self._queue_url = queue_url
        self._plan = plan
        self._ledger = ledger
        self._recorder = recorder
        self._clock = clock
        self._sent = sent
        self._injector = injector
        self._fifo = fifo
        self._deduplicate_by_content = deduplicate_by_content
        self._again = again
        self._slots = asyncio.Semaphore(_SENDS_AT_ONCE)
        self._paced = rate_per_s is not None
        self._ceiling: Throttler | None = None
        self._linger_ns = 0
        if rate_per_s is not None:
            limit = max(_BATCH_MAX, math.ceil(rate_per_s * _CATCH_UP))
            self._ceiling = Throttler(rate_limit=limit)
            if rate_per_s > _SINGLY_BELOW_PER_S:
                self._linger_ns = round(min(_LINGER_MAX_S, _BATCH_MAX / rate_per_s) * 1e9)

    async def run(self, stop: asyncio.Event) -> None:
        """Send the plan; returns when the last message is accepted or given up.

        :param stop: set to send nothing further (what is under way is finished).
        :raises TargetError: the endpoint refuses to take messages at all.
        :raises RecordingError: the evidence cannot be written.
        """
        start_ns = await self._announce()
        waiting = deque(self._plan.messages)
        try:
            async with asyncio.TaskGroup() as sends:
                while waiting:
                    await self._until(start_ns + waiting[0].offset_ns + self._linger_ns, stop)
                    if stop.is_set():
                        break
                    await self._slots.acquire()
                    batch = _due(waiting, self._clock.now_ns() - start_ns)
                    if self._ceiling is not None:
                        for _ in batch:
                            await self._ceiling.acquire()
                    sends.create_task(self._send(batch, start_ns))
        except* OnceproofError as group:
            raise group.exceptions[0] from None
        finally:
            self._ledger.all_sent = True

    async def _announce(self) -> int:
        """Put the whole plan on record; the time that its offsets count from."""
        start_ns = self._clock.now_ns()
        if self._again:
            return start_ns
        if self._paced:
            # Writing takes about 10 us a message; the start lies after it, so that nothing
            # is late before it began.
            start_ns += 20_000_000 + 20_000 * len(self._plan.messages)
        for number, message in enumerate(self._plan.messages, 1):
            row = _row(message, start_ns)
            self._ledger.plan(row)
            self._injector.plan_message(row)
            self._recorder.write(row)
            if number % 500 == 0:
                await asyncio.sleep(0)
        return start_ns

    async def _until(self, due_ns: int, stop: asyncio.Event) -> None:
        wait_s = (due_ns - self._clock.now_ns()) / 1e9
        if wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await stop.wait()
            except TimeoutError:
                return

    async def _send(self, batch: Sequence[PlannedMessage], start_ns: int) -> None:
        try:
            rows = [_row(message, start_ns) for message in batch]
            sent_with = {message.message_no: message for message in batch}
            delays = self._delays(rows)
            for attempt in range(1, _ATTEMPTS + 1):
                if attempt > 1:
                    self._sent.resent += len(rows)
                    await asyncio.sleep(0.05 * 2**attempt)
                rows = await self._attempt(rows, sent_with, delays)
                if not rows:
                    return
            for row in rows:
                self._give_up(row)
        finally:
            self._slots.release()

    def _delays(self, rows: Sequence[Message]) -> dict[int, Strike]:
        """The messages that a fault delays. A FIFO queue delays none by itself."""
        if self._fifo:
            return {}
        strikes = {
            row.message_no: self._injector.strike(
                Where.MESSAGE, FaultName.LONG_DELAY, message_no=row.message_no
            )
            for row in rows
        }
        return {number: strike for number, strike in strikes.items() if strike is not None}

    def _entry(self, row: Message, message: PlannedMessage, delay: Strike | None) -> dict[str, Any]:
        stamp = f"{self._ledger.run_id}:{row.message_no}"
        entry: dict[str, Any] = {
            "Id": str(row.message_no),
            "MessageBody": row.body,
            "MessageAttributes": {
                STAMP: {"DataType": "String", "StringValue": stamp},
                **{one.name: attribute_value(one) for one in message.attributes},
            },
        }
        if delay is not None:
            entry["DelaySeconds"] = _delay_s(delay)
        if self._fifo:
            # An id may hold no blanks; those that have none stay as they are.
            group = row.order_key if message.group is None else message.group
            entry["MessageGroupId"] = quote(group, safe="")[:_ID_CHARACTERS]
            if not self._deduplicate_by_content:
                again = ":again" if self._again else ""
                entry["MessageDeduplicationId"] = f"{stamp}{again}"
        return entry

    async def _attempt(
        self,
        rows: list[Message],
        sent_with: Mapping[int, PlannedMessage],
        delays: Mapping[int, Strike],
    ) -> list[Message]:
        """Send once; the rows that have to be sent again."""
        entries = [
            self._entry(row, sent_with[row.message_no], delays.get(row.message_no)) for row in rows
        ]
        sent_at = self._clock.now_ns()
        rows = [replace(row, sent_at=sent_at, attempts=row.attempts + 1) for row in rows]
        try:
            response = await self._sqs.send_message_batch(QueueUrl=self._queue_url, Entries=entries)
        except ClientError as refusal:
            if refusal.response["ResponseMetadata"].get("HTTPStatusCode", 500) < 500 and not (
                _is_throttle(refusal)
            ):
                raise TargetError(f"the queue refuses messages: {refusal}") from refusal
            return [replace(row, error=str(refusal)) for row in rows]
        except BotoCoreError as silence:
            # Perhaps enqueued, perhaps not: sending again may make a copy, which is what
            # the stamp is for.
            return [replace(row, error=f"no answer: {silence}") for row in rows]
        accepted_at = self._clock.now_ns()
        ids = {entry["Id"]: entry["MessageId"] for entry in response.get("Successful", ())}
        failed = {entry["Id"]: entry for entry in response.get("Failed", ())}
        again: list[Message] = []
        for row in rows:
            number = str(row.message_no)
            if number in ids:
                self._accept(
                    replace(row, accepted_at=accepted_at, sqs_message_id=ids[number], error=None),
                    delays.get(row.message_no),
                )
                continue
            entry = failed.get(number, {})
            error = f"{entry.get('Code', 'no answer')}: {entry.get('Message', '')}"
            if entry.get("SenderFault"):
                self._give_up(replace(row, error=error))
            else:
                again.append(replace(row, error=error))
        return again

    def _accept(self, row: Message, delay: Strike | None) -> None:
        assert row.sqs_message_id is not None
        if self._fifo:
            this = (self._again, row.message_no)
            kept = self._ledger.kept.setdefault(row.sqs_message_id, this)
            if kept != this:
                # What a FIFO queue takes for a message that it had: it says yes, with the id
                # of that one, and delivers nothing.
                error = f"the queue deduplicated it: it has kept message {kept[1]}"
                self._give_up(replace(row, accepted_at=None, sqs_message_id=None, error=error))
                return
        self._sent.accepted += 1
        if self._again:
            self._ledger.reopen(row.message_no, row.sqs_message_id)
        else:
            self._ledger.expected.add(row.message_no)
            self._recorder.write(row)
        if delay is not None:
            self._injector.fire(delay, detail=f"DelaySeconds {_delay_s(delay)}")

    def _give_up(self, row: Message) -> None:
        self._sent.refused += 1
        if not self._again:
            self._recorder.write(row)


def _row(message: PlannedMessage, start_ns: int) -> Message:
    return Message(
        message_no=message.message_no,
        order_key=message.order_key,
        kind=message.kind,
        body=message.body,
        expected_item=message.expected_item,
        intended_at=start_ns + message.offset_ns,
    )


def _due(waiting: deque[PlannedMessage], elapsed_ns: int) -> list[PlannedMessage]:
    """Take the messages that are due from the front, as many as may travel together."""
    batch = [waiting.popleft()]
    size = _size(batch[0])
    while waiting and len(batch) < _BATCH_MAX and waiting[0].offset_ns <= elapsed_ns:
        size += _size(waiting[0])
        if size > _BATCH_BYTES:
            break
        batch.append(waiting.popleft())
    return batch


def _size(message: PlannedMessage) -> int:
    """As SQS counts it: body and attributes with their names and types."""
    return len(message.body.encode()) + sum(map(attribute_size, message.attributes))


def _delay_s(strike: Strike) -> int:
    """SQS takes whole seconds, up to 15 minutes."""
    return min(math.ceil(strike.seconds), 900)


def _is_throttle(error: ClientError) -> bool:
    return "Throttl" in error.response["Error"]["Code"]
