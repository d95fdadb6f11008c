"""Schedules carried out for real: real processes, the real store, real evidence.

The explorer is the queue here, and the mapping: it receives, starts runs, deletes. Every
call of a run is held inside the recording gateway until the schedule lets it go; faults are
carried out by the same gateway as in a flood. Several schedules share one set of evidence,
each with orders of its own, so that one pass of the checks judges them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from analysis.schema import (
    Ack,
    AckOutcome,
    Delivery,
    EffectInfo,
    Invocation,
    Message,
    QueueRole,
    Result,
    ResultInfo,
    ResultRow,
    TableInfo,
)
from consumer.batch_response import fates
from consumer.clock import Clock
from consumer.explore_environment import Ended, Fork, Zygote, next_step, with_end
from consumer.faults import KINDS, FaultName, FaultPlan, FaultRule, Occupant, Place, Strike
from consumer.gate import Gate, WireCall
from consumer.gateway import Gateway
from consumer.injector import Injector
from consumer.recorder import Recorder
from consumer.signing import Signer
from loadtest.explore.cast import LEARNING, Cast, Receives
from loadtest.explore.model import Choice, Fault, Received, Run, Schedule, named
from loadtest.explore.requests import named_alike, outline, placed, request_text
from loadtest.explore.world import MAX_CALLS
from loadtest.plan import PlannedMessage

_NAMES: Mapping[Fault, tuple[FaultName, ...]] = {
    Fault.CRASH_BEFORE: (FaultName.CRASH_BEFORE_CALL,),
    Fault.CRASH_AFTER: (FaultName.CRASH_AFTER_CALL,),
    Fault.CRASH_BEFORE_ANSWER: (FaultName.CRASH_BEFORE_ANSWER,),
    Fault.TIMEOUT: (FaultName.TIMEOUT,),
    Fault.LOST_REPLY: (FaultName.LOST_REPLY,),
    Fault.THROTTLE: (FaultName.THROTTLE,),
    Fault.TRANSACTION_CONFLICT: (FaultName.TRANSACTION_CONFLICT,),
    Fault.STALE_READ: (FaultName.STALE_READ,),
    Fault.REDELIVER: (FaultName.REDELIVER_DURING, FaultName.REDELIVER_AFTER),
}


def fault_plan(seed: int) -> FaultPlan:
    """The rules by whose numbers evidence names the faults of schedules."""
    names = [name for names in _NAMES.values() for name in names]
    return FaultPlan(tuple(FaultRule(name) for name in names), seed)


class NotFollowedError(Exception):
    """A run did something else than its schedule says."""

    def __init__(self, position: int, choice: Choice, instead: str) -> None:
        super().__init__(
            f"step {position}, {named(choice.messages)}: expected "
            f"{choice.call or 'its answer'}, got {instead}"
        )
        self.position = position  # in the schedule, from 1


@dataclass(frozen=True, slots=True)
class Followed:
    """How a schedule was followed."""

    differs: str | None  # the first call with other values than the schedule's, ids and times apart
    cut: bool  # a run was ended since it had made all the calls that it may make


class EpochClock:
    """The host's clock, ahead by the visibility timeouts that a schedule lets pass."""

    def __init__(self, host: Clock) -> None:
        self._host = host
        self._ahead_ns = 0

    def now_ns(self) -> int:
        return self._host.now_ns() + self._ahead_ns

    def pass_s(self, seconds: float) -> None:
        self._ahead_ns += round(seconds * 1e9)


class ScheduledInjector(Injector):
    """Strikes where the schedule says so, and nowhere else."""

    def __init__(self, plan: FaultPlan, recorder: Recorder, clock: Clock) -> None:
        super().__init__(plan, recorder, clock)
        self._next: dict[int, Strike] = {}
        self._struck: dict[int, asyncio.Event] = {}

    def prepare(self, name: FaultName, invocation_id: int, place: Place) -> asyncio.Event:
        """Let the next call of an invocation meet this fault; set when that has happened."""
        self._next[invocation_id] = self.strike_of(name, place)
        struck = self._struck[invocation_id] = asyncio.Event()
        return struck

    def strike_of(self, name: FaultName, place: Place) -> Strike:
        for number, rule in enumerate(self.plan.rules, 1):
            if rule.name is name:
                return Strike(number, rule, place, 0.0)
        raise KeyError(name)

    def strike_call(
        self,
        invocation_id: int | None,
        *,
        service: str,
        operation: str,
        resource: str | None,
        sdk_id: str | None,
    ) -> Strike | None:
        return None if invocation_id is None else self._next.pop(invocation_id, None)

    def fire(
        self,
        strike: Strike,
        *,
        delivery_id: int | None = None,
        invocation_id: int | None = None,
        call_id: int | None = None,
        detail: str | None = None,
    ) -> None:
        super().fire(
            strike,
            delivery_id=delivery_id,
            invocation_id=invocation_id,
            call_id=call_id,
            detail=detail,
        )
        self.opportunities[strike.number] += 1
        struck = self._struck.get(invocation_id or 0)
        if struck is not None:
            struck.set()


class _Slot:
    """A door of the gateway, and the run that is behind it now."""

    def __init__(self, number: int) -> None:
        self.slot = number
        self.current_invocation: int | None = None
        self.port = 0
        self.gate: Gate | None = None
        self.fork: Fork | None = None

    async def kill(self) -> None:
        if self.fork is not None:
            await self.fork.kill()


@dataclass(slots=True)
class _Going:
    """A run that has not ended."""

    run: Run
    slot: _Slot
    fork: Fork
    gate: Gate
    row: Invocation
    delivery_ids: tuple[int, ...]  # of the run's messages
    calls: int = 0  # let go so far
    step: tuple[WireCall, ...] | Ended | None = None
    """Where it stands: the calls that it has under way; None: it stood nowhere in time."""


@dataclass(slots=True)
class _Copy:
    """A message on its way."""

    message: PlannedMessage
    sqs_message_id: str
    receives: int = 0
    failed_in: int = -1  # epoch
    ended: bool = False  # deleted or dead-lettered
    going: int = 0  # runs under way that have it


@dataclass(slots=True)
class _Play:
    """A schedule that is being carried out."""

    performance: int
    copies: list[_Copy]
    names: Mapping[str, str]  # order ids to what stands for them in every performance
    epoch: int = 0
    differs: str | None = None  # as in Followed
    cut: bool = False
    going: dict[tuple[Received, ...], _Going] = field(default_factory=dict)  # by their messages

    def copies_of(self, going: _Going) -> list[_Copy]:
        return [self.copies[number] for number, _ in going.run.messages]


class Stagehand:
    """Carries out schedules; several may be under way at once.

    Make it inside a running event loop, and close it before the final items are read.

    :param token_salt: told apart by it are the transactions of two explorations whose handlers
        draw, by equal seeds, equal tokens.
    """

    def __init__(
        self,
        url: str,
        zygote: Zygote,
        cast: Cast,
        receives: Receives,
        recorder: Recorder,
        clock: EpochClock,
        *,
        tables: Sequence[TableInfo],
        effects: Sequence[EffectInfo],
        signer: Signer | None,
        faults: FaultPlan,
        max_receive_count: int,
        report_batch_item_failures: bool,
        result_fields: ResultInfo,
        token_salt: str,
    ) -> None:
        self.injector = ScheduledInjector(faults, recorder, clock)
        self._zygote = zygote
        self._cast = cast
        self._receives = receives
        self._recorder = recorder
        self._clock = clock
        self._max_receive_count = max_receive_count
        self._report = report_batch_item_failures
        self._fields = result_fields
        self._gateway = Gateway(
            url,
            clock,
            recorder,
            tables,
            signer,
            self.injector,
            effects,
            self._admit,
            token_salt,
        )
        self._free: list[_Slot] = []
        self._slots = 0

    async def close(self) -> None:
        await self._gateway.close()

    async def play(
        self, performance: int, schedule: Schedule, messages: Sequence[PlannedMessage]
    ) -> Followed:
        """Carry out one schedule.

        :param messages: one for each copy.
        :raises NotFollowedError: a run did something else. It and the others are killed.
        :raises ParallelCallsError: see :func:`next_step`.
        :raises HandlerError: no run can be started any more.
        :raises RecordingError: the evidence cannot be written.
        """
        play = _Play(
            performance,
            [self._send(performance, copy, message) for copy, message in enumerate(messages)],
            self._names(performance),
        )
        try:
            for position, choice in enumerate(schedule, 1):
                await self._carry_out(play, position, choice)
            for going in play.going.values():
                run = going.run
                raise NotFollowedError(
                    len(schedule) + 1,
                    Choice(run.copy, receive=run.receive, others=run.others),
                    "no further step in the schedule while this run goes on",
                )
            for number, copy in enumerate(play.copies):
                if not copy.ended:
                    raise NotFollowedError(
                        len(schedule) + 1,
                        Choice(number, receive=copy.receives),
                        "a message that is neither deleted nor dead-lettered at the end",
                    )
        finally:
            for going in list(play.going.values()):
                await going.fork.kill()
                self._leave(play, going)
        return Followed(play.differs, play.cut)

    def _names(self, performance: int) -> dict[str, str]:
        """Ids, here and where the schedule was learned, to what stands for both."""
        return self._cast.names(performance) | self._cast.names(LEARNING)

    async def _carry_out(self, play: _Play, position: int, choice: Choice) -> None:
        going = play.going.get(choice.messages)
        if going is None:
            if any(play.copies[number].ended for number, _ in choice.messages):
                raise NotFollowedError(position, choice, "no delivery: a message is settled")
            going = await self._start(play, choice.messages, None)
        asked = self._compare(play, position, choice, going)
        if choice.fault is Fault.REDELIVER:
            await self._redeliver(play, choice, going)
        elif asked is not None:
            await self._let_go(play, choice, going, asked)
        elif isinstance(going.step, tuple):
            if going.calls < MAX_CALLS:
                text = request_text(going.step[0], self._recorder.redaction)
                raise NotFollowedError(position, choice, text)
            await going.fork.kill()
            play.cut = True
            self._fail(play, going, None)
        elif choice.fault is Fault.CRASH_BEFORE_ANSWER:
            self._crash_before_answer(play, going)
        else:
            self._answer(play, going)

    def _compare(
        self, play: _Play, position: int, choice: Choice, going: _Going
    ) -> WireCall | None:
        """The call that is meant, of those that the run has under way; None: none is."""
        if going.step is None:
            raise NotFollowedError(position, choice, "neither a call nor an answer in time")
        if choice.call is None:
            return None
        if not isinstance(going.step, tuple):
            row = with_end(going.row, going.step, 0, self._receives.timeout_s)
            raise NotFollowedError(position, choice, f"the end of the run ({_end_words(row)})")
        texts = [(request_text(one, self._recorder.redaction), one) for one in going.step]
        for told in (partial(named_alike, names=play.names), partial(placed, names=play.names)):
            for text, asked in texts:
                if told(text) == told(choice.call):
                    return asked
        for text, asked in texts:
            if outline(text) == outline(choice.call):
                play.differs = play.differs or text
                return asked
        raise NotFollowedError(position, choice, " and ".join(text for text, _ in texts))

    # --- steps ---

    async def _let_go(self, play: _Play, choice: Choice, going: _Going, asked: WireCall) -> None:
        going.calls += 1
        struck = None
        if choice.fault is not None:
            (name,) = _NAMES[choice.fault]
            place = replace(self._place(name, play, going), call=going.calls)
            struck = self.injector.prepare(name, going.row.invocation_id, place)
        going.gate.let_go(asked, None)
        if struck is not None and choice.fault is Fault.TIMEOUT:
            await self._until(struck, going)
            await going.fork.kill()
            self._fail(play, going, None)
            return
        going.step = await next_step(going.gate, going.fork, self._receives.patience_s)
        if choice.fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            await going.fork.kill()  # it is dead already, or the fault could not reach it
            self._fail(play, going, Ended(-9, None))

    def _place(self, name: FaultName, play: _Play, going: _Going) -> Place:
        """By the first message of its event, as in a flood."""
        where = KINDS[name].where
        message = play.copies[going.run.copy].message
        return self.injector.message_place(where, message.message_no, going.run.receive)

    async def _until(self, struck: asyncio.Event, going: _Going) -> None:
        waits = asyncio.create_task(struck.wait())
        either: list[asyncio.Future[Any]] = [waits, going.fork.ended]
        await asyncio.wait(
            either, timeout=self._receives.patience_s, return_when=asyncio.FIRST_COMPLETED
        )
        waits.cancel()

    async def _redeliver(self, play: _Play, choice: Choice, going: _Going) -> None:
        """What may be received again of the event is, at once: while this run goes on, or what it
        has succeeded for, after it."""
        goes_on = choice.call is not None
        name = FaultName.REDELIVER_DURING if goes_on else FaultName.REDELIVER_AFTER
        strike = self.injector.strike_of(name, self._place(name, play, going))
        succeeded = list(going.run.messages)
        if not goes_on:
            succeeded = self._answer(play, going)
        messages = tuple(
            (number, receive + 1)
            for number, receive in succeeded
            if play.copies[number].receives == receive < self._max_receive_count
        )
        again = await self._start(play, messages, going.run.epoch)
        if goes_on:
            self.injector.fire(
                strike,
                delivery_id=again.delivery_ids[0],
                invocation_id=going.row.invocation_id,
                detail=f"delivery {again.delivery_ids[0]} starts together with this run",
            )
        else:
            place = going.run.messages.index(succeeded[0])
            self.injector.fire(strike, delivery_id=going.delivery_ids[place])

    def _crash_before_answer(self, play: _Play, going: _Going) -> None:
        name = FaultName.CRASH_BEFORE_ANSWER
        strike = self.injector.strike_of(name, self._place(name, play, going))
        self.injector.fire(strike, invocation_id=going.row.invocation_id)
        self._fail(play, going, Ended(-9, None))

    def _answer(self, play: _Play, going: _Going) -> list[Received]:
        """The run answered; the messages that it has succeeded for."""
        assert isinstance(going.step, Ended)
        row = self._end(going, going.step)
        copies = play.copies_of(going)
        found = fates(
            row,
            [copy.sqs_message_id for copy in copies],
            report_batch_item_failures=self._report,
            fields=self._fields,
        )
        self._leave(play, going)
        for copy, fate, delivery_id in zip(copies, found, going.delivery_ids, strict=True):
            self._result(copy, going, fate.result, fate.detail)
            if fate.succeeded:
                self._ack(delivery_id, AckOutcome.DELETED)
                copy.ended = True
            else:
                self._return(copy, going, delivery_id)
        return [
            message
            for message, fate in zip(going.run.messages, found, strict=True)
            if fate.succeeded
        ]

    def _fail(self, play: _Play, going: _Going, ended: Ended | None) -> None:
        """The run ended without an answer.

        :param ended: None: it was killed at its timeout.
        """
        row = self._end(going, ended)
        self._leave(play, going)
        for copy, delivery_id in zip(play.copies_of(going), going.delivery_ids, strict=True):
            self._result(copy, going, Result.FAILED, f"{row.error_type}: {row.error_message}")
            self._return(copy, going, delivery_id)

    def _return(self, copy: _Copy, going: _Going, delivery_id: int) -> None:
        """The message stays in the queue, or goes where those go that have failed too often."""
        self._ack(delivery_id, AckOutcome.RETURNED)
        copy.failed_in = max(copy.failed_in, going.run.epoch)
        if not copy.ended and not copy.going and copy.receives >= self._max_receive_count:
            copy.ended = True
            delivery_id = self._deliver(copy, copy.receives + 1, None, QueueRole.DEAD_LETTER)
            self._recorder.write(Ack(delivery_id, self._clock.now_ns(), AckOutcome.DEAD_LETTERED))

    # --- what the queue and the mapping do ---

    def _send(self, performance: int, copy: int, message: PlannedMessage) -> _Copy:
        message_id = self._receives.message_id(performance, copy)
        now = self._clock.now_ns()
        self._recorder.write(
            Message(
                message_no=message.message_no,
                order_key=message.order_key,
                kind=message.kind,
                body=message.body,
                expected_item=message.expected_item,
                intended_at=now,
                sent_at=now,
                accepted_at=now,
                sqs_message_id=message_id,
                attempts=1,
            )
        )
        return _Copy(message, message_id)

    async def _start(
        self, play: _Play, messages: tuple[Received, ...], epoch: int | None
    ) -> _Going:
        """Receive the messages of an event and start its run.

        :param epoch: None: the earliest in which they may be received.
        """
        if epoch is None:
            failed_in = max(play.copies[number].failed_in for number, _ in messages)
            epoch = max(play.epoch, failed_in + 1)
        if epoch > play.epoch:
            passed = epoch - play.epoch
            self._clock.pass_s(passed * self._receives.queue.visibility_timeout_s)
            play.epoch = epoch
        run = Run(*messages[0], epoch, messages[1:])
        slot = await self._slot()
        invocation_id = self._recorder.next_id(Invocation)
        delivery_ids = []
        for number, receive in messages:
            copy = play.copies[number]
            copy.receives = receive
            copy.going += 1
            delivery_ids.append(self._deliver(copy, receive, invocation_id, QueueRole.QUEUE))
        planned = [copy.message for copy in play.copies]
        start = self._receives.start(play.performance, run, planned, slot.port)
        row = Invocation(
            invocation_id=invocation_id,
            request_id=start.job.request_id,
            environment=slot.slot,
            cold=True,
            started_at=self._clock.now_ns(),
        )
        self._recorder.write(row)
        gate = slot.gate = Gate()
        slot.current_invocation = invocation_id
        slot.fork = self._zygote.fork(start)
        going = _Going(run, slot, slot.fork, gate, row, tuple(delivery_ids))
        play.going[messages] = going
        going.step = await next_step(gate, slot.fork, self._receives.patience_s)
        return going

    def _deliver(
        self, copy: _Copy, receive: int, invocation_id: int | None, queue: QueueRole
    ) -> int:
        delivery_id = self._recorder.next_id(Delivery)
        self._recorder.write(
            Delivery(
                delivery_id=delivery_id,
                queue=queue,
                sqs_message_id=copy.sqs_message_id,
                message_no=copy.message.message_no,
                receive_count=receive,
                received_at=self._clock.now_ns(),
                invocation_id=invocation_id,
            )
        )
        return delivery_id

    def _end(self, going: _Going, ended: Ended | None) -> Invocation:
        row = with_end(going.row, ended, self._clock.now_ns(), self._receives.timeout_s)
        self._recorder.write(row)
        return row

    def _result(
        self, copy: _Copy, going: _Going, result: Result | None, detail: str | None
    ) -> None:
        if result is not None:
            number = copy.message.message_no
            self._recorder.write(ResultRow(going.row.invocation_id, number, result, detail))

    def _ack(self, delivery_id: int, outcome: AckOutcome) -> None:
        self._recorder.write(Ack(delivery_id, self._clock.now_ns(), outcome))

    def _leave(self, play: _Play, going: _Going) -> None:
        """The run is over: its door is free."""
        going.gate.close()
        going.slot.current_invocation = going.slot.gate = going.slot.fork = None
        self._free.append(going.slot)
        del play.going[going.run.messages]
        for copy in play.copies_of(going):
            copy.going -= 1

    # --- doors ---

    async def _slot(self) -> _Slot:
        if self._free:
            return self._free.pop(0)
        self._slots += 1
        slot = _Slot(self._slots)
        url = await self._gateway.open_door(slot)
        slot.port = int(url.rpartition(":")[2])
        return slot

    def _admit(self, occupant: Occupant, asked: WireCall) -> AbstractAsyncContextManager[object]:
        gate = occupant.gate if isinstance(occupant, _Slot) else None
        if gate is None:
            raise ConnectionError
        return gate.passing(asked)


def _end_words(row: Invocation) -> str:
    return row.response or f"{row.error_type}: {row.error_message}"
