"""Invocations as Lambda's logs tell of them, in both formats, from lines in AWS's own shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analysis.schema import Outcome
from loadtest.aws.account import Account
from loadtest.aws.logs import LogEvent, Logged, environments, read_invocations, read_log
from tests.aws_endpoint import REGION, Answer, simulated_aws

A = "8f507cfc-example-4697-b07a-ac58fc914c95"
B = "3f2c1f0e-5a1b-4c2d-9e3f-0123456789ab"
STREAM = "2026/01/01/[$LATEST]f1a2b3c4d5e6f708192a3b4c5d6e7f80"
OTHER = "2026/01/01/[$LATEST]00000000000000000000000000000001"
MESSAGE = "059f36b4-87a3-44ab-83d2-661975830a7d"


def _log(*lines: str, at_ms: int = 1_000, stream: str = STREAM) -> list[LogEvent]:
    return [LogEvent(stream, at_ms + 10 * number, line) for number, line in enumerate(lines)]


def _text(request_id: str = A, *lines: str, end: str = "", **where: Any) -> list[LogEvent]:
    return _log(
        f"START RequestId: {request_id} Version: $LATEST",
        *lines,
        f"END RequestId: {request_id}",
        f"REPORT RequestId: {request_id}\tDuration: 15.74 ms\tBilled Duration: 147 ms\t"
        f"Memory Size: 128 MB\tMax Memory Used: 56 MB\t{end}",
        **where,
    )


def _json(*records: dict[str, Any], **where: Any) -> list[LogEvent]:
    return _log(*(json.dumps(record) for record in records), **where)


def _platform(kind: str, **record: Any) -> dict[str, Any]:
    return {"time": "2026-01-01T00:00:00.000Z", "type": f"platform.{kind}", "record": record}


def _one(events: list[LogEvent]) -> Logged:
    (logged,) = read_invocations(events)
    return logged


def test_text_lines_of_a_cold_invocation() -> None:
    start = _log("INIT_START Runtime Version: python:3.12.v1\tRuntime Version ARN: arn:x", at_ms=1)
    logged = _one([*start, *_text(A, "RESULT {}", end="Init Duration: 130.49 ms\t")])
    assert logged.is_whole
    assert (logged.started_ms, logged.ended_ms) == (1_000, 1_020)
    assert (logged.billed_ms, logged.memory_mb, logged.init_ms) == (147, 128, 130.49)
    row = logged.row(7, 2)
    assert (row.invocation_id, row.request_id, row.environment, row.cold) == (7, A, 2, True)
    assert row.outcome is Outcome.RETURNED
    # From the last nanosecond in which it may have begun to the first in which it may have ended.
    assert (row.started_at, row.ended_at) == (1_000_999_999, 1_020_000_000)


def test_json_records_say_the_same() -> None:
    logged = _one(
        _json(
            _platform("initStart", runtimeVersion="python:3.12.v1"),
            _platform("start", requestId=A, version="$LATEST"),
            {"timestamp": "t", "level": "INFO", "message": f"got {MESSAGE}", "requestId": A},
            _platform("runtimeDone", requestId=A, status="success"),
            _platform(
                "report",
                requestId=A,
                status="success",
                metrics={
                    "durationMs": 15.74,
                    "billedDurationMs": 147,
                    "memorySizeMB": 128,
                    "initDurationMs": 130.49,
                },
            ),
        )
    )
    assert logged.is_whole
    assert (logged.started_ms, logged.ended_ms) == (1_010, 1_030)
    assert (logged.billed_ms, logged.memory_mb, logged.init_ms) == (147, 128, 130.49)
    assert logged.sqs_ids({MESSAGE: 1}) == [MESSAGE]
    assert logged.row(1, 1).outcome is Outcome.RETURNED


@pytest.mark.parametrize(
    ("events", "outcome", "error"),
    [
        (_text(A, end="Status: timeout"), Outcome.TIMED_OUT, None),
        (
            _text(A, f"2026-01-01T00:00:03.006Z {B} Task timed out after 3.00 seconds"),
            Outcome.RETURNED,
            None,
        ),
        (
            _text(B, f"2026-01-01T00:00:03.006Z {B} Task timed out after 3.00 seconds"),
            Outcome.TIMED_OUT,
            None,
        ),
        (
            _text(A, end="Status: error\tError Type: Runtime.ExitError"),
            Outcome.CRASHED,
            "Runtime.ExitError",
        ),
        (
            _text(
                A, '[ERROR] ValueError: no order\rTraceback (most recent call last):\r  File "a"'
            ),
            Outcome.RAISED,
            "ValueError",
        ),
        # What a logger writes is no end of the invocation.
        (
            _text(A, f"[ERROR]\t2026-01-01T00:00:00.123Z\t{A}\tValueError: x"),
            Outcome.RETURNED,
            None,
        ),
        (
            _json(
                _platform("start", requestId=A),
                {"log_level": "ERROR", "errorType": "KeyError", "errorMessage": "'id'"},
                _platform("runtimeDone", requestId=A, status="failure", errorType="KeyError"),
                _platform("report", requestId=A, status="failure", metrics={}),
            ),
            Outcome.RAISED,
            "KeyError",
        ),
        (
            _json(
                _platform("start", requestId=A),
                _platform("report", requestId=A, status="timeout", metrics={}),
            ),
            Outcome.TIMED_OUT,
            None,
        ),
    ],
)
def test_how_it_ended(events: list[LogEvent], outcome: Outcome, error: str | None) -> None:
    row = next(one for one in read_invocations(events) if one.started_ms).row(1, 1)
    assert (row.outcome, row.error_type) == (outcome, error)


def test_lines_belong_to_the_request_of_their_environment() -> None:
    events = [
        *_text(A, f"EVENT {MESSAGE}", at_ms=1_000),
        *_text(B, "EVENT of another", at_ms=1_005, stream=OTHER),
        *_log("a line after all", at_ms=2_000),
    ]
    first, second = read_invocations(events)
    assert (first.lines, second.lines) == ([f"EVENT {MESSAGE}"], ["EVENT of another"])
    assert first.sqs_ids({MESSAGE: 1, B: 2}) == [MESSAGE]
    assert environments([first, second]) == {STREAM: 1, OTHER: 2}


def test_what_has_not_arrived_yet_is_not_whole() -> None:
    events = _text(A)
    assert not _one(events[:1]).is_whole
    assert not _one(events[:2]).is_whole
    assert _one(events[:1]).row(1, 1).outcome is None
    assert not _one(events[1:]).is_whole


def test_one_that_is_logged_when_it_is_over_began_its_duration_earlier() -> None:
    line = f"REPORT RequestId: {A}\tDuration: 40 ms\tBilled Duration: 40 ms\tMemory Size: 128 MB"
    start, end, _ = (event.message for event in _text(A))
    events = [LogEvent(STREAM, 1_000, text) for text in (start, end, line)]
    row = _one(events).row(1, 1)
    assert (row.started_at, row.ended_at) == (960_999_999, 1_000_000_000)


async def test_reads_empty_pages_to_the_end_and_a_group_that_is_not_there() -> None:
    event = {"logStreamName": STREAM, "timestamp": 5, "message": "hello\n", "eventId": "1"}
    pages: list[Answer] = [{"events": [], "nextToken": "more"}, {"events": [event]}]
    async with (
        simulated_aws({"logs:FilterLogEvents": pages}) as (url, aws),
        Account(endpoint_url=url, region=REGION) as account,
    ):
        assert await read_log(account, "/aws/lambda/f", 3) == [LogEvent(STREAM, 5, "hello")]
        (_, _), (_, first), (_, second) = aws.requests
        assert first == {"logGroupName": "/aws/lambda/f", "startTime": 3}
        assert second["nextToken"] == "more"
