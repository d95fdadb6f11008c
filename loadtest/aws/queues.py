"""What the deployed queues say: counters, quiet, and the run's own messages in them.

A message of somebody else is never deleted. To be told apart it has to be received, which
counts as one of its receives; it is visible again afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.errors import TargetError
from analysis.schema import QueueRole, QueueSample
from consumer.clock import Clock
from consumer.ledger import Ledger
from loadtest.aws.account import Account, RefusedError
from loadtest.aws.deployed import DeployedQueue, counters

_BATCH = 10  # messages of one receive or delete (SQS API reference)
_HIDDEN_S = 300
"""How long a message that was received is hidden while the others are looked through."""
_MOST_FOREIGN = 1_000
_EMPTY_RECEIVES = 3
"""A long poll that brings nothing is no proof of an empty queue (SQS developer guide, "Amazon SQS
short and long polling"): so many in a row are taken for it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How patiently is asked, and how often the same must be answered."""

    every_s: float
    quiet_polls: int  # of the queue, all its counters zero
    settled_polls: int  # of log and stream, with nothing new
    log_limit_s: float  # how long log and stream may take to tell all


REAL = Pace(every_s=10.0, quiet_polls=7, settled_polls=3, log_limit_s=300.0)
"""Counters may be inconsistent for a minute after the last send (SQS API reference,
GetQueueAttributes); log lines arrive within seconds as a rule, and within minutes at worst."""
LOOPBACK = Pace(every_s=0.25, quiet_polls=4, settled_polls=3, log_limit_s=5.0)
"""For an emulator on this machine, whose counters are exact."""


async def sample(
    account: Account, queue: DeployedQueue, role: QueueRole, clock: Clock
) -> QueueSample:
    answer = await account.call(
        "sqs", "GetQueueAttributes", QueueUrl=queue.url, AttributeNames=["All"]
    )
    return QueueSample(clock.now_ns(), role, *counters(answer.get("Attributes", {})))


async def until_quiet(
    account: Account,
    queue: DeployedQueue,
    pace: Pace,
    clock: Clock,
    stop: asyncio.Event,
    on_sample: Callable[[QueueSample], None],
) -> bool:
    """Wait until the queue's counters were all zero several times in a row.

    :param stop: set to give up.
    :returns: False when it was given up.
    """
    quiet = 0
    while not stop.is_set():
        taken = await sample(account, queue, QueueRole.QUEUE, clock)
        on_sample(taken)
        quiet = quiet + 1 if taken.visible + taken.in_flight + taken.delayed == 0 else 0
        if quiet >= pace.quiet_polls:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pace.every_s):
                await stop.wait()
    return False


@dataclass(frozen=True, slots=True)
class OwnMessage:
    """A message of this run, received from one of its queues."""

    message_no: int
    sqs_message_id: str
    receipt_handle: str
    receive_count: int
    received_at: int
    is_marked: bool  # has the run's stamp; else it was known by its body alone


@dataclass(slots=True)
class Found:
    own: list[OwnMessage] = field(default_factory=list)
    foreign: int = 0
    unsure: int = 0  # of those, how many have the body of one of the run's messages
    is_complete: bool = True  # all there was to see was seen


async def own_messages(
    account: Account, queue: DeployedQueue, ledger: Ledger, clock: Clock, *, id_prefix: str | None
) -> Found:
    """Receive all that is visible, and let the others' messages be visible again.

    :param id_prefix: of the run's order ids. Given, what has the body of one of the run's
        messages with this in it, and no stamp, is the run's too: a handler that sets a message
        aside sends a new one. Without an id in it the same body may be anybody's.
    """
    found = Found()
    others: list[str] = []
    empty = 0
    try:
        while empty < _EMPTY_RECEIVES:
            answer = await account.call(
                "sqs",
                "ReceiveMessage",
                QueueUrl=queue.url,
                MaxNumberOfMessages=_BATCH,
                VisibilityTimeout=_HIDDEN_S,
                WaitTimeSeconds=1,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
            messages = answer.get("Messages", ())
            empty = 0 if messages else empty + 1
            for message in messages:
                own = _own(message, ledger, clock, id_prefix)
                if own is None:
                    others.append(message["ReceiptHandle"])
                    found.unsure += id_prefix is not None and message["Body"] in ledger.bodies
                else:
                    found.own.append(own)
            if len(others) > _MOST_FOREIGN:
                found.is_complete = False
                break
    finally:
        found.foreign = len(others)
        await _put_back(account, queue, others)
    return found


def _own(
    message: dict[str, Any], ledger: Ledger, clock: Clock, id_prefix: str | None
) -> OwnMessage | None:
    number = ledger.message_no(message)
    is_marked = number is not None
    if number is None and id_prefix and id_prefix in message["Body"]:
        number = ledger.message_no_by_body(message["Body"])
    if number is None:
        return None
    return OwnMessage(
        message_no=number,
        sqs_message_id=str(message["MessageId"]),
        receipt_handle=str(message["ReceiptHandle"]),
        receive_count=int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
        received_at=clock.now_ns(),
        is_marked=is_marked,
    )


async def _put_back(account: Account, queue: DeployedQueue, handles: Sequence[str]) -> None:
    for place in range(0, len(handles), _BATCH):
        entries = [
            {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": 0}
            for number, handle in enumerate(handles[place : place + _BATCH])
        ]
        try:
            await account.call(
                "sqs", "ChangeMessageVisibilityBatch", QueueUrl=queue.url, Entries=entries
            )
        except RefusedError as error:
            raise TargetError(
                f"{len(handles)} messages of others in queue {queue.name} stay hidden for up to "
                f"{_HIDDEN_S} s: {error}"
            ) from error


async def delete_messages(
    account: Account, queue: DeployedQueue, messages: Sequence[OwnMessage]
) -> None:
    """:raises TargetError: the queue did not delete all of them."""
    failed = 0
    for place in range(0, len(messages), _BATCH):
        entries = [
            {"Id": str(number), "ReceiptHandle": message.receipt_handle}
            for number, message in enumerate(messages[place : place + _BATCH])
        ]
        answer = await account.call(
            "sqs", "DeleteMessageBatch", QueueUrl=queue.url, Entries=entries
        )
        failed += len(answer.get("Failed", ()))
    if failed:
        raise TargetError(
            f"{failed} of {len(messages)} messages of the run could not be deleted from queue "
            f"{queue.name}."
        )
