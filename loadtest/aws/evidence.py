"""What was seen of a deployed run, as evidence, and what was not to be seen. Pure.

Nobody watches the mapping at work there. What became of a message is worked out: it was sent,
the queue was empty for long enough afterwards, and it is in the dead-letter queue or it is not.
Then it was deleted, and that it was deleted after the last invocation that was given it is
what Lambda does (developer guide, "Handling errors for an SQS event source in Lambda").
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.schema import (
    Ack,
    AckOutcome,
    Delivery,
    Invocation,
    Message,
    Observation,
    QueueRole,
    Row,
)
from analysis.text import count
from loadtest.aws.logs import Logged, environments
from loadtest.aws.queues import OwnMessage

UNRECORDED = {
    Observation.CALLS: "The calls of a deployed function are not recorded: its reads, its "
    "rejected writes, its retries, and which invocation made a write.",
    Observation.RESULTS: "What a deployed function returns to its mapping is not recorded.",
}
NEVER_SEEN = {
    Observation.DELETES: "When the mapping deletes a message is not to be seen; it is taken to be "
    "when the last invocation that had it ended.",
    Observation.ORDER: "Each environment has a clock of its own, so it is not known which of two "
    "calls came first where they are close.",
    Observation.OTHER_ITEMS: "In an account only the run's own items are read.",
}


@dataclass(frozen=True, slots=True)
class Attribution:
    """Which messages were given to which invocation, by the message ids in its log lines."""

    sqs_ids: Mapping[str, Sequence[str]]  # request id -> ids of the run's messages
    unseen: str | None  # why it is not complete; None: it is


def attribute(
    invocations: Sequence[Logged],
    messages: Mapping[str, Message],
    batch_size: int,
    *,
    all_whole: bool,
) -> Attribution:
    """
    :param messages: by SQS message id, those that the queue accepted.
    :param all_whole: the log has told all there is to tell.
    """
    numbers = {sqs_id: message.message_no for sqs_id, message in messages.items()}
    named = {}
    silent = crowded = 0
    for logged in invocations:
        sqs_ids = logged.sqs_ids(numbers)
        if not sqs_ids:
            silent += 1
        elif len(sqs_ids) > batch_size:
            crowded += 1  # it speaks of messages that it was not given
        else:
            named[logged.request_id] = sqs_ids
    missing = len(numbers) - len({sqs_id for sqs_ids in named.values() for sqs_id in sqs_ids})
    return Attribution(
        named, _unseen(len(invocations), silent, crowded, missing, all_whole=all_whole)
    )


def _unseen(
    invocations: int, silent: int, crowded: int, missing: int, *, all_whole: bool
) -> str | None:
    if not invocations:
        return (
            "The function's log shows no invocation (START lines): may its role write logs, and "
            "is its system log level INFO or DEBUG?"
        )
    if not all_whole:
        return "The function's log had not told all in time: lines of some invocations are missing."
    if silent:
        return (
            f"The log lines of {silent} of {count(invocations, 'invocation')} name no message id "
            "of this run, so it is not known which messages they were given. Log the messageId of "
            "every record."
        )
    if crowded:
        return (
            f"The log lines of {count(crowded, 'invocation')} name more message ids than a batch "
            "has, so it is not known which of them they were given."
        )
    if missing:
        return f"No log line names the ids of {count(missing, 'message')} of this run."
    return None


@dataclass(frozen=True, slots=True)
class Ends:
    """How the messages came to their ends, as the queues show it."""

    quiet_at: int | None  # when the queue had been seen empty for long enough; None: never
    dead: Sequence[OwnMessage]
    unseen: str | None


def invocation_rows(invocations: Sequence[Logged]) -> list[Invocation]:
    slots = environments(invocations)
    return [
        logged.row(number, slots[logged.stream]) for number, logged in enumerate(invocations, 1)
    ]


def delivery_rows(
    messages: Mapping[str, Message],
    invocations: Sequence[Invocation],
    attribution: Attribution,
    ends: Ends,
) -> Iterator[Row]:
    """Deliveries and how each ended, as far as it can be told.

    A message that no log line names and that has come to its end has one delivery, to an
    invocation that is not known.
    """
    given: dict[str, list[Invocation]] = defaultdict(list)
    for invocation in invocations:
        for sqs_id in attribution.sqs_ids.get(invocation.request_id, ()):
            given[sqs_id].append(invocation)
    dead_ids = {letter.sqs_message_id for letter in ends.dead}
    # A handler's own message in the dead-letter queue: the one that it came from was set aside.
    aside = Counter(letter.message_no for letter in ends.dead if not letter.is_marked)
    ids = iter(range(1, 2 * sum(map(len, given.values())) + 2 * len(messages) + len(ends.dead) + 1))
    has_ended = ends.quiet_at is not None and ends.unseen is None
    for sqs_id, message in messages.items():
        is_dead = sqs_id in dead_ids or aside[message.message_no] > 0
        runs = sorted(given[sqs_id], key=lambda one: one.started_at)
        for ordinal, run in enumerate(runs, 1):
            delivery = Delivery(
                delivery_id=next(ids),
                queue=QueueRole.QUEUE,
                sqs_message_id=sqs_id,
                message_no=message.message_no,
                receive_count=ordinal,
                received_at=run.started_at,
                invocation_id=run.invocation_id,
            )
            yield delivery
            is_last = ordinal == len(runs)
            ended_at = run.ended_at if run.ended_at is not None else ends.quiet_at
            if has_ended and ended_at is not None and (is_dead or not is_last):
                yield Ack(delivery.delivery_id, ended_at, AckOutcome.RETURNED)
            elif has_ended and ended_at is not None:
                yield Ack(delivery.delivery_id, ended_at, AckOutcome.DELETED)
        if not runs and has_ended and not is_dead:
            assert ends.quiet_at is not None
            unknown = Delivery(
                delivery_id=next(ids),
                queue=QueueRole.QUEUE,
                sqs_message_id=sqs_id,
                message_no=message.message_no,
                receive_count=1,
                received_at=ends.quiet_at,
                invocation_id=None,
            )
            yield unknown
            yield Ack(unknown.delivery_id, ends.quiet_at, AckOutcome.DELETED)
    for letter in ends.dead:
        dead = Delivery(
            delivery_id=next(ids),
            queue=QueueRole.DEAD_LETTER,
            sqs_message_id=letter.sqs_message_id,
            message_no=letter.message_no,
            receive_count=letter.receive_count,
            received_at=letter.received_at,
            invocation_id=None,
        )
        yield dead
        yield Ack(dead.delivery_id, letter.received_at, AckOutcome.DEAD_LETTERED)
