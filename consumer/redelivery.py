"""The faults of deliveries: what at-least-once means between the queue and the handler.

One receive of one message meets one fault at most.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from analysis.schema import Delivery
from consumer.acknowledging import may_take_receive
from consumer.batching import Pair
from consumer.faults import FaultName, Strike, Where
from consumer.injector import Injector
from consumer.recorder import Recorder
from consumer.sqs_queue import Queue, Received

_HELD_BACK_S = 2.0
"""How long a message is held back for its second receive, or for messages behind it."""


@dataclass(frozen=True, slots=True)
class _Held:
    received: Received
    strike: Strike
    limit: asyncio.TimerHandle


class DeliveryFaults:
    """Stands between the mapping's receives and its batches.

    :param batch_size: above 1 a message can stand twice in one batch.
    :param environments: from 2 on two runs can overlap.
    :param hand_on: takes messages that were held back; each unit stays in one batch.
    :param run_together: takes two receives of one message.
    :param unused: takes a message that is not given to the handler.
    """

    def __init__(
        self,
        queue: Queue,
        injector: Injector,
        recorder: Recorder,
        *,
        batch_size: int,
        environments: int,
        hand_on: Callable[[Iterable[Sequence[Received]]], None],
        run_together: Callable[[Pair], None],
        unused: Callable[[Received], None],
    ) -> None:
        self._queue = queue
        self._injector = injector
        self._recorder = recorder
        self._hand_on = hand_on
        self._run_together = run_together
        self._unused = unused
        self._names = [FaultName.SHORT_VISIBILITY, FaultName.RECEIVE_WITHOUT_RUN]
        if environments > 1:
            self._names.append(FaultName.REDELIVER_DURING)
        if batch_size > 1:
            self._names.append(FaultName.SAME_MESSAGE_TWICE)
        if not queue.address.fifo:  # which keeps its order
            self._names.append(FaultName.OUT_OF_ORDER)
        self._held: dict[str, _Held] = {}  # by SQS message id
        self._late: list[_Held] = []
        self._newest = 0  # delivery handed on so far

    @property
    def held(self) -> int:
        """Messages that wait for their second receive."""
        return len(self._held)

    def close(self) -> None:
        """Hold nothing back any longer, and hand nothing on."""
        for one in (*self._held.values(), *self._late):
            one.limit.cancel()

    async def meet(self, messages: Sequence[Received]) -> None:
        """Hand on what was received, with the faults that strike it."""
        late, self._late = self._late, []  # behind these they are out of order
        units: list[Sequence[Received]] = []
        in_groups = Counter(received.group for received in messages if received.group)
        blocked: set[str] = set()  # groups whose next message was not given to the handler
        for received in messages:
            held = self._held.pop(received.sqs_message_id, None)
            if held is not None:
                held.limit.cancel()
                start = asyncio.Barrier(2)
                self._run_together(Pair(held.received, received, held.strike, start))
                continue
            group = received.group if self._queue.address.fifo else None
            if group in blocked:
                self._unused(received)
                continue
            strike = self._strike(received, has_company=group is not None and in_groups[group] > 1)
            unit = [received] if strike is None else await self._carry_out(strike, received)
            if unit:
                units.append(unit)
            elif group is not None and strike and strike.name is FaultName.RECEIVE_WITHOUT_RUN:
                blocked.add(group)
        self._pass(units)
        self._overtaken(late)

    def _strike(self, received: Received, *, has_company: bool) -> Strike | None:
        """
        :param has_company: others of its FIFO group were received with it: a second receive
            would have to wait for them, and they for it.
        """
        if received.message_no is None:
            return None
        strike = self._injector.strike(
            Where.DELIVERY,
            *(
                name
                for name in self._names
                if not (has_company and name is FaultName.REDELIVER_DURING)
            ),
            message_no=received.message_no,
            receive=received.receive_count,
        )
        if strike is None or strike.name in (FaultName.OUT_OF_ORDER, FaultName.SAME_MESSAGE_TWICE):
            return strike
        return strike if may_take_receive(strike, received, self._queue) else None

    async def _carry_out(self, strike: Strike, received: Received) -> list[Received]:
        """What is handed on now."""
        match strike.name:
            case FaultName.REDELIVER_DURING:
                if await self._queue.hide(received, 0):
                    self._hold_back(strike, received)
                    return []
            case FaultName.SHORT_VISIBILITY:
                seconds = math.ceil(strike.seconds)  # SQS takes whole seconds
                if await self._queue.hide(received, seconds):
                    self._fire(strike, received, detail=f"visible again after {seconds} s")
            case FaultName.SAME_MESSAGE_TWICE:
                self._fire(strike, received)
                again = replace(received, delivery_id=self._recorder.next_id(Delivery))
                return [received, again]
            case FaultName.RECEIVE_WITHOUT_RUN:
                self._fire(strike, received)
                self._unused(received)
                return []
            case FaultName.OUT_OF_ORDER:
                limit = asyncio.get_running_loop().call_later(_HELD_BACK_S, self._give_up_late)
                self._late.append(_Held(received, strike, limit))
                return []
        return [received]

    def _hold_back(self, strike: Strike, received: Received) -> None:
        def give_up() -> None:
            del self._held[received.sqs_message_id]
            self._pass([[received]])

        limit = asyncio.get_running_loop().call_later(_HELD_BACK_S, give_up)
        self._held[received.sqs_message_id] = _Held(received, strike, limit)

    def _give_up_late(self) -> None:
        late, self._late = self._late, []
        self._overtaken(late)

    def _overtaken(self, late: Sequence[_Held]) -> None:
        """Hand on what was received before others, the last of them first."""
        for one in reversed(late):
            one.limit.cancel()
            if self._newest > one.received.delivery_id:
                self._fire(one.strike, one.received)
            self._pass([[one.received]])

    def _pass(self, units: Sequence[Sequence[Received]]) -> None:
        for unit in units:
            self._newest = max(self._newest, unit[0].delivery_id)
        self._hand_on(units)

    def _fire(self, strike: Strike, received: Received, detail: str | None = None) -> None:
        self._injector.fire(strike, delivery_id=received.delivery_id, detail=detail)
