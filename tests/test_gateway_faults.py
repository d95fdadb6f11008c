"""Every fault of a call: what the SDK saw of it, and what the evidence says was done."""

from __future__ import annotations

import asyncio
import json
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.endpoint
import pytest
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from analysis.schema import NO_ITEM, Action, Decision, item_text
from consumer.aws_wire import subject
from consumer.call_faults import injection
from consumer.faults import KINDS, FaultName, FaultRule, Place, Strike, Where
from tests.gateway_lab import (
    Lab,
    Occupied,
    call,
    client,
    connect,
    gateway_to,
    key,
    make_table,
    names,
    order,
    raw_put,
)

INSERT = {"Item": order("a", 1), "ConditionExpression": "attribute_not_exists(id)"}
STORED = item_text(order("a", 1))


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK tries again at once."""
    no_wait = types.SimpleNamespace(sleep=lambda seconds: None)
    monkeypatch.setattr(botocore.endpoint, "time", no_wait)


@pytest.fixture(scope="module")
def direct(emulator_url: str) -> Iterator[Any]:
    """DynamoDB without the gateway."""
    aws = client("dynamodb", emulator_url)
    yield aws
    aws.close()


Opener = Callable[..., Awaitable[Lab]]


@pytest.fixture
async def open_lab(emulator_url: str, direct: Any, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens a gateway with these fault rules, before an empty table."""
    async with AsyncExitStack() as stack:

        async def open_one(*rules: FaultRule) -> Lab:
            table = f"orders-{next(names)}"
            make_table(direct, table)
            lab = gateway_to(emulator_url, tmp_path, table, rules=rules)
            return await stack.enter_async_context(lab)

        yield open_one


def retrying(lab: Lab, attempts: int | None = 3, mode: str = "legacy") -> None:
    """Give the lab a client that tries again."""
    lab.dynamodb.close()
    lab.dynamodb = client("dynamodb", lab.door, attempts, mode=mode)


def told(lab: Lab) -> list[tuple[Decision, str | None, str | None]]:
    """What the handler learned of each attempt, and the fault that it met."""
    return [(one.decision, one.error_code, one.fault) for one in lab.recorder.calls()]


def done(lab: Lab) -> list[tuple[Decision, str | None, str | None]]:
    """What the store did with the item of each attempt."""
    return [(one.decision, one.before, one.after) for one in lab.recorder.items()]


def fired(lab: Lab) -> list[tuple[str, int | None, int | None]]:
    """Name, number of the SDK call and wire attempt of the faults that fired."""
    return [(one.name, one.call, one.call_id) for one in lab.recorder.faults()]


def stored(lab: Lab, direct: Any, name: str = "a") -> str:
    reply = direct.get_item(TableName=lab.table, Key=key(name), ConsistentRead=True)
    return item_text(reply.get("Item"))


async def attempt(lab: Lab, operation: str, **members: Any) -> BaseException | dict[str, Any]:
    """The reply, the error reply, or what the SDK raised instead of one."""
    try:
        return await lab.call(operation, **members)
    except Exception as error:  # whichever it is, the test says
        return error


# --- lost replies and requests --------------------------------------------------------

NOT_TOLD = (Decision.UNKNOWN, "ConnectionClosedError")
MADE = (Decision.ACCEPTED, NO_ITEM, STORED)
IN_THE_WAY = (Decision.REJECTED, STORED, STORED)
NOT_MADE = (Decision.FAILED, None, None)


@pytest.mark.parametrize("mode", ["legacy", "standard"])
async def test_a_lost_reply_makes_the_sdk_meet_its_own_write(open_lab: Opener, mode: str) -> None:
    lab = await open_lab(FaultRule(FaultName.LOST_REPLY))
    retrying(lab, mode=mode)
    reply = await lab.call("put_item", **INSERT)
    assert reply["Error"]["Code"] == "ConditionalCheckFailedException"
    assert reply["ResponseMetadata"]["RetryAttempts"] == 1
    assert told(lab) == [
        (*NOT_TOLD, "lost-reply"),
        (Decision.REJECTED, "ConditionalCheckFailedException", None),
    ]
    assert done(lab) == [MADE, IN_THE_WAY]
    assert fired(lab) == [("lost-reply", 1, 1)]
    (fault,) = lab.recorder.faults()
    assert (fault.rule, fault.message_no, fault.receive, fault.invocation_id) == (1, 1, 1, 7)


async def test_a_lost_reply_of_a_rejected_write_keeps_the_rejection(
    open_lab: Opener, direct: Any
) -> None:
    lab = await open_lab(FaultRule(FaultName.LOST_REPLY))
    direct.put_item(TableName=lab.table, Item=order("a", 1))
    assert isinstance(await attempt(lab, "put_item", **INSERT), ConnectionClosedError)
    assert told(lab) == [(*NOT_TOLD, "lost-reply")]
    assert done(lab) == [IN_THE_WAY]


async def test_a_lasting_lost_reply_outlasts_the_sdk(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.LOST_REPLY, lasting=True))
    retrying(lab, None)
    assert isinstance(await attempt(lab, "put_item", **INSERT), ConnectionClosedError)
    assert told(lab) == [(*NOT_TOLD, "lost-reply:lasting")] * 10
    assert done(lab) == [MADE] + [IN_THE_WAY] * 9
    assert len(fired(lab)) == 10
    assert lab.injector.opportunities == {1: 1}


async def test_a_silent_lost_reply_lasts_until_the_handler_gives_up(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.LOST_REPLY, option="silent"))
    impatient = client("dynamodb", lab.door, read_timeout=0.2)
    with pytest.raises(ReadTimeoutError):
        await call(impatient, "put_item", TableName=lab.table, **INSERT)
    impatient.close()
    await lab.recorder.until(lambda: lab.last.answered_at is not None)
    assert told(lab) == [(Decision.UNKNOWN, "HandlerDisconnected", "lost-reply:silent")]
    assert done(lab) == [MADE]


async def test_a_call_held_back_ends_with_the_gateway(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.LOST_REPLY, option="silent"))
    waiting = asyncio.create_task(attempt(lab, "put_item", **INSERT))
    await lab.recorder.until(lambda: bool(lab.recorder.faults()))
    assert not waiting.done()
    await lab.gateway.close()
    assert isinstance(await waiting, ConnectionClosedError)
    assert lab.last.answered_at is not None


async def test_a_lost_request_has_no_effect(open_lab: Opener, direct: Any) -> None:
    lab = await open_lab(FaultRule(FaultName.LOST_REQUEST))
    assert isinstance(await attempt(lab, "put_item", **INSERT), ConnectionClosedError)
    assert stored(lab, direct) == NO_ITEM
    assert told(lab) == [(*NOT_TOLD, "lost-request")]
    assert done(lab) == [NOT_MADE]
    retrying(lab)
    reply = await lab.call("put_item", **INSERT)
    assert reply["ResponseMetadata"]["RetryAttempts"] == 1
    assert done(lab)[1:] == [NOT_MADE, MADE]
    assert fired(lab) == [("lost-request", 1, 1), ("lost-request", 2, 2)]


async def test_a_lost_reply_of_a_read_tells_the_handler_nothing(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.LOST_REPLY))
    assert isinstance(await attempt(lab, "get_item", Key=key("a")), ConnectionClosedError)
    assert told(lab) == [(*NOT_TOLD, "lost-reply")]
    assert done(lab) == [(Decision.ACCEPTED, NO_ITEM, NO_ITEM)]


# --- refusals, in the words of each service -------------------------------------------


@dataclass(frozen=True)
class Refusal:
    service: str
    operation: str
    members: dict[str, Any]
    throttled: tuple[str, int]
    denied: tuple[str, int]
    failing: str  # code of HTTP 500


MAIL = {
    "Destination": {"ToAddresses": ["b@x.org"]},
    "Message": {"Subject": {"Data": "s"}, "Body": {"Text": {"Data": "t"}}},
}
REFUSALS = [
    Refusal(
        "dynamodb",
        "put_item",
        {"TableName": "orders", "Item": order("a")},
        ("ProvisionedThroughputExceededException", 400),
        ("AccessDeniedException", 400),
        "InternalServerError",
    ),
    Refusal(
        "sqs",
        "send_message",
        {"QueueUrl": "http://q/1/jobs", "MessageBody": "x"},
        ("RequestThrottled", 403),
        ("AccessDenied", 403),
        "InternalFailure",
    ),
    Refusal(
        "sns",
        "publish",
        {"TopicArn": "arn:aws:sns:eu-west-1:000000000000:t", "Message": "x"},
        ("Throttling", 400),
        ("AuthorizationError", 403),
        "InternalError",
    ),
    Refusal(
        "ses",
        "send_email",
        {"Source": "a@x.org", **MAIL},
        ("Throttling", 400),
        ("AccessDenied", 403),
        "InternalFailure",
    ),
    Refusal(
        "sesv2",
        "send_email",
        {
            "FromEmailAddress": "a@x.org",
            "Destination": MAIL["Destination"],
            "Content": {"Simple": MAIL["Message"]},
        },
        ("TooManyRequestsException", 429),
        ("AccessDeniedException", 403),
        "InternalFailure",
    ),
    Refusal(
        "s3",
        "put_object",
        {"Bucket": "bucket", "Key": "k", "Body": b"x"},
        ("SlowDown", 503),
        ("AccessDenied", 403),
        "InternalError",
    ),
    Refusal(
        "lambda",
        "invoke",
        {"FunctionName": "f"},
        ("TooManyRequestsException", 429),
        ("AccessDeniedException", 403),
        "InternalFailure",
    ),
    Refusal(
        "events",
        "put_events",
        {"Entries": [{"Source": "s", "DetailType": "d", "Detail": "{}"}]},
        ("ThrottlingException", 400),
        ("AccessDeniedException", 400),
        "InternalFailure",
    ),
]


async def refused(lab: Lab, refusal: Refusal, mode: str) -> tuple[dict[str, Any], list[int]]:
    """The error reply that the SDK raised in the end, and its attempts."""
    aws = client(refusal.service, lab.door, None, mode=mode)
    reply = await call(aws, refusal.operation, **refusal.members)
    aws.close()
    calls = lab.recorder.calls()
    assert len({one.sdk_id for one in calls}) == 1
    return reply, [one.attempt for one in calls]


def code_and_status(reply: dict[str, Any]) -> tuple[str, int]:
    return reply["Error"]["Code"], reply["ResponseMetadata"]["HTTPStatusCode"]


@pytest.mark.parametrize("mode", ["legacy", "standard"])
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.service)
async def test_throttling_is_retried_by_every_mode_until_it_outlasts_it(
    tmp_path: Path, refusal: Refusal, mode: str
) -> None:
    rules = [FaultRule(FaultName.THROTTLE, lasting=True)]
    # Nothing is there to forward to.
    async with gateway_to("http://127.0.0.1:9", tmp_path, "orders", rules=rules) as lab:
        reply, attempts = await refused(lab, refusal, mode)
        assert code_and_status(reply) == refusal.throttled
        legacy = 10 if refusal.service == "dynamodb" else 5
        assert attempts == list(range(1, (legacy if mode == "legacy" else 3) + 1))
        assert reply["ResponseMetadata"]["MaxAttemptsReached"]
        if refusal.service in ("sqs", "sns", "ses"):
            assert reply["Error"]["Type"] == "Sender"
        assert {(one.decision, one.fault) for one in lab.recorder.calls()} <= {
            (Decision.FAILED, "throttle:lasting"),
            (Decision.UNKNOWN, "throttle:lasting"),  # S3's 503 says no more
        }
        assert [one[2] for one in fired(lab)] == attempts


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.service)
async def test_a_missing_permission_is_not_retried(tmp_path: Path, refusal: Refusal) -> None:
    rules = [FaultRule(FaultName.ACCESS_DENIED, lasting=True)]
    async with gateway_to("http://127.0.0.1:9", tmp_path, "orders", rules=rules) as lab:
        reply, attempts = await refused(lab, refusal, "legacy")
        assert code_and_status(reply) == refusal.denied
        assert "not authorized to perform" in reply["Error"]["Message"]
        assert attempts == [1]
        assert (lab.last.decision, lab.last.fault) == (Decision.FAILED, "access-denied:lasting")


@pytest.mark.parametrize("option", [None, "unavailable"])
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.service)
async def test_a_server_error_is_retried(
    tmp_path: Path, refusal: Refusal, option: str | None
) -> None:
    rules = [FaultRule(FaultName.SERVER_ERROR, option=option, lasting=True)]
    async with gateway_to("http://127.0.0.1:9", tmp_path, "orders", rules=rules) as lab:
        reply, attempts = await refused(lab, refusal, "standard")
        expected = ("ServiceUnavailable", 503) if option else (refusal.failing, 500)
        assert code_and_status(reply) == expected
        assert attempts == [1, 2, 3]
        assert lab.last.decision is Decision.UNKNOWN
        assert [row.decision for row in lab.recorder.items()] == (
            [Decision.FAILED] * 3 if refusal.service == "dynamodb" else []
        )


async def test_the_handler_catches_the_exceptions_of_its_client(tmp_path: Path) -> None:
    rules = [FaultRule(FaultName.THROTTLE)]
    async with gateway_to("http://127.0.0.1:9", tmp_path, "orders", rules=rules) as lab:
        exceptions = lab.dynamodb.exceptions
        with pytest.raises(exceptions.ProvisionedThroughputExceededException):
            await asyncio.to_thread(lab.dynamodb.put_item, TableName=lab.table, Item=order("a"))
        sqs = client("sqs", lab.door)
        with pytest.raises(sqs.exceptions.RequestThrottled):
            await asyncio.to_thread(sqs.send_message, QueueUrl="http://q/1/jobs", MessageBody="x")
        sqs.close()


async def test_one_refusal_is_hidden_by_the_sdk(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.THROTTLE))
    retrying(lab)
    reply = await lab.call("put_item", **INSERT)
    assert reply["ResponseMetadata"]["RetryAttempts"] == 1
    assert told(lab) == [
        (Decision.FAILED, "ProvisionedThroughputExceededException", "throttle"),
        (Decision.ACCEPTED, None, None),
    ]
    assert done(lab) == [NOT_MADE, MADE]


async def test_a_server_error_after_the_effect(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.SERVER_ERROR, option="applied"))
    retrying(lab)
    reply = await lab.call("put_item", **INSERT)
    assert reply["Error"]["Code"] == "ConditionalCheckFailedException"
    assert told(lab) == [
        (Decision.UNKNOWN, "InternalServerError", "server-error:applied"),
        (Decision.REJECTED, "ConditionalCheckFailedException", None),
    ]
    assert done(lab) == [MADE, IN_THE_WAY]


async def test_a_refused_read_found_nothing_out(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.SERVER_ERROR))
    reply = await lab.call("get_item", Key=key("a"))
    assert reply["Error"]["Code"] == "InternalServerError"
    assert told(lab) == [(Decision.FAILED, "InternalServerError", "server-error")]
    assert done(lab) == [NOT_MADE]


# --- transactions ---------------------------------------------------------------------


def transaction(lab: Lab) -> dict[str, Any]:
    return {
        "TransactItems": [
            {"Put": {"TableName": lab.table, **INSERT}},
            {"Delete": {"TableName": lab.table, "Key": key("b")}},
        ]
    }


@pytest.mark.parametrize("option", [None, *KINDS[FaultName.TRANSACTION_CANCELLED].options])
async def test_a_transaction_is_cancelled_for_the_chosen_reason(
    open_lab: Opener, direct: Any, option: str | None
) -> None:
    lab = await open_lab(FaultRule(FaultName.TRANSACTION_CANCELLED, option=option))
    retrying(lab)
    members = transaction(lab)
    with pytest.raises(lab.dynamodb.exceptions.TransactionCanceledException) as raised:
        await asyncio.to_thread(lab.dynamodb.transact_write_items, **members)
    reason = {
        None: "ThrottlingError",
        "throttling-error": "ThrottlingError",
        "provisioned-throughput-exceeded": "ProvisionedThroughputExceeded",
        "item-collection-size-limit-exceeded": "ItemCollectionSizeLimitExceeded",
        "validation-error": "ValidationError",
    }[option]
    reply = raised.value.response
    assert [one["Code"] for one in reply["CancellationReasons"]] == [reason, "None"]
    assert reply["CancellationReasons"][0]["Message"]
    assert f"[{reason}, None]" in reply["Error"]["Message"]
    assert reply["ResponseMetadata"]["RetryAttempts"] == 0
    assert [(row.decision, row.error_code) for row in lab.recorder.items()] == [
        (Decision.FAILED, reason),
        (Decision.FAILED, "None"),
    ]
    assert lab.last.decision is Decision.FAILED
    assert stored(lab, direct) == NO_ITEM
    assert lab.recorder.faults()[0].detail == reason


async def test_a_reading_transaction_is_cancelled_too(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.TRANSACTION_CANCELLED))
    gets = [{"Get": {"TableName": lab.table, "Key": key(name)}} for name in "ab"]
    reply = await call(lab.dynamodb, "transact_get_items", TransactItems=gets)
    assert reply["Error"]["Code"] == "TransactionCanceledException"
    assert len(reply["CancellationReasons"]) == 2
    assert done(lab) == [NOT_MADE, NOT_MADE]


async def test_a_single_write_meets_a_transaction(open_lab: Opener, direct: Any) -> None:
    lab = await open_lab(FaultRule(FaultName.TRANSACTION_CONFLICT))
    retrying(lab)
    members = {"TableName": lab.table, **INSERT}
    with pytest.raises(lab.dynamodb.exceptions.TransactionConflictException) as raised:
        await asyncio.to_thread(lab.dynamodb.put_item, **members)
    assert raised.value.response["ResponseMetadata"]["RetryAttempts"] == 0
    assert told(lab) == [(Decision.FAILED, "TransactionConflictException", "transaction-conflict")]
    assert done(lab) == [NOT_MADE]
    assert stored(lab, direct) == NO_ITEM


async def test_a_transaction_meets_another(open_lab: Opener, direct: Any) -> None:
    lab = await open_lab(FaultRule(FaultName.TRANSACTION_CONFLICT))
    reply = await call(lab.dynamodb, "transact_write_items", **transaction(lab))
    assert reply["Error"]["Code"] == "TransactionCanceledException"
    assert [one["Code"] for one in reply["CancellationReasons"]] == ["TransactionConflict", "None"]
    assert [row.error_code for row in lab.recorder.items()] == ["TransactionConflict", "None"]
    assert stored(lab, direct) == NO_ITEM


def test_the_wire_says_message_with_the_capital_that_aws_uses() -> None:
    headers = {"X-Amz-Target": "DynamoDB_20120810.TransactWriteItems"}
    about = subject("POST", "/", headers, b"{}")
    place = Place(Where.CALL, service="dynamodb", operation="TransactWriteItems")
    strike = Strike(1, FaultRule(FaultName.TRANSACTION_CANCELLED), place, 0)
    error = injection(strike, about, call_id=1, actions=2, met=1).error
    assert error is not None
    body = json.loads(error.body)
    assert set(body) == {"__type", "CancellationReasons", "Message"}
    assert body["__type"] == "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"
    assert error.headers["Content-Type"] == "application/x-amz-json-1.0"


@pytest.mark.parametrize("mode", ["legacy", "standard"])
async def test_a_transaction_still_in_progress_while_the_sdk_asks_again(
    open_lab: Opener, mode: str
) -> None:
    lab = await open_lab(FaultRule(FaultName.TRANSACTION_IN_PROGRESS))
    retrying(lab, None, mode)
    reply = await call(lab.dynamodb, "transact_write_items", **transaction(lab))
    assert reply["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert reply["ResponseMetadata"]["RetryAttempts"] == 2
    fault = "transaction-in-progress"
    assert told(lab) == [
        (*NOT_TOLD, fault),
        (Decision.FAILED, "TransactionInProgressException", fault),
        (Decision.ACCEPTED, None, None),
    ]
    puts = [row for row in lab.recorder.items() if row.item_key == item_text(key("a"))]
    assert [(row.action, row.decision) for row in puts] == [
        (Action.PUT, Decision.ACCEPTED),
        (Action.PUT, Decision.FAILED),
        (Action.CHECK, Decision.ACCEPTED),  # the same token: not a second write
    ]
    assert [one.detail for one in lab.recorder.faults()] == [
        "applied, reply lost",
        "asked again while in progress",
    ]


# --- slow -----------------------------------------------------------------------------


async def test_a_slow_reply_is_late_and_the_write_is_not(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.SLOW, seconds=(600, 600), call=1))
    slow = asyncio.create_task(attempt(lab, "put_item", **INSERT))
    await lab.recorder.until(lambda: bool(lab.recorder.faults()))
    assert done(lab) == [MADE]
    # Its key is free: a transaction needs it for itself alone.
    other = client("dynamodb", lab.door)
    reply = await call(other, "transact_write_items", **transaction(lab))
    assert reply["Error"]["Code"] == "TransactionCanceledException"
    other.close()
    assert not slow.done()
    await lab.gateway.close()  # ends the waiting, and the reply leaves
    reply_after = await slow
    assert isinstance(reply_after, dict)
    assert reply_after["ResponseMetadata"]["HTTPStatusCode"] == 200
    first = lab.recorder.calls()[0]
    assert (first.decision, first.fault) == (Decision.ACCEPTED, "slow")
    assert lab.recorder.faults()[0].duration_ns == 600_000_000_000


async def test_a_slow_reply_does_arrive(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.SLOW, seconds=(0.02, 0.02)))
    assert (await lab.call("put_item", **INSERT))["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert lab.last.answered_at is not None
    assert lab.last.answered_at - lab.last.sent_at >= 20_000_000


async def test_nobody_waits_for_a_slow_reply_to_a_handler_that_is_gone(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.SLOW, seconds=(600, 600)))
    impatient = client("dynamodb", lab.door, read_timeout=0.2)
    with pytest.raises(ReadTimeoutError):
        await call(impatient, "put_item", TableName=lab.table, **INSERT)
    impatient.close()
    await lab.recorder.until(lambda: lab.last.answered_at is not None)
    await lab.recorder.until(lambda: lab.last.error_code == "HandlerDisconnected")
    assert (lab.last.decision, lab.last.fault) == (Decision.UNKNOWN, "slow")
    assert done(lab) == [MADE]


async def test_a_long_reply_is_slow_too(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.SLOW, operation="GET bucket-slow", seconds=(0, 0)))
    content = await long_object(lab, "bucket-slow")
    s3 = client("s3", lab.door)
    reply = await call(s3, "get_object", Bucket="bucket-slow", Key="k")
    assert await asyncio.to_thread(reply["Body"].read) == content
    s3.close()
    await lab.recorder.until(lambda: lab.last.answered_at is not None)
    assert (lab.last.decision, lab.last.fault) == (Decision.ACCEPTED, "slow")


async def test_a_long_reply_is_lost_too(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.LOST_REPLY, operation="GET bucket-lost"))
    await long_object(lab, "bucket-lost")
    s3 = client("s3", lab.door)
    with pytest.raises(ConnectionClosedError):
        await call(s3, "get_object", Bucket="bucket-lost", Key="k")
    s3.close()
    assert (lab.last.decision, lab.last.fault) == (Decision.UNKNOWN, "lost-reply")


@pytest.mark.parametrize("name", [FaultName.THROTTLE, FaultName.LOST_REQUEST])
async def test_a_long_request_is_refused_and_sent_again(open_lab: Opener, name: FaultName) -> None:
    bucket = f"bucket-{next(names)}"
    lab = await open_lab(FaultRule(name, operation=f"PUT {bucket}", call=1))
    s3 = client("s3", lab.door, 2)
    place = {"LocationConstraint": "eu-west-1"}
    lab.occupant.current_invocation = None
    await call(s3, "create_bucket", Bucket=bucket, CreateBucketConfiguration=place)
    lab.occupant.current_invocation = 7
    content = b"x" * 3_000_000
    reply = await call(s3, "put_object", Bucket=bucket, Key="k", Body=content)
    assert reply["ResponseMetadata"]["RetryAttempts"] == 1
    head = await call(s3, "head_object", Bucket=bucket, Key="k")
    assert head["ContentLength"] == len(content)
    assert [one.fault for one in lab.recorder.calls()] == [None, name, None, None]
    s3.close()


async def long_object(lab: Lab, bucket: str) -> bytes:
    s3 = client("s3", lab.door)
    place = {"LocationConstraint": "eu-west-1"}
    await call(s3, "create_bucket", Bucket=bucket, CreateBucketConfiguration=place)
    content = b"x" * 3_000_000
    await call(s3, "put_object", Bucket=bucket, Key="k", Body=content)
    s3.close()
    return content


# --- stale reads ----------------------------------------------------------------------


@pytest.fixture
async def stale_lab(open_lab: Opener) -> Lab:
    """Item ``new`` was inserted, ``changed`` overwritten, ``gone`` deleted; all reads lag."""
    lab = await open_lab(FaultRule(FaultName.STALE_READ))
    await lab.call("put_item", Item=order("new", 1))
    await lab.call("put_item", Item=order("changed", 1, note={"S": "first"}))
    await lab.call("put_item", Item=order("changed", 2, note={"S": "second"}))
    await lab.call("put_item", Item=order("gone", 1))
    await lab.call("delete_item", Key=key("gone"))
    assert lab.recorder.faults() == []
    return lab


FIRST = order("changed", 1, note={"S": "first"})


async def test_a_stale_get_answers_from_before_the_last_write(stale_lab: Lab) -> None:
    reply = await stale_lab.call("get_item", Key=key("new"))
    assert "Item" not in reply
    assert (stale_lab.last.decision, stale_lab.last.fault) == (Decision.ACCEPTED, "stale-read")
    (row,) = stale_lab.last_items
    assert (row.action, row.before) == (Action.READ, NO_ITEM)  # what this replica answered
    assert (await stale_lab.call("get_item", Key=key("changed")))["Item"] == FIRST
    assert (await stale_lab.call("get_item", Key=key("gone")))["Item"] == order("gone", 1)
    assert [one.call for one in stale_lab.recorder.faults()] == [6, 7, 8]


async def test_a_stale_get_of_some_attributes(stale_lab: Lab) -> None:
    reply = await stale_lab.call(
        "get_item",
        Key=key("changed"),
        ProjectionExpression="#n, absent",
        ExpressionAttributeNames={"#n": "note"},
    )
    assert reply["Item"] == {"note": {"S": "first"}}
    reply = await stale_lab.call("get_item", Key=key("changed"), AttributesToGet=["quantity"])
    assert reply["Item"] == {"quantity": {"N": "1"}}


async def test_a_stale_batch_get(stale_lab: Lab) -> None:
    keys = [key(name) for name in ("new", "changed", "gone", "never")]
    reply = await call(
        stale_lab.dynamodb, "batch_get_item", RequestItems={stale_lab.table: {"Keys": keys}}
    )
    items = sorted(reply["Responses"][stale_lab.table], key=item_text)
    assert items == sorted([FIRST, order("gone", 1)], key=item_text)
    assert stale_lab.recorder.faults()[0].detail == "items put back: 3"


async def test_a_stale_scan_and_query(stale_lab: Lab) -> None:
    reply = await stale_lab.call("scan")
    assert (reply["Items"], reply["Count"], reply["ScannedCount"]) == ([FIRST], 1, 1)
    reply = await stale_lab.call(
        "query",
        KeyConditionExpression="id = :id",
        ExpressionAttributeValues={":id": {"S": "changed"}},
    )
    assert (reply["Items"], reply["Count"]) == ([FIRST], 1)
    # Whether the earlier image matches a filter is not known here; that it was not there is.
    reply = await stale_lab.call(
        "scan",
        FilterExpression="quantity > :q",
        ExpressionAttributeValues={":q": {"N": "0"}},
    )
    assert [item["quantity"]["N"] for item in reply["Items"]] == ["2"]


async def test_reads_that_must_be_fresh_are(stale_lab: Lab) -> None:
    for operation, members in (
        ("get_item", {"Key": key("new"), "ConsistentRead": True}),
        ("scan", {"ConsistentRead": True}),
    ):
        reply = await stale_lab.call(operation, **members)
        found = reply["Items"] if "Items" in reply else [reply["Item"]]
        assert order("new", 1) in found
    asked = {stale_lab.table: {"Keys": [key("new")], "ConsistentRead": True}}
    reply = await call(stale_lab.dynamodb, "batch_get_item", RequestItems=asked)
    assert reply["Responses"][stale_lab.table] == [order("new", 1)]
    gets = [{"Get": {"TableName": stale_lab.table, "Key": key("new")}}]
    reply = await call(stale_lab.dynamodb, "transact_get_items", TransactItems=gets)
    assert reply["Responses"] == [{"Item": order("new", 1)}]
    assert stale_lab.recorder.faults() == []
    assert {one.fault for one in stale_lab.recorder.calls()} == {None}


async def test_where_nothing_was_written_nothing_is_stale(open_lab: Opener, direct: Any) -> None:
    lab = await open_lab(FaultRule(FaultName.STALE_READ))
    direct.put_item(TableName=lab.table, Item=order("a", 1))  # unseen by the gateway
    assert (await lab.call("get_item", Key=key("a")))["Item"] == order("a", 1)
    assert lab.recorder.faults() == []
    assert lab.injector.opportunities == {1: 1}
    await lab.call("put_item", Item=order("a", 1))  # changes nothing
    assert (await lab.call("get_item", Key=key("a")))["Item"] == order("a", 1)
    assert lab.recorder.faults() == []


async def test_a_write_of_which_nothing_is_known_makes_no_guess(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.STALE_READ))
    await lab.call("put_item", Item=order("a", 1))
    await lab.call("put_item", Item=order("a", 2), ConditionExpression="attribute_not_exists(id)")
    assert "Item" not in await lab.call("get_item", Key=key("a"))  # a rejection is no write


# --- partial batch writes -------------------------------------------------------------


async def test_a_batch_write_is_made_by_half(open_lab: Opener, direct: Any) -> None:
    lab = await open_lab(FaultRule(FaultName.PARTIAL_BATCH_WRITE))
    asked = [{"PutRequest": {"Item": order(name)}} for name in "abc"]
    reply = await call(lab.dynamodb, "batch_write_item", RequestItems={lab.table: asked})
    assert reply["UnprocessedItems"] == {lab.table: asked[2:]}
    assert (lab.last.decision, lab.last.fault) == (Decision.ACCEPTED, "partial-batch-write")
    assert [(row.decision, row.error_code, row.before, row.after) for row in lab.last_items] == [
        (Decision.ACCEPTED, None, NO_ITEM, item_text(order("a"))),
        (Decision.ACCEPTED, None, NO_ITEM, item_text(order("b"))),
        (Decision.FAILED, "UnprocessedItem", NO_ITEM, NO_ITEM),
    ]
    assert [stored(lab, direct, name) for name in "bc"] == [item_text(order("b")), NO_ITEM]
    # What a handler sends again is a call of its own, and a batch of one cannot be halved.
    reply = await call(lab.dynamodb, "batch_write_item", RequestItems=reply["UnprocessedItems"])
    assert reply["UnprocessedItems"] == {}
    assert stored(lab, direct, "c") == item_text(order("c"))
    assert fired(lab) == [("partial-batch-write", 1, 1)]


async def test_a_batch_over_two_tables_is_made_by_half(open_lab: Opener, direct: Any) -> None:
    lab = await open_lab(FaultRule(FaultName.PARTIAL_BATCH_WRITE))
    other = f"other-{next(names)}"
    make_table(direct, other)
    asked = {
        lab.table: [{"PutRequest": {"Item": order("a")}}],
        other: [{"PutRequest": {"Item": order("b")}}, {"DeleteRequest": {"Key": key("c")}}],
    }
    reply = await call(lab.dynamodb, "batch_write_item", RequestItems=asked)
    assert reply["UnprocessedItems"] == {other: [{"DeleteRequest": {"Key": key("c")}}]}
    assert [row.decision for row in lab.last_items] == [
        Decision.ACCEPTED,
        Decision.ACCEPTED,
        Decision.FAILED,
    ]


async def test_a_batch_write_that_the_store_refuses_is_refused(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.PARTIAL_BATCH_WRITE))
    asked = [{"PutRequest": {"Item": item}} for item in (order("a", "four"), order("b"))]
    for table in (lab.table, "nowhere"):  # the keys of the second cannot be told
        reply = await call(lab.dynamodb, "batch_write_item", RequestItems={table: asked})
        assert "Error" in reply
    assert lab.recorder.faults() == []
    assert {one.fault for one in lab.recorder.calls()} == {None}


# --- crashes and timeouts -------------------------------------------------------------


class Mortal(Occupied):
    """An environment that is dead once it was killed."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(2, 7)
        self.settled: list[Decision] = []  # what had become of the items by then
        self.heard: list[bool] = []  # whether its process had noticed anything by then
        self.connection: asyncio.StreamReader | None = None
        self.dead = asyncio.Event()
        self._lab = lab

    async def kill(self) -> None:
        await super().kill()
        self.settled = [row.decision for row in self._lab.recorder.items()]
        assert self.connection is not None
        ended = asyncio.ensure_future(self.connection.read(1))
        for _ in range(20):  # this test and the gateway share one loop: let news get through
            await asyncio.sleep(0)
        self.heard.append(ended.done())
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        self.dead.set()


async def crash(lab: Lab) -> Mortal:
    mortal = Mortal(lab)
    door = await lab.gateway.open_door(mortal)
    mortal.connection, writer = await connect(door)
    scope = b"AWS4-HMAC-SHA256 Credential=id/20260101/eu-west-1/dynamodb/aws4_request"
    request = raw_put(door, lab.table).replace(b"Host:", b"Authorization: %s\r\nHost:" % scope)
    writer.write(request)
    await mortal.dead.wait()
    assert lab.last.answered_at is not None, "on record before the process dies of it"
    writer.close()
    return mortal


async def test_a_crash_before_the_call_leaves_nothing_done(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.CRASH_BEFORE_CALL))
    mortal = await crash(lab)
    assert mortal.killed == 1
    assert mortal.heard == [False]
    assert mortal.settled == [Decision.FAILED]
    assert told(lab)[0] == (Decision.UNKNOWN, "HandlerDisconnected", "crash-before-call")
    assert done(lab)[0] == NOT_MADE
    assert fired(lab) == [("crash-before-call", 1, 1)]


async def test_a_crash_after_the_call_leaves_it_done(open_lab: Opener, direct: Any) -> None:
    lab = await open_lab(FaultRule(FaultName.CRASH_AFTER_CALL))
    mortal = await crash(lab)
    assert mortal.killed == 1
    assert mortal.heard == [False]
    assert mortal.settled == [Decision.ACCEPTED]
    assert told(lab)[0] == (Decision.UNKNOWN, "HandlerDisconnected", "crash-after-call")
    assert done(lab)[0] == MADE
    assert stored(lab, direct) == STORED


async def test_a_crash_does_not_end_a_later_run(open_lab: Opener) -> None:
    lab = await open_lab(FaultRule(FaultName.CRASH_AFTER_CALL))

    class Quick(Occupied):
        """Its run ends while the call is on its way."""

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name == "current_invocation":
                self.current_invocation = 7 if self.looks else 8
                self.looks = max(0, self.looks - 1)
            return value

        looks = 1

    quick = Quick(2, 7)
    aws = client("dynamodb", await lab.gateway.open_door(quick))
    reply = await call(aws, "put_item", TableName=lab.table, **INSERT)
    aws.close()
    assert reply["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert quick.killed == 0
    assert told(lab) == [(Decision.ACCEPTED, None, None)]
    assert lab.recorder.faults() == []


async def test_a_timeout_cuts_the_invocation_off(open_lab: Opener, direct: Any) -> None:
    lab = await open_lab(FaultRule(FaultName.TIMEOUT))
    impatient = client("dynamodb", lab.door, read_timeout=0.2)
    for name in "ab":
        with pytest.raises(ReadTimeoutError):
            await call(impatient, "put_item", TableName=lab.table, Item=order(name))
    impatient.close()
    await lab.recorder.until(
        lambda: all(one.answered_at is not None for one in lab.recorder.calls())
    )
    gone = (Decision.UNKNOWN, "HandlerDisconnected", "timeout")
    assert told(lab) == [gone, gone]
    assert [one[0] for one in done(lab)] == [Decision.ACCEPTED, Decision.FAILED]
    assert [stored(lab, direct, name) for name in "ab"] == [item_text(order("a")), NO_ITEM]
    assert fired(lab) == [("timeout", 1, 1)]
    lab.occupant.current_invocation = 8  # the process that took its place
    lab.injector.begin(8, message_no=2, receive=1)
    lab.injector.end(8)
    reply = await lab.call("put_item", Item=order("c"))
    assert reply["ResponseMetadata"]["HTTPStatusCode"] == 200


# --- which calls are met --------------------------------------------------------------


async def test_only_calls_of_invocations_are_met_and_only_the_first_attempt(
    open_lab: Opener,
) -> None:
    lab = await open_lab(FaultRule(FaultName.THROTTLE, call=2))
    lab.occupant.current_invocation = None
    await lab.call("get_item", Key=key("a"))
    lab.occupant.current_invocation = 7
    retrying(lab)
    for _ in range(3):
        await lab.call("get_item", Key=key("a"))
    assert [one.fault for one in lab.recorder.calls()] == [None, None, "throttle", None, None]
    assert lab.injector.opportunities == {1: 1}
    assert lab.injector.fired == {1: 1}


async def test_a_fault_of_a_service_that_answers_nothing_has_not_fired(tmp_path: Path) -> None:
    rules = [FaultRule(FaultName.LOST_REPLY)]
    async with gateway_to("http://127.0.0.1:9", tmp_path, "orders", rules=rules) as lab:
        assert isinstance(await attempt(lab, "put_item", **INSERT), ConnectionClosedError)
        assert told(lab) == [(Decision.UNKNOWN, "EndpointConnectionError", None)]
        assert lab.recorder.faults() == []


def test_every_fault_of_a_call_is_tried_above() -> None:
    text = Path(__file__).read_text()
    for name, kind in KINDS.items():
        if kind.where is Where.CALL and name is not FaultName.CRASH:
            assert f"FaultName.{name.name}" in text, name
