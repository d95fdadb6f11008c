"""The evidence of one run: tables, closed sets of words, and the form of items.

This file is the contract between what records (``consumer``, ``loadtest``) and what
judges (``analysis``). It imports the standard library only.

While a run is going each table is ``evidence/<table>.jsonl``: one JSON object a line,
appended. A row may be written again when more is known (a call when it is sent and
again when it is answered): **the last line with the same key counts**. When the run
ends the tables become ``evidence/<table>.parquet`` with one row a key.

Conventions, for every table:

* Times are integer nanoseconds since the epoch, all from one clock of one host.
* Ids are integers counted from 1 within the run, in the order of creation.
* ``None`` means "not known" or "did not happen"; it never means "no item".
* Item texts are canonical (see :func:`item_text`), so equal text means equal item
  by DynamoDB's own rules. The text ``{}`` means "there was no item".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, ClassVar

SCHEMA_VERSION = 1
NO_ITEM = "{}"
"""Canonical text for the absence of an item: no real item is empty, it has a key."""


class MessageKind(StrEnum):
    ORDER = "order"  # the first planned message of an order
    COPY = "copy"  # a further message with the same details
    CONFLICT = "conflict"  # same order key, other details
    POISON = "poison"  # no handler can accept it; it has an order key of its own


class QueueRole(StrEnum):
    QUEUE = "queue"
    DEAD_LETTER = "dlq"


class Outcome(StrEnum):
    """How an invocation ended."""

    RETURNED = "returned"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


class Action(StrEnum):
    """What a call asked to do with one item."""

    PUT = "put"
    UPDATE = "update"
    DELETE = "delete"
    READ = "read"
    CHECK = "check"  # ConditionCheck of a transaction


class Decision(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"  # a condition failed
    FAILED = "failed"  # any other error; the store did nothing
    UNKNOWN = "unknown"  # no reply, or one that does not tell (HTTP 5xx on a write)


class Result(StrEnum):
    """What the consumer reported for one message."""

    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    FAILED = "failed"


class AckOutcome(StrEnum):
    DELETED = "deleted"
    DELETE_FAILED = "delete_failed"
    RETURNED = "returned"  # left alone, comes back after its visibility timeout
    DEAD_LETTERED = "dead_lettered"  # on the delivery from the dead-letter queue


class Phase(StrEnum):
    BEFORE = "before"  # read before the first message was sent
    AFTER = "after"  # strongly consistent read after all environments were stopped


class Observation(StrEnum):
    """A part of the evidence that not every target can show."""

    CALLS = "calls"  # every wire attempt, with the invocation that made it
    WRITES = "writes"  # accepted writes to tables of role orders, with the items before and after
    DELIVERIES = "deliveries"  # which message was given to which invocation
    ENDS = "ends"  # whether each message was deleted or dead-lettered
    DELETES = "deletes"  # when it was deleted
    ORDER = "order"  # which of two calls of different environments came first: one clock
    RESULTS = "results"  # what the consumer reported for each message
    ITEMS = "items"  # final items of the run's own orders
    OTHER_ITEMS = "other-items"  # all others, of reference tables too


class TableRole(StrEnum):
    ORDERS = "orders"
    GUARD = "guard"
    REFERENCE = "reference"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Message:
    """A planned message. Written for the whole plan at the start, again when sent."""

    TABLE: ClassVar[str] = "messages"
    KEY: ClassVar[tuple[str, ...]] = ("message_no",)

    message_no: int  # position in the plan, from 1; travels with the message as its stamp
    order_key: str  # the business id; for poison, an id that no other message has
    kind: MessageKind
    body: str
    expected_item: str | None  # the order's details as canonical item text; None for poison
    intended_at: int  # when the plan wanted it sent
    sent_at: int | None = None  # when the (last) send request left
    accepted_at: int | None = None  # when the queue confirmed it
    sqs_message_id: str | None = None
    attempts: int = 0  # send requests that carried it
    error: str | None = None  # why it was never accepted


@dataclass(frozen=True, slots=True)
class Delivery:
    """One receive of one message, from the queue or from its dead-letter queue."""

    TABLE: ClassVar[str] = "deliveries"
    KEY: ClassVar[tuple[str, ...]] = ("delivery_id",)

    delivery_id: int
    queue: QueueRole
    sqs_message_id: str
    message_no: int | None  # None: not one of the plan's messages
    receive_count: int  # ApproximateReceiveCount as the queue stated it
    received_at: int
    invocation_id: int | None
    """None: received, never given to the handler; where deliveries are not observable, also when
    it is not known to which invocation."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One run of the handler. Written when it starts, again when it ends."""

    TABLE: ClassVar[str] = "invocations"
    KEY: ClassVar[tuple[str, ...]] = ("invocation_id",)

    invocation_id: int
    request_id: str  # the AWS request id the handler saw
    environment: int  # which process slot, from 1
    cold: bool  # first invocation of its process
    started_at: int  # event handed to the runtime client
    ended_at: int | None = None
    outcome: Outcome | None = None  # None: it was still running when the record ends
    response: str | None = None  # what it returned, as text (bounded)
    error_type: str | None = None
    error_message: str | None = None  # bounded


@dataclass(frozen=True, slots=True)
class Call:
    """One wire attempt by the handler. Written when sent, again when answered."""

    TABLE: ClassVar[str] = "calls"
    KEY: ClassVar[tuple[str, ...]] = ("call_id",)

    call_id: int
    invocation_id: int | None
    """None: made outside any invocation (during init); not known where calls are not observable."""
    attempt: int  # 1, or more when the SDK sent the same request again
    sdk_id: str | None  # amz-sdk-invocation-id: the same for all attempts of one SDK call
    service: str  # "dynamodb", "sqs", ... as in the credential scope
    operation: str  # "PutItem"; of a record in a table's stream INSERT, MODIFY or REMOVE
    resource: str | None  # table or queue name when the call has exactly one
    request: str | None  # request text (bounded, receipt handles removed)
    sent_at: int
    answered_at: int | None = None
    decision: Decision = Decision.UNKNOWN  # what the handler could learn from the reply
    error_code: str | None = None
    fault: str | None = None  # fault that this attempt met


@dataclass(frozen=True, slots=True)
class CallItem:
    """One item touched by a call. Written when sent, again when answered."""

    TABLE: ClassVar[str] = "call_items"
    KEY: ClassVar[tuple[str, ...]] = ("call_id", "resource", "item_key")

    call_id: int
    resource: str  # table name
    item_key: str  # canonical text of the primary key's attributes
    action: Action
    condition: str | None = None  # as sent, with names and values put in
    decision: Decision = Decision.UNKNOWN  # what the store did with this item
    error_code: str | None = None  # the item's own cancellation reason
    before: str | None = None  # canonical item text; NO_ITEM; None: not known
    after: str | None = None  # likewise; for a rejected write equal to before


@dataclass(frozen=True, slots=True)
class ResultRow:
    """What an invocation reported for one of its messages, where that can be told."""

    TABLE: ClassVar[str] = "results"
    KEY: ClassVar[tuple[str, ...]] = ("invocation_id", "message_no")

    invocation_id: int
    message_no: int
    result: Result
    detail: str | None  # the returned object of this message as JSON text, or the error


@dataclass(frozen=True, slots=True)
class Ack:
    """The end of one delivery."""

    TABLE: ClassVar[str] = "acks"
    KEY: ClassVar[tuple[str, ...]] = ("delivery_id",)

    delivery_id: int
    acked_at: int
    outcome: AckOutcome


@dataclass(frozen=True, slots=True)
class ItemRow:
    """One stored item of a declared table, before or after the run."""

    TABLE: ClassVar[str] = "items"
    KEY: ClassVar[tuple[str, ...]] = ("resource", "item_key", "phase")

    resource: str
    item_key: str
    item: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class QueueSample:
    """The queue's own counters (approximate by AWS's definition) at one time."""

    TABLE: ClassVar[str] = "queue_samples"
    KEY: ClassVar[tuple[str, ...]] = ("at", "queue")

    at: int
    queue: QueueRole
    visible: int
    in_flight: int
    delayed: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that fired. What it did to the handler is in the rows that it names."""

    TABLE: ClassVar[str] = "faults"
    KEY: ClassVar[tuple[str, ...]] = ("fault_id",)

    fault_id: int
    rule: int  # position in run.json's fault rules, from 1
    name: str
    at: int
    duration_ns: int  # how long it was to last; 0 where it has no duration
    message_no: int | None  # of an invocation: its first message
    receive: int | None  # how often that message had been received, from 1
    call: int | None  # number of the call in its invocation, from 1
    delivery_id: int | None
    invocation_id: int | None
    call_id: int | None  # the wire attempt
    detail: str | None = None  # what was done, where the name does not say it all


@dataclass(frozen=True, slots=True)
class Effect:
    """One declared side effect that a call asked for. Written when sent, again when answered."""

    TABLE: ClassVar[str] = "effects"
    KEY: ClassVar[tuple[str, ...]] = ("call_id", "effect", "position")

    call_id: int
    effect: int  # position in run.json's effects, from 1
    position: int  # within the call, from 1: a batch asks for several
    order_key: str | None  # as the request names it; None: it does not say
    decision: Decision = Decision.UNKNOWN  # what the other service did


Row = (
    Message
    | Delivery
    | Invocation
    | Call
    | CallItem
    | ResultRow
    | Ack
    | ItemRow
    | QueueSample
    | Fault
    | Effect
)
TABLES: tuple[type[Row], ...] = (
    Message,
    Delivery,
    Invocation,
    Call,
    CallItem,
    ResultRow,
    Ack,
    ItemRow,
    Fault,
    Effect,
    QueueSample,
)


# --- run.json -------------------------------------------------------------------------


class RunStatus(StrEnum):
    RUNNING = "running"  # also what a killed tester leaves behind
    FINISHED = "finished"
    INTERRUPTED = "interrupted"  # Ctrl-C
    NOT_DRAINED = "not_drained"  # the drain limit was reached first
    FAILED = "failed"  # ended by an error, named in RunInfo.error


@dataclass(frozen=True, slots=True)
class ItemsInfo:
    """One kind of item in a table that holds several: those whose key has this form.

    In a form ``{id}`` stands for the order's id and ``*`` for any text: ``ORDER#{id}``.
    """

    role: TableRole
    key: str | None = None  # form of the partition key; None: any
    sort: str | None = None  # form of the sort key
    complete_when: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableInfo:
    name: str  # as the store knows it
    role: TableRole
    key: str  # partition key attribute
    key_type: str = "S"  # S, N or B
    sort: str | None = None  # sort key attribute
    sort_type: str = "S"
    complete_when: dict[str, list[str]] = field(default_factory=dict)
    """Attribute -> texts: an item counts as the order's result when all match; empty: always."""
    items: tuple[ItemsInfo, ...] = ()
    """Of a table with several kinds of items: the first whose forms fit is an item's kind, with
    a role of its own; what fits none is the handler's own (role other). Empty: all are alike."""


@dataclass(frozen=True, slots=True)
class OrderInfo:
    """Fields and attributes that lie deeper are named by their path: ``detail.amount``. A name
    with a full stop in it that is there as it stands is taken for itself."""

    key: str  # body field that carries the order key
    attributes: dict[str, str]
    """Body field -> item attribute, for every field of the order's details, the key's too."""


@dataclass(frozen=True, slots=True)
class ResultInfo:
    """Fields of the returned object that say what was done; a field counts when true."""

    processed: str | None = None
    duplicate: str | None = None


@dataclass(frozen=True, slots=True)
class ExpectInfo:
    """What the run must show before it may pass."""

    contended_orders: float = 0.1  # share of the orders with two or more messages
    send_lag_s: float = 1.0  # 99 % of sends start within this of their intended time (rate given)
    poison: str = "dead-letter"  # or "drop": acknowledging poison is allowed


@dataclass(frozen=True, slots=True)
class PlanInfo:
    seed: int
    orders: int
    copies: int
    messages: int
    rate_per_s: float | None  # None: as fast as possible, latencies are then closed-loop
    arrangement: str  # "burst", "interleaved", "spread", or "by" a function of the user's
    concurrency: int
    digest: str | None = None  # SHA-256 over the plan's rows: equal digests, equal plans


@dataclass(frozen=True, slots=True)
class FaultRuleInfo:
    """One rule of the fault plan, and how often it could have struck."""

    name: str
    text: str  # as a person would write it: "throttle:lasting=0.01 operation=PutItem"
    rate: float = 1.0
    option: str | None = None
    lasting: bool = False
    opportunities: int = 0  # places that matched, counted by the run


@dataclass(frozen=True, slots=True)
class EffectInfo:
    """Calls that count as one side effect: one is owed for each stored order."""

    service: str  # "sns", "sqs", "ses", "dynamodb", "http"
    operation: str  # "Publish"; of HTTP the method
    resource: str | None  # topic, queue, table or URL name as the service knows it
    key: str  # member of the request that carries the order key
    name: str  # as declared: "sns:Publish receipts"


@dataclass(frozen=True, slots=True)
class DeployedInfo:
    """The deployed stack of a run with target "aws": enough to find what the run put there."""

    account_id: str
    region: str
    endpoint_url: str | None  # None: AWS itself
    function: str
    queue_url: str
    dead_letter_url: str | None
    log_group: str
    streams_enabled: tuple[str, ...] = ()  # tables whose stream this run switched on
    items_kept: bool = False  # asked to leave the run's own items where they are
    recorder_layer: str | None = None  # layer by which the run recorded the function's calls


@dataclass(frozen=True, slots=True)
class RunInfo:
    """``run.json``: what was asked, and how it ended. Judging needs nothing else beside
    the evidence tables."""

    run_id: str
    tool_version: str
    created_at: int
    target: str  # "local", "endpoint" or "aws"
    handler: str  # "app.handler"
    code: str
    timeout_s: float
    visibility_timeout_s: int
    max_receive_count: int
    batch_size: int
    report_batch_item_failures: bool
    plan: PlanInfo
    order: OrderInfo
    tables: tuple[TableInfo, ...]
    result: ResultInfo
    expect: ExpectInfo
    schema_version: int = SCHEMA_VERSION
    versions: dict[str, str] = field(default_factory=dict)
    status: RunStatus = RunStatus.RUNNING
    started_at: int | None = None  # first send intended
    ended_at: int | None = None  # last environment stopped
    left_over: tuple[str, ...] = ()  # what had not settled, and why, one sentence each
    error: str | None = None
    command: str | None = None  # the command line that repeats the run, quoted for a shell
    faults: tuple[FaultRuleInfo, ...] = ()
    fault_seed: int = 0
    effects: tuple[EffectInfo, ...] = ()
    control: bool = False
    """Whether the same load was then put on a handler with a known race: a run of its own,
    in the directory ``control`` of this one."""
    cores: int | None = None  # that this process could use; None: not recorded
    not_observable: dict[Observation, str] = field(default_factory=dict)
    """What this run could not show, and why, one sentence each."""
    deployed: DeployedInfo | None = None


# --- items ----------------------------------------------------------------------------

# DynamoDB keeps 38 significant digits (developer guide, "Naming rules and data types").
_NUMBERS = Context(prec=38)


def number_text(text: str) -> str:
    """The one spelling of a DynamoDB number: ``4``, ``4.0`` and ``4e0`` all give ``4``.

    Text that is no number comes back as it is: a wrong value is evidence too.
    """
    try:
        number = Decimal(text).normalize(_NUMBERS)
    except InvalidOperation:
        return text
    return "0" if number.is_zero() else f"{number:f}" if number.adjusted() < 38 else str(number)


def _binary_text(content: str | bytes) -> str:
    """Base64, whether it comes from the wire (text) or from an SDK (bytes)."""
    return content if isinstance(content, str) else base64.b64encode(content).decode()


def canonical_value(value: Any) -> Any:
    """One DynamoDB attribute value (``{"N": "4.0"}``) in canonical form."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, content),) = value.items()
    match kind:
        case "N" if isinstance(content, str):
            return {kind: number_text(content)}
        case "NS" if isinstance(content, list):
            return {kind: sorted(number_text(str(number)) for number in content)}
        case "SS" if isinstance(content, list):
            return {kind: sorted(str(text) for text in content)}
        case "B":
            return {kind: _binary_text(content)}
        case "BS" if isinstance(content, list):
            return {kind: sorted(_binary_text(entry) for entry in content)}
        case "L" if isinstance(content, list):
            return {kind: [canonical_value(entry) for entry in content]}
        case "M" if isinstance(content, dict):
            return {kind: {name: canonical_value(entry) for name, entry in content.items()}}
    return value


def item_text(item: Mapping[str, Any] | None) -> str:
    """Canonical text of an item in DynamoDB JSON (``{"id": {"S": "a"}}``).

    Two items have the same text exactly when DynamoDB would call them equal: numbers are
    compared as numbers, sets and maps without order, lists with it; NULL is not missing.
    ``None`` (no item) gives :data:`NO_ITEM`.
    """
    canonical = {name: canonical_value(value) for name, value in (item or {}).items()}
    return json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def typed_value(value: Any) -> dict[str, Any]:
    """A plain JSON value as a DynamoDB attribute value: how a handler is expected to store it.

    :raises TypeError: for a value that JSON cannot carry.
    """
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int() | float() | Decimal():
            return {"N": number_text(str(value))}
        case str():
            return {"S": value}
        case bytes():
            return {"B": base64.b64encode(value).decode()}
        case list():
            return {"L": [typed_value(entry) for entry in value]}
        case dict():
            return {"M": {name: typed_value(entry) for name, entry in value.items()}}
    raise TypeError(f"no DynamoDB type for {type(value).__name__}")
