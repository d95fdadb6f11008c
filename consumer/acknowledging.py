"""What happens to a message after its run: deleted, or left alone to come back.

The faults of acknowledgements are met here: lost, failed, or followed by somebody who
deletes the order's item.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from analysis.errors import TargetError
from analysis.schema import Ack, AckOutcome
from consumer.clock import Clock
from consumer.faults import FaultName, Strike, Where
from consumer.injector import Injector
from consumer.ledger import Ledger, Tally
from consumer.recorder import Recorder
from consumer.sqs_queue import BATCH_MAX, Queue, Received

_LINGER_S = 0.02

DeleteItem = Callable[[int], Awaitable[int | None]]
"""Deletes the stored item of a planned message's order, as somebody else would; the id of
the call that did, None when there was no item."""


class Acknowledger:
    """Deletes what succeeded, by tens; records the end of every delivery.

    :param delete_item: carries out the fault ``item-deleted``; None: it cannot happen.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        ledger: Ledger,
        tally: Tally,
        recorder: Recorder,
        clock: Clock,
        injector: Injector,
        delete_item: DeleteItem | None,
    ) -> None:
        self._queue = queue
        self._ledger = ledger
        self._tally = tally
        self._recorder = recorder
        self._clock = clock
        self._injector = injector
        self._delete_item = delete_item
        self._names = [FaultName.REDELIVER_AFTER, FaultName.DELETE_FAILS]
        if delete_item is not None:
            self._names.append(FaultName.ITEM_DELETED)
        self._waiting: list[Received] = []
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        """Delete what was given to :meth:`succeeded`, until cancelled."""
        while True:
            await self._wanted.wait()
            if len(self._waiting) < BATCH_MAX:
                await asyncio.sleep(_LINGER_S)
            await self._delete()

    async def finish(self) -> None:
        """Delete what still waits, as far as the queue lets it."""
        with contextlib.suppress(TargetError):
            while self._waiting:
                await self._delete()

    async def succeeded(self, received: Received) -> None:
        """Its run was a success: it may be deleted, unless a fault comes in between."""
        strike = self._strike(received)
        if strike is not None and await self._meet(strike, received):
            return
        self._waiting.append(received)
        self._wanted.set()

    def returned(self, received: Received) -> None:
        """It is left alone: it comes back when its visibility timeout runs out."""
        self.record(received, AckOutcome.RETURNED)
        address = self._queue.address
        receives_left = address.max_receive_count - received.receive_count + 1
        due_at = received.received_at + receives_left * address.visibility_timeout_s * 10**9
        self._tally.dead_letters_due_at = max(self._tally.dead_letters_due_at, due_at)

    def end(self, message_no: int | None, sqs_message_id: str) -> None:
        """A message has come to its end."""
        self._ledger.end(message_no, sqs_message_id)
        self._tally.settled = len(self._ledger.settled)

    def record(self, received: Received, outcome: AckOutcome) -> None:
        self._recorder.write(Ack(received.delivery_id, self._clock.now_ns(), outcome))

    def _strike(self, received: Received) -> Strike | None:
        if received.message_no is None:
            return None
        strike = self._injector.strike(
            Where.ACK,
            *self._names,
            message_no=received.message_no,
            receive=received.receive_count,
        )
        if strike and strike.name is not FaultName.ITEM_DELETED:
            return strike if may_take_receive(strike, received, self._queue) else None
        return strike

    async def _meet(self, strike: Strike, received: Received) -> bool:
        """Carry out a fault; whether it ended the delivery."""
        call_id = None
        if strike.name is FaultName.ITEM_DELETED:
            assert self._delete_item is not None
            assert received.message_no is not None
            call_id = await self._delete_item(received.message_no)
            if call_id is None:
                return False
        elif strike.name is FaultName.REDELIVER_AFTER and not await self._queue.hide(received, 0):
            return False  # its visibility timeout has passed: it comes back anyway
        else:
            self.record(received, AckOutcome.DELETE_FAILED)
        self._injector.fire(strike, delivery_id=received.delivery_id, call_id=call_id)
        return strike.name is not FaultName.ITEM_DELETED

    async def _delete(self) -> None:
        batch = self._waiting[:BATCH_MAX]
        del self._waiting[: len(batch)]
        if not self._waiting:
            self._wanted.clear()
        # A message that stood twice in its event has one handle, and needs one delete.
        handles = list(dict.fromkeys(received.receipt_handle for received in batch))
        late = {
            received.receipt_handle
            for received in batch
            if self._queue.address.fifo and self._is_visible_again(received)
        }
        failed = late | await self._queue.delete(
            [handle for handle in handles if handle not in late]
        )
        for received in batch:
            if received.receipt_handle in failed:
                self.record(received, AckOutcome.DELETE_FAILED)
            else:
                self.record(received, AckOutcome.DELETED)
                self._tally.deleted += 1
                self.end(received.message_no, received.sqs_message_id)

    def _is_visible_again(self, received: Received) -> bool:
        """Whether a FIFO queue would refuse the delete: it does once the visibility timeout
        has passed (SQS developer guide, visibility timeout), where emulators delete it."""
        age_ns = self._clock.now_ns() - received.received_at
        return age_ns >= self._queue.address.visibility_timeout_s * 10**9


def may_take_receive(strike: Strike, received: Received, queue: Queue) -> bool:
    """Whether a fault may cost a message this receive.

    The last one is spared, so that faults alone send nothing to the dead-letter queue,
    unless the rule asks for it: by ``lasting`` or by the number of the receive.
    """
    is_last = received.receive_count >= queue.address.max_receive_count
    return not is_last or strike.rule.lasting or strike.rule.receive is not None
