"""Which fault strikes now: the plan asked at every place, and what fired recorded.

The gateway, the environments and the mapping ask here and carry out what is answered; with
a plan that has no rules every answer is "none", at the cost of one comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from analysis.schema import Fault, Message, MessageKind
from consumer.clock import Clock
from consumer.faults import LASTING, FaultName, FaultPlan, FaultRule, Place, Strike, Where
from consumer.recorder import Recorder


@dataclass(frozen=True, slots=True)
class _Planned:
    order_no: int
    copy: int
    kind: MessageKind


@dataclass(slots=True)
class _Running:
    """An invocation and the SDK calls that it has made so far."""

    message_no: int | None
    receive: int | None
    calls: dict[str, int] = field(default_factory=dict)  # SDK call -> its number
    unnamed: int = 0  # calls without an id of their SDK
    struck: dict[tuple[str, int], bool] = field(default_factory=dict)  # SDK call, rule


class Injector:
    """Asks the plan, keeps count of what could have struck, records what did."""

    def __init__(self, plan: FaultPlan, recorder: Recorder, clock: Clock) -> None:
        self.plan = plan
        self.opportunities: Counter[int] = Counter()
        """Places that a rule matched, by the rule's number."""
        self.fired: Counter[int] = Counter()
        self._recorder = recorder
        self._clock = clock
        self._messages: dict[int, _Planned] = {}
        self._orders: dict[str, tuple[int, int]] = {}  # key -> order number, messages so far
        self._running: dict[int, _Running] = {}

    def plan_message(self, message: Message) -> None:
        """Learn a message of the plan; in the plan's order."""
        if message.message_no in self._messages:
            return
        number, copies = self._orders.get(message.order_key, (len(self._orders) + 1, 0))
        self._orders[message.order_key] = number, copies + 1
        self._messages[message.message_no] = _Planned(number, copies + 1, message.kind)

    # --- places ---

    def begin(self, invocation_id: int, message_no: int | None, receive: int | None) -> None:
        """An invocation starts, on a batch whose first message this is."""
        if self.plan.rules:
            self._running[invocation_id] = _Running(message_no, receive)

    def end(self, invocation_id: int) -> None:
        self._running.pop(invocation_id, None)

    def message_place(
        self, where: Where, message_no: int | None, receive: int | None = None
    ) -> Place:
        place = Place(where, message_no=message_no, receive=receive)
        planned = self._messages.get(message_no) if message_no is not None else None
        if planned is None:
            return place
        return replace(place, order_no=planned.order_no, copy=planned.copy, kind=planned.kind)

    def strike(
        self, where: Where, *names: FaultName, message_no: int | None, receive: int | None = None
    ) -> Strike | None:
        """What strikes a message, a delivery or an acknowledgement, among these names.

        It has not fired yet: say so with :meth:`fire` when it is carried out.
        """
        if not self.plan.rules:
            return None
        return self._first(self.message_place(where, message_no, receive), names)

    def strike_invocation(self, invocation_id: int, *names: FaultName) -> Strike | None:
        """What strikes a run of the handler, among these names."""
        running = self._running.get(invocation_id)
        if running is None:
            return None
        place = self.message_place(Where.INVOCATION, running.message_no, running.receive)
        return self._first(place, names)

    def strike_call(
        self,
        invocation_id: int | None,
        *,
        service: str,
        operation: str,
        resource: str | None,
        sdk_id: str | None,
    ) -> Strike | None:
        """What strikes a wire attempt. Only the first attempt of an SDK call meets a fault,
        unless the rule is lasting."""
        running = self._running.get(invocation_id) if invocation_id is not None else None
        if running is None:
            return None
        if sdk_id is None:
            running.unnamed += 1
            sdk_id = f"unnamed {running.unnamed}"
        number = running.calls.setdefault(sdk_id, len(running.calls) + 1)
        place = replace(
            self.message_place(Where.CALL, running.message_no, running.receive),
            service=service,
            operation=operation,
            resource=resource,
            call=number,
        )
        for rule_no, rule in self.plan.matching(place):
            first = (sdk_id, rule_no) not in running.struck
            if first:
                self.opportunities[rule_no] += 1
                strike = self.plan.strike(rule_no, place)
                running.struck[sdk_id, rule_no] = strike is not None
            elif (rule.lasting or rule.name is FaultName.TRANSACTION_IN_PROGRESS) and (
                running.struck[sdk_id, rule_no]
            ):
                strike = self.plan.strike(rule_no, place)
            else:
                strike = None
            if strike is not None:
                return strike
        return None

    def _first(self, place: Place, names: Sequence[FaultName]) -> Strike | None:
        for number, _ in self.plan.matching(place, names):
            self.opportunities[number] += 1
            strike = self.plan.strike(number, place)
            if strike is not None:
                return strike
        return None

    # --- recording ---

    def fire(
        self,
        strike: Strike,
        *,
        delivery_id: int | None = None,
        invocation_id: int | None = None,
        call_id: int | None = None,
        detail: str | None = None,
    ) -> None:
        """Record that a fault was carried out."""
        self.fired[strike.number] += 1
        self._recorder.write(
            Fault(
                fault_id=self._recorder.next_id(Fault),
                rule=strike.number,
                name=strike.name,
                at=self._clock.now_ns(),
                duration_ns=round(strike.seconds * 1e9),
                message_no=strike.place.message_no,
                receive=strike.place.receive,
                call=strike.place.call,
                delivery_id=delivery_id,
                invocation_id=invocation_id,
                call_id=call_id,
                detail=detail,
            )
        )


def fault_text(rule: FaultRule) -> str:
    """How ``calls.fault`` names it: ``throttle:lasting``."""
    parts = (rule.name, rule.option, LASTING if rule.lasting else None)
    return ":".join(part for part in parts if part)
