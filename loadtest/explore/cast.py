"""The messages of one exploration, and what each of their receives looks like to the handler.

The same few messages are played many times: once to learn what the handler does, then once
for each schedule that is carried out for real. Each *performance* has order ids, message
ids and chance of its own, so that they can share one store and one set of evidence.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.schema import MessageKind
from consumer.clock import Clock
from consumer.explore_environment import Start
from consumer.mapping import sqs_event
from consumer.runtime_api import Job
from consumer.sqs_queue import QueueAddress
from loadtest.envelopes import Letter, envelope_id, wrapped
from loadtest.explore.model import Received, Run
from loadtest.orders import (
    Dice,
    MessageAttribute,
    OrderShape,
    attribute_value,
    body_text,
    conflicting_values,
    draw_values,
    expected_item,
    message_attributes,
    new_id,
    poison_bodies,
)
from loadtest.plan import PlannedMessage

LEARNING = 0
"""The performance in which the handler is learned."""

BASE_TIME_S = 1_767_225_600
"""What a handler's clock says in the first epoch: the beginning of 2026. The same in every
exploration, so that times in requests are the same too."""

_PATIENCE_S = 20.0


class Cast:
    """
    :param copies: messages in all, at most; smaller worlds take the first of them.
    :param orders: the messages are theirs in turn.
    :param conflict: the second message has the first one's order key and other details.
    :param poison: after one message of each order, and the conflict, comes one that no handler
        can accept.
    """

    def __init__(
        self,
        shape: OrderShape,
        *,
        copies: int,
        orders: int,
        conflict: bool,
        poison: bool,
        seed: int,
    ) -> None:
        dice = Dice(seed, "explore details")
        values = [draw_values(shape, dice) for _ in range(orders)]
        self._shape = shape
        self._seed = seed
        self._orders = [number % orders for number in range(copies)]
        self._values = [values[order] for order in self._orders]
        kinds = [
            MessageKind.ORDER if number < orders else MessageKind.COPY for number in range(copies)
        ]
        if conflict and copies > 1:
            self._orders[1] = 0
            self._values[1] = conflicting_values(shape, values[0], dice)
            kinds[1] = MessageKind.CONFLICT
            if orders > 1 and copies > 2:
                self._orders[2], self._values[2], kinds[2] = 1, values[1], MessageKind.ORDER
        place = orders + conflict
        if poison and copies > place:
            self._orders[place], self._values[place] = orders, draw_values(shape, dice)
            kinds[place] = MessageKind.POISON
        self._kinds = kinds
        told = [
            (order, repr(value)) for order, value in zip(self._orders, self._values, strict=True)
        ]
        self.bodies = tuple(told.index(one) for one in told)
        """One number a copy; copies with equal numbers have equal bodies."""

    def keys(self, performance: int) -> list[str]:
        """The order ids of a performance, in the order of its orders."""
        keys: list[str] = []
        for order in range(max(self._orders) + 1):
            dice = Dice(self._seed, f"explore ids {performance} {order}")
            keys.append(new_id(self._shape, dice, keys))
        return keys

    def messages(self, performance: int, copies: int, first_no: int = 1) -> list[PlannedMessage]:
        keys = self.keys(performance)
        messages = []
        for copy in range(copies):
            order_key, kind = keys[self._orders[copy]], self._kinds[copy]
            attributes = message_attributes(self._shape, order_key, self._values[copy])
            if kind is MessageKind.POISON:
                body, item = self._poison(order_key), None
            else:
                body = body_text(self._shape, order_key, self._values[copy])
                item = expected_item(self._shape, body)
            if self._shape.envelope is not None:
                letter = self._letter(performance, copy, order_key, body, attributes)
                body, attributes = wrapped(self._shape.envelope, letter).body, ()
            messages.append(
                PlannedMessage(
                    first_no + copy,
                    order_key,
                    kind,
                    body,
                    item,
                    offset_ns=0,
                    attributes=attributes,
                )
            )
        return messages

    def _poison(self, order_key: str) -> str:
        """The same but for the order key, whatever that is."""
        dice = Dice(self._seed, "explore poison")
        kinds = list(poison_bodies(self._shape, order_key, dice).values())
        bodies = kinds[dice.below(len(kinds))]
        return bodies[dice.below(len(bodies))]

    def names(self, performance: int) -> dict[str, str]:
        """What is its own in the messages of a performance, by what stands for it in all."""
        names = {key: f"<order {number}>" for number, key in enumerate(self.keys(performance), 1)}
        if self._shape.envelope is not None:
            for copy in range(len(self.bodies)):
                letter = self._letter(performance, copy, "", "", ())
                names[envelope_id(letter)] = f"<envelope {self.bodies[copy] + 1}>"
        return names

    def _letter(
        self,
        performance: int,
        copy: int,
        order_key: str,
        body: str,
        attributes: tuple[MessageAttribute, ...],
    ) -> Letter:
        # Equal copies are one envelope that was delivered again: their bodies are equal.
        number = self.bodies[copy] + 1
        seed = f"{self._seed} {performance}"
        return Letter(body, number, order_key, seed, attributes=attributes)


@dataclass(frozen=True, slots=True)
class Receives:
    """Makes the start of a run from its place in the world."""

    queue: QueueAddress
    timeout_s: float
    seed: int
    clock: Clock
    pinned_clock: bool  # the handler's clock stands at a time given with each run

    @property
    def patience_s(self) -> float:
        """How long a run may go without a call before it counts as timed out. Longer than
        the function's timeout, which the handler sees on a clock of its own: a busy machine
        must not end a run that would have gone on."""
        return max(self.timeout_s, _PATIENCE_S)

    def message_id(self, performance: int, copy: int) -> str:
        return _uuid(self.seed, "message", performance, copy)

    def start(
        self, performance: int, run: Run, messages: Sequence[PlannedMessage], port: int
    ) -> Start:
        """
        :param messages: of all copies.
        """
        time_s = None
        now_s = self.clock.now_ns() / 1e9
        if self.pinned_clock:
            # No two runs start in the same moment: a time in a key must not look like a key.
            apart_s = (run.copy * self.queue.max_receive_count + run.receive) / 1000
            now_s = BASE_TIME_S + run.epoch * self.queue.visibility_timeout_s + apart_s
            time_s = now_s
        place = self.seed, performance, run.copy, run.receive, *itertools.chain(*run.others)
        event = [
            self._message(performance, received, run.epoch, messages[received[0]], now_s)
            for received in run.messages
        ]
        job = Job(
            _uuid("request", *place),
            sqs_event(event, self.queue),
            round((now_s + self.timeout_s) * 1000),
        )
        return Start(job, port, "/".join(map(str, place)), time_s)

    def _message(
        self,
        performance: int,
        received: Received,
        epoch: int,
        planned: PlannedMessage,
        now_s: float,
    ) -> dict[str, Any]:
        copy, receive = received
        body = planned.body
        sent_ms = str(round(now_s - epoch * self.queue.visibility_timeout_s) * 1000)
        attributes = {
            "ApproximateReceiveCount": str(receive),
            "SentTimestamp": sent_ms,
            "SenderId": "AIDAONCEPROOF",
            "ApproximateFirstReceiveTimestamp": sent_ms,
        }
        message_id = self.message_id(performance, copy)
        if self.queue.fifo:
            attributes |= {
                "SequenceNumber": f"{copy + 1:020d}",
                "MessageGroupId": "onceproof",
                "MessageDeduplicationId": message_id,
            }
        return {
            "MessageId": message_id,
            "ReceiptHandle": _uuid(self.seed, "receipt", performance, copy, receive),
            "Body": body,
            "Attributes": attributes,
            "MessageAttributes": {one.name: attribute_value(one) for one in planned.attributes},
            "MD5OfBody": hashlib.md5(body.encode(), usedforsecurity=False).hexdigest(),
        }


def _uuid(*identity: object) -> str:
    digest = hashlib.blake2b(repr(identity).encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))
