"""Faults that at-least-once delivery brings, and the plan of who meets which. Pure.

A plan is a list of rules and a seed. A *rule* names a fault and the places where it may
strike; a *place* is one call, invocation, delivery, acknowledgement or message, named by
what does not depend on luck: the message, its copy number, how often it was received, the
number of the call in its invocation. Whether a rule strikes at a place is a hash of the
seed, the rule and the place, so the same seed decides the same whatever order things
happen in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import itemgetter
from typing import Protocol

from analysis.schema import MessageKind


class Where(StrEnum):
    """What a fault strikes."""

    CALL = "call"  # one AWS call of the handler, at the gateway
    INVOCATION = "invocation"  # one run of the handler
    DELIVERY = "delivery"  # one receive of one message
    ACK = "acknowledgement"  # the delete after a successful run
    MESSAGE = "message"  # the sending of one message
    RUN = "run"  # the run as a whole


class FaultName(StrEnum):
    """Public names: configuration, evidence, reports."""

    LOST_REPLY = "lost-reply"
    LOST_REQUEST = "lost-request"
    THROTTLE = "throttle"
    SERVER_ERROR = "server-error"
    ACCESS_DENIED = "access-denied"
    TRANSACTION_CANCELLED = "transaction-cancelled"
    TRANSACTION_CONFLICT = "transaction-conflict"
    TRANSACTION_IN_PROGRESS = "transaction-in-progress"
    SLOW = "slow"
    STALE_READ = "stale-read"
    PARTIAL_BATCH_WRITE = "partial-batch-write"
    CRASH = "crash"
    CRASH_BEFORE_CALL = "crash-before-call"
    CRASH_AFTER_CALL = "crash-after-call"
    CRASH_BEFORE_ANSWER = "crash-before-answer"
    TIMEOUT = "timeout"
    FREEZE = "freeze"
    COLD_START = "cold-start"
    CLOCK = "clock"
    REDELIVER_DURING = "redeliver-during"
    REDELIVER_AFTER = "redeliver-after"
    SAME_MESSAGE_TWICE = "same-message-twice"
    SHORT_VISIBILITY = "short-visibility"
    RECEIVE_WITHOUT_RUN = "receive-without-run"
    OUT_OF_ORDER = "out-of-order"
    DELETE_FAILS = "delete-fails"
    LONG_DELAY = "long-delay"
    ITEM_DELETED = "item-deleted"
    REDRIVE = "redrive"
    RESEND = "resend"


@dataclass(frozen=True, slots=True)
class Kind:
    """What is fixed for all rules of one name."""

    where: Where
    imitates: str
    source: str
    options: tuple[str, ...] = ()  # words that may follow the name after a colon
    seconds: tuple[float, float] | None = None  # default duration; None: it has none
    services: tuple[str, ...] = ()  # a call fault of these services only; empty: all
    operations: tuple[str, ...] = ()  # and of these operations only


LASTING = "lasting"
"""Option of a call fault: met by every attempt that the SDK makes of the call. Of a
delivery fault: met by every further receive of the message."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fault may strike. What is not known or does not apply is None."""

    where: Where
    message_no: int | None = None  # of an invocation: its first message
    order_no: int | None = None  # orders are counted in the order of the plan, from 1
    copy: int | None = None  # the message's position among those of its order, from 1
    kind: MessageKind | None = None
    receive: int | None = None  # how often the queue says that it was received, from 1
    service: str | None = None
    operation: str | None = None
    resource: str | None = None
    call: int | None = None  # number of the call in its invocation, from 1; not of the attempt


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One line of a fault plan: strike this share of the places that match.

    A filter that is None matches everything.
    """

    name: FaultName
    rate: float = 1.0
    option: str | None = None
    lasting: bool = False
    seconds: tuple[float, float] | None = None  # lowest and highest; None: the kind's own
    service: str | None = None
    operation: str | None = None
    resource: str | None = None
    call: int | None = None
    message: int | None = None
    copy: int | None = None
    kind: MessageKind | None = None
    receive: int | None = None
    every: int | None = None  # only every n-th order of the plan

    @property
    def about(self) -> Kind:
        return KINDS[self.name]

    def matches(self, place: Place) -> bool:
        """Whether this is a place where the rule may strike."""
        about = self.about
        if place.where is not about.where:
            return False
        if about.services and place.service not in about.services:
            return False
        if about.operations and place.operation not in about.operations:
            return False
        if self.every is not None and (place.order_no is None or place.order_no % self.every):
            return False
        if self.name is FaultName.CLOCK and self.receive is None and (place.receive or 1) < 2:
            return False
        receive = None if self.lasting and place.where is Where.DELIVERY else self.receive
        return all(
            wanted is None or wanted == found
            for wanted, found in (
                (self.service, place.service),
                (self.operation, place.operation),
                (self.resource, place.resource),
                (self.call, place.call),
                (self.message, place.message_no),
                (self.copy, place.copy),
                (self.kind, place.kind),
                (receive, place.receive),
            )
        )

    def strikes(self, seed: int, number: int, place: Place) -> bool:
        """Whether the rule, the plan's ``number``-th, strikes at a place that matches."""
        return self.rate >= 1 or self._draw(seed, number, place, "strikes") < self.rate

    def duration_s(self, seed: int, number: int, place: Place) -> float:
        """How long it lasts at this place, in seconds, spread evenly over its range.

        The option ``tail`` spreads it as real latencies are: half of them in the lowest
        twentieth of the range, one in a hundred near its end.
        """
        low, high = self.seconds or self.about.seconds or (0.0, 0.0)
        share = self._draw(seed, number, place, "seconds")
        if self.option == "tail":
            share **= 4.3
        return low + (high - low) * share

    def _draw(self, seed: int, number: int, place: Place, what: str) -> float:
        lasts = self.lasting and place.where is Where.DELIVERY
        identity = (
            seed,
            number,
            what,
            place.message_no,
            None if lasts else place.receive,
            place.call,
        )
        digest = hashlib.blake2b(repr(identity).encode(), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64


@dataclass(frozen=True, slots=True)
class Strike:
    """A rule that strikes at a place."""

    number: int  # of the rule in the plan, from 1
    rule: FaultRule
    place: Place
    seconds: float

    @property
    def name(self) -> FaultName:
        return self.rule.name


@dataclass(frozen=True, slots=True)
class FaultPlan:
    rules: tuple[FaultRule, ...] = ()
    seed: int = 0
    # The rules with their numbers, by the message that they name. A plan that repeats what
    # fired in a run has a rule for each of thousands of places.
    _numbered: Mapping[int | None, Sequence[tuple[int, FaultRule]]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        numbered: dict[int | None, list[tuple[int, FaultRule]]] = {None: []}
        for number, rule in enumerate(self.rules, 1):
            numbered.setdefault(rule.message, []).append((number, rule))
        object.__setattr__(self, "_numbered", numbered)

    def matching(
        self, place: Place, names: Iterable[FaultName] | None = None
    ) -> list[tuple[int, FaultRule]]:
        """The rules that may strike at a place, with their numbers, in the plan's order."""
        wanted = None if names is None else frozenset(names)
        candidates = self._numbered[None]
        if place.message_no is not None and place.message_no in self._numbered:
            candidates = sorted((*candidates, *self._numbered[place.message_no]), key=itemgetter(0))
        return [
            (number, rule)
            for number, rule in candidates
            if (wanted is None or rule.name in wanted) and rule.matches(place)
        ]

    def strike(self, number: int, place: Place) -> Strike | None:
        """What the rule of this number does at a place that matches it."""
        rule = self.rules[number - 1]
        if not rule.strikes(self.seed, number, place):
            return None
        return Strike(number, rule, place, rule.duration_s(self.seed, number, place))

    def has(self, *names: FaultName) -> bool:
        return any(rule.name in names for rule in self.rules)


NO_FAULTS = FaultPlan()


class Occupant(Protocol):
    """The environment behind a door of the gateway, as far as faults need it."""

    @property
    def slot(self) -> int: ...

    @property
    def current_invocation(self) -> int | None: ...

    async def kill(self) -> None:
        """End its process now, as a host that dies: no handler, no ``finally`` runs."""
        ...


_AT_LEAST_ONCE = "SQS developer guide, standard queues: at-least-once delivery"
_RETRIES = "botocore retries: DynamoDB 10 attempts in legacy mode, others 5; standard mode 3"

KINDS: Mapping[FaultName, Kind] = {
    FaultName.LOST_REPLY: Kind(
        Where.CALL,
        "the call takes effect, and its reply is lost: the connection is reset, or (silent) "
        "stays open until the client's read timeout",
        "DynamoDB developer guide, error handling: an HTTP 5xx or no reply leaves a write open",
        options=("silent",),
    ),
    FaultName.LOST_REQUEST: Kind(
        Where.CALL, "the connection is reset before the service saw the request", _RETRIES
    ),
    FaultName.THROTTLE: Kind(
        Where.CALL,
        "the service refuses for its rate, in the service's own words",
        "API references: ProvisionedThroughputExceededException, RequestThrottled, SlowDown",
    ),
    FaultName.SERVER_ERROR: Kind(
        Where.CALL,
        "HTTP 500 without effect; (applied) after the effect; (unavailable) HTTP 503",
        "DynamoDB developer guide, error handling: a write that got a 500 may have been applied",
        options=("applied", "unavailable"),
    ),
    FaultName.ACCESS_DENIED: Kind(
        Where.CALL, "a permission is missing", "API references, common errors: AccessDenied"
    ),
    FaultName.TRANSACTION_CANCELLED: Kind(
        Where.CALL,
        "a transaction is cancelled for another reason than a condition",
        "DynamoDB API reference: TransactionCanceledException, cancellation reasons",
        options=(
            "throttling-error",
            "provisioned-throughput-exceeded",
            "item-collection-size-limit-exceeded",
            "validation-error",
        ),
        services=("dynamodb",),
        operations=("TransactWriteItems", "TransactGetItems"),
    ),
    FaultName.TRANSACTION_CONFLICT: Kind(
        Where.CALL,
        "another transaction holds the item: TransactionConflictException for a single write, "
        "a cancellation with the reason TransactionConflict for a transaction",
        "DynamoDB developer guide, transactions: conflict handling",
        services=("dynamodb",),
        operations=("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems"),
    ),
    FaultName.TRANSACTION_IN_PROGRESS: Kind(
        Where.CALL,
        "the reply of a transaction is lost, and the SDK's next attempt is told that the first "
        "one is still in progress",
        "DynamoDB API reference: TransactionInProgressException, which SDKs retry",
        services=("dynamodb",),
        operations=("TransactWriteItems",),
    ),
    FaultName.SLOW: Kind(
        Where.CALL,
        "the reply takes longer, evenly spread over the range or (tail) as a long tail",
        "latency of a service under load",
        options=("tail",),
        seconds=(0.05, 0.5),
    ),
    FaultName.STALE_READ: Kind(
        Where.CALL,
        "an eventually consistent read answers from before the item's last write",
        "DynamoDB developer guide, read consistency",
        services=("dynamodb",),
        operations=("GetItem", "BatchGetItem", "Query", "Scan"),
    ),
    FaultName.PARTIAL_BATCH_WRITE: Kind(
        Where.CALL,
        "a batch write makes half of its items and returns the others as unprocessed",
        "DynamoDB API reference: BatchWriteItem, UnprocessedItems",
        services=("dynamodb",),
        operations=("BatchWriteItem",),
    ),
    FaultName.CRASH: Kind(
        Where.CALL,
        "crash-before-call, crash-after-call and crash-before-answer, each at a third of the rate",
        "a host or runtime that dies",
    ),
    FaultName.CRASH_BEFORE_CALL: Kind(
        Where.CALL, "the process is killed before the call leaves", "a host or runtime that dies"
    ),
    FaultName.CRASH_AFTER_CALL: Kind(
        Where.CALL,
        "the process is killed after the call took effect, before it sees the reply",
        "a host or runtime that dies",
    ),
    FaultName.CRASH_BEFORE_ANSWER: Kind(
        Where.INVOCATION,
        "the process is killed when its work is done, before its answer counts",
        "a host or runtime that dies",
    ),
    FaultName.TIMEOUT: Kind(
        Where.CALL,
        "the call takes effect, no reply comes and the function's timeout ends the process",
        "Lambda developer guide: a function that passes its timeout is ended",
    ),
    FaultName.FREEZE: Kind(
        Where.INVOCATION,
        "the process stands still from its answer until its next event, or until the duration "
        "is over: work that was not awaited stops in the middle",
        "Lambda developer guide, runtime environment: it freezes between invocations",
        seconds=(1.0, 1.0),
    ),
    FaultName.COLD_START: Kind(
        Where.INVOCATION,
        "the event meets a new process: globals are empty, clients are made again",
        "Lambda developer guide, runtime environment: it is replaced at any time",
    ),
    FaultName.CLOCK: Kind(
        Where.INVOCATION,
        "the handler's clock is ahead: claims and leases look expired. Unless told otherwise it "
        "strikes redeliveries only",
        "clocks of hosts differ; a redelivery may come hours later",
        seconds=(3600.0, 3600.0),
    ),
    FaultName.REDELIVER_DURING: Kind(
        Where.DELIVERY,
        "the message is delivered again while its first run is still going",
        _AT_LEAST_ONCE,
    ),
    FaultName.REDELIVER_AFTER: Kind(
        Where.ACK,
        "the message is delivered again after success: its acknowledgement was lost",
        _AT_LEAST_ONCE,
    ),
    FaultName.SAME_MESSAGE_TWICE: Kind(
        Where.DELIVERY, "the message stands twice in one batch", _AT_LEAST_ONCE
    ),
    FaultName.SHORT_VISIBILITY: Kind(
        Where.DELIVERY,
        "the message is visible again after this time, whether its run has ended or not",
        "SQS developer guide, visibility timeout: no guarantee against a second receive",
        seconds=(1.0, 1.0),
    ),
    FaultName.RECEIVE_WITHOUT_RUN: Kind(
        Where.DELIVERY,
        "the mapping receives the message and the function is throttled: a receive is spent "
        "without a run",
        "Lambda developer guide, SQS event sources: throttled batches return to the queue",
    ),
    FaultName.OUT_OF_ORDER: Kind(
        Where.DELIVERY,
        "the message is handed on after those that were received behind it",
        "SQS developer guide, standard queues: best-effort ordering",
    ),
    FaultName.DELETE_FAILS: Kind(
        Where.ACK,
        "the delete after success fails; the message comes back after its visibility timeout",
        "SQS API reference: DeleteMessageBatch answers 200 with a list of failures",
    ),
    FaultName.LONG_DELAY: Kind(
        Where.MESSAGE,
        "the message becomes visible long after it was sent",
        "SQS API reference: DelaySeconds, up to 900",
        seconds=(5.0, 5.0),
    ),
    FaultName.ITEM_DELETED: Kind(
        Where.ACK,
        "after a successful run somebody else deletes the order's item, as a person or the "
        "table's time to live does",
        "DynamoDB developer guide: time to live",
    ),
    FaultName.REDRIVE: Kind(
        Where.RUN,
        "what is in the dead-letter queue goes back to the queue when everything has settled, or "
        "(early) once as soon as it arrives: new message ids, the same orders",
        "SQS API reference: StartMessageMoveTask",
        options=("early",),
    ),
    FaultName.RESEND: Kind(
        Where.RUN,
        "the producer sends the whole plan once more when everything has settled",
        "a producer that retries, a replayed export",
    ),
}


def expanded(rule: FaultRule) -> tuple[FaultRule, ...]:
    """``crash`` stands for its three kinds, each at a third of the rate; others for themselves."""
    if rule.name is not FaultName.CRASH:
        return (rule,)
    kinds = (
        FaultName.CRASH_BEFORE_CALL,
        FaultName.CRASH_AFTER_CALL,
        FaultName.CRASH_BEFORE_ANSWER,
    )
    return tuple(replace(rule, name=name, rate=rule.rate / len(kinds)) for name in kinds)
