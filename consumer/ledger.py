"""What has become of the plan's messages so far: for the end of the run and the terminal."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from analysis.schema import Message

STAMP = "onceproof.message"
"""Message attribute that carries ``<run id>:<message_no>``: it survives re-sends and redrives."""


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
    open_ids: set[str] = field(default_factory=set)
    """SQS messages received or sent again, neither deleted nor dead-lettered."""
    bodies: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    all_sent: bool = False
    kept: dict[str, tuple[bool, int]] = field(default_factory=dict)
    """By a FIFO queue: SQS message id -> sent again, message_no."""

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

    def reopen(self, message_no: int | None, sqs_message_id: str | None) -> None:
        """A message is in the queue again.

        :param sqs_message_id: its new id; None where it is not known.
        """
        if sqs_message_id is not None:
            self.open_ids.add(sqs_message_id)
        if message_no is not None:
            self.settled.discard(message_no)

    @property
    def is_settled(self) -> bool:
        return self.all_sent and not self.open_ids and self.expected <= self.settled
