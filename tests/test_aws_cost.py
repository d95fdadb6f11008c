"""What is billed, before and after: checked against the example that the prices were read with."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadtest.aws.cost import (
    PRICES,
    Load,
    Units,
    cost_table,
    expected,
    invocations,
    mapping_polls,
    own_requests,
    read_units,
    sqs_requests,
    usd_text,
    write_units,
)


def test_every_unit_has_a_price_with_its_source() -> None:
    assert [field.name for field in fields(Units)] == list(PRICES)
    assert all("aws.amazon.com/" in price.source for price in PRICES.values())


@pytest.mark.parametrize(
    ("payload", "requests"), [(0, 1), (1, 1), (65536, 1), (65537, 2), (1_048_576, 16)]
)
def test_sqs_bills_by_64_kib(payload: int, requests: int) -> None:
    assert sqs_requests(payload) == requests


def test_dynamodb_bills_writes_by_1_kib_and_reads_by_4() -> None:
    assert [write_units(size) for size in (0, 1024, 1025)] == [1, 1, 2]
    assert write_units(1025, transactional=True) == 4
    assert [read_units(size) for size in (0, 4096, 4097)] == [1, 1, 2]
    assert read_units(4097, consistent=False) == 1
    assert read_units(100, transactional=True) == 2


def test_the_worked_example() -> None:
    # 100,000 messages of 1 KB, one record an invocation, 5 % delivered again, 128 MB, 50 ms,
    # items up to 1 KB, 200 B of log lines a delivery: about $0.21 with single-message polls.
    units = expected(
        Load(
            messages=100_000,
            body_bytes=1000,
            deliveries_per_message=1.05,
            billed_ms=50,
            log_bytes_per_delivery=200,
            lasting_s=0,
        )
    )
    assert units.lambda_requests == 105_000
    assert units.write_units == 105_000
    assert units.sqs_requests == 10_000 + 105_000 + 100_000
    assert units.lambda_gb_s == pytest.approx(105_000 * 0.05 / 8)
    assert units.log_bytes == 105_000 * 500
    assert units.usd == pytest.approx(0.21, abs=0.02)


def test_batches_and_arm_cost_less() -> None:
    one = expected(Load(messages=1000, body_bytes=100))
    ten = expected(Load(messages=1000, body_bytes=100, records_per_invocation=10))
    arm = expected(Load(messages=1000, body_bytes=100, arm=True))
    assert ten.lambda_requests == 100
    assert arm.lambda_gb_s == 0
    assert arm.lambda_arm_gb_s == one.lambda_gb_s
    assert ten.usd < arm.usd < one.usd


def test_what_was_counted_adds_up() -> None:
    counted = (
        own_requests(
            {"sqs:SendMessageBatch": 3, "sqs:GetQueueAttributes": 4, "dynamodb:GetRecords": 5}
            | {"dynamodb:GetItem": 6, "lambda:GetFunction": 7}
        )
        + invocations(2, billed_ms=3000, memory_mb=512)
        + mapping_polls(deliveries=8, deleted=7, body_bytes=10, lasting_s=41)
        + Units(write_units=8, read_units=6, log_bytes=1000)
    )
    assert counted == Units(
        sqs_requests=7 + 8 + 7 + 15,
        lambda_requests=2,
        lambda_gb_s=1.5,
        write_units=8,
        read_units=6,
        stream_reads=5,
        log_bytes=1000,
    )


@given(st.integers(1, 10**7), st.integers(1, 10**6), st.integers(1, 10))
def test_more_messages_never_cost_less(messages: int, more: int, records: int) -> None:
    def cost(number: int) -> float:
        load = Load(messages=number, body_bytes=100, records_per_invocation=records)
        return expected(load).usd

    assert 0 < cost(messages) <= cost(messages + more)


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "$0"),
        (0.00001, "less than $0.0001"),
        (0.00234, "$0.0023"),
        (0.21, "$0.21"),
        (1.5, "$1.50"),
        (12345.678, "$12,345.68"),
    ],
)
def test_dollars_are_readable(usd: float, text: str) -> None:
    assert usd_text(usd) == text


def test_the_table_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    units = Units(sqs_requests=2_000_000, lambda_gb_s=1.234, write_units=5)
    Console(width=100).print(cost_table(units, "expected at most"))
    said = capsys.readouterr().out
    for text in ("estimated cost, expected at most", "SQS requests", "2,000,000", "$0.80", "1.2"):
        assert text in said
    assert "us-east-1" in said
    assert "free tier" in said
    assert "Lambda requests" not in said, "what is not used is not listed"
