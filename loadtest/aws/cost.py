"""What AWS bills for a run: units expected before anything is sent, units counted afterwards.

Pure. Prices are list prices of us-east-1, with where and when they were read beside them; every
figure made from them is an estimate. Not counted: the free tier, storage, data transfer
between regions, and services that the handler calls beside DynamoDB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from rich import box
from rich.table import Table

PRICE_REGION = "us-east-1"

_SQS_CHUNK_BYTES = 64 * 1024
_WRITE_UNIT_BYTES = 1024
_READ_UNIT_BYTES = 4096
_PLATFORM_LOG_BYTES = 300
"""START, END and REPORT of one invocation."""
_POLLERS = 5
"""What a mapping begins with and comes back to when idle; sometimes two
(Lambda developer guide, "Configuring scaling behavior for SQS event source mappings")."""
_LONGEST_POLL_S = 20.0
"""Of a long poll (SQS API reference, ReceiveMessage). How long Lambda's own wait is not
documented; it was not measured."""


@dataclass(frozen=True, slots=True)
class Price:
    """``usd`` for ``per`` units."""

    what: str
    usd: float
    per: float
    source: str


# One entry for each field of Units.
PRICES: Mapping[str, Price] = {
    "sqs_requests": Price(
        "SQS requests", 0.40, 1e6, "standard queues; a bill of 2024-09, aws.amazon.com/sqs/pricing"
    ),
    "lambda_requests": Price(
        "Lambda requests", 0.20, 1e6, "quoted, undated, from aws.amazon.com/lambda/pricing"
    ),
    "lambda_gb_s": Price(
        "Lambda GB-seconds", 1.66667e-5, 1, "x86; quoted, undated, aws.amazon.com/lambda/pricing"
    ),
    "lambda_arm_gb_s": Price(
        "Lambda GB-seconds (arm64)", 1.33334e-5, 1, "as above, aws.amazon.com/lambda/pricing"
    ),
    "write_units": Price(
        "DynamoDB write units", 0.625, 1e6, "since 2024-11, aws.amazon.com/dynamodb/pricing"
    ),
    "read_units": Price(
        "DynamoDB read units", 0.125, 1e6, "since 2024-11, aws.amazon.com/dynamodb/pricing"
    ),
    "stream_reads": Price(
        "DynamoDB stream reads", 0.02, 1e5, "not verified; see aws.amazon.com/dynamodb/pricing"
    ),
    "log_bytes": Price(
        "log bytes ingested", 0.50, 1e9, "first tier, 2025-05, aws.amazon.com/cloudwatch/pricing"
    ),
}


@dataclass(frozen=True, slots=True)
class Units:
    """What AWS bills by; the sum of two is what both cost together."""

    sqs_requests: int = 0
    """Each 64 KiB of payload is one; a batch of ten is one."""
    lambda_requests: int = 0
    lambda_gb_s: float = 0.0
    lambda_arm_gb_s: float = 0.0
    write_units: int = 0
    """A write whose condition fails is billed too."""
    read_units: float = 0.0
    stream_reads: int = 0
    """``GetRecords`` calls; other calls to a stream, and Lambda's own, are free."""
    log_bytes: int = 0

    def __add__(self, other: Units) -> Units:
        sums = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
        }
        return Units(**sums)

    @property
    def usd(self) -> float:
        return sum(self.usd_of(field.name) for field in fields(self))

    def usd_of(self, name: str) -> float:
        """The price of one field's units."""
        price = PRICES[name]
        return float(getattr(self, name)) / price.per * price.usd


def sqs_requests(payload_bytes: int) -> int:
    """What one SQS call is billed as."""
    return max(1, math.ceil(payload_bytes / _SQS_CHUNK_BYTES))


def write_units(item_bytes: int, *, transactional: bool = False) -> int:
    """Of one write, for the larger of the item before and after."""
    return max(1, math.ceil(item_bytes / _WRITE_UNIT_BYTES)) * (2 if transactional else 1)


def read_units(item_bytes: int, *, consistent: bool = True, transactional: bool = False) -> float:
    """Of one read; an eventually consistent one is half."""
    each = 2.0 if transactional else 1.0 if consistent else 0.5
    return max(1, math.ceil(item_bytes / _READ_UNIT_BYTES)) * each


def invocations(number: int, *, billed_ms: float, memory_mb: int, arm: bool = False) -> Units:
    """Lambda's part.

    :param billed_ms: of all of them together, as the REPORT lines say it (initialisation
        is billed too).
    """
    gb_s = billed_ms / 1000 * memory_mb / 1024
    if arm:
        return Units(lambda_requests=number, lambda_arm_gb_s=gb_s)
    return Units(lambda_requests=number, lambda_gb_s=gb_s)


def mapping_polls(*, deliveries: int, deleted: int, body_bytes: int, lasting_s: float) -> Units:
    """What an event source mapping asks of the queue, at most: one message in every receive and
    delete, and five pollers that wait 20 s when there is nothing. How full its receives are is
    not told, so this stays an estimate afterwards too.

    :param lasting_s: while the mapping is enabled, work or none.
    """
    idle = math.ceil(lasting_s / _LONGEST_POLL_S) * _POLLERS
    return Units(sqs_requests=deliveries * sqs_requests(body_bytes) + deleted + idle)


def own_requests(called: Mapping[str, int]) -> Units:
    """Of the tester's own calls, those that are billed by the request.

    :param called: action (``sqs:GetQueueAttributes``) -> calls.
    """
    return Units(
        sqs_requests=sum(number for action, number in called.items() if action.startswith("sqs:")),
        stream_reads=called.get("dynamodb:GetRecords", 0),
    )


@dataclass(frozen=True, slots=True)
class Load:
    """What a run is going to ask of AWS, as far as it can be known before."""

    messages: int
    body_bytes: int  # of the largest message
    messages_per_send: int = 10
    deliveries_per_message: float = 1.0
    records_per_invocation: int = 1
    billed_ms: float = 100.0  # of one invocation
    memory_mb: int = 128
    arm: bool = False
    writes_per_delivery: int = 1
    item_bytes: int = 1024
    transactional: bool = False
    keys_read: int = 0  # items read in the end, strongly consistent
    stream_reads: int = 0
    log_bytes_per_delivery: int = 1024
    lasting_s: float = 60.0


def expected(load: Load) -> Units:
    """What the load is billed for, at most, if the load is as described."""
    deliveries = math.ceil(load.messages * load.deliveries_per_message)
    invoked = math.ceil(deliveries / load.records_per_invocation)
    sends = math.ceil(load.messages / load.messages_per_send)
    writes = deliveries * load.writes_per_delivery
    return (
        Units(
            sqs_requests=sends * sqs_requests(load.messages_per_send * load.body_bytes),
            write_units=writes * write_units(load.item_bytes, transactional=load.transactional),
            read_units=load.keys_read * read_units(load.item_bytes),
            stream_reads=load.stream_reads,
            log_bytes=invoked * _PLATFORM_LOG_BYTES + deliveries * load.log_bytes_per_delivery,
        )
        + invocations(
            invoked, billed_ms=invoked * load.billed_ms, memory_mb=load.memory_mb, arm=load.arm
        )
        + mapping_polls(
            deliveries=deliveries,
            deleted=load.messages,
            body_bytes=load.body_bytes,
            lasting_s=load.lasting_s,
        )
    )


def usd_text(usd: float) -> str:
    """Dollars with two significant digits at least: ``$0.0023``, ``$1.50``."""
    if usd == 0:
        return "$0"
    decimals = max(2, 1 - math.floor(math.log10(usd)))
    return "less than $0.0001" if usd < 0.0001 else f"${usd:,.{decimals}f}"


def cost_table(units: Units, heading: str) -> Table:
    """The units that are not nothing, their prices and their sum.

    :param heading: what the figures are: "expected at most", "counted".
    """
    table = Table(box=box.SIMPLE, padding=(0, 1), pad_edge=False)
    table.add_column(f"estimated cost, {heading}", overflow="fold")
    table.add_column("units", justify="right")
    table.add_column("USD", justify="right")
    table.show_footer = True
    table.columns[0].footer = f"list prices of {PRICE_REGION}; the free tier is not deducted"
    table.columns[2].footer = usd_text(units.usd)
    for name, price in PRICES.items():
        number = float(getattr(units, name))
        if number:
            shown = f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"
            table.add_row(price.what, shown, usd_text(units.usd_of(name)))
    return table
