"""The gateway, between real boto3 clients and the real emulator; and misbehaving upstreams."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError

from analysis.schema import NO_ITEM, Action, CallItem, Decision, item_text
from consumer.clock import HostClock
from consumer.gateway import Gateway
from consumer.signing import Signer
from tests.gateway_lab import (
    Lab,
    Occupied,
    WatchedRecorder,
    call,
    client,
    connect,
    gateway_to,
    key,
    make_table,
    names,
    no_faults,
    order,
    raw_put,
)


@pytest.fixture(scope="module")
def direct(emulator_url: str) -> Iterator[Any]:
    """DynamoDB without the gateway."""
    aws = client("dynamodb", emulator_url)
    yield aws
    aws.close()


@pytest.fixture
async def lab(emulator_url: str, direct: Any, tmp_path: Path) -> AsyncIterator[Lab]:
    table = f"orders-{next(names)}"
    make_table(direct, table)
    async with gateway_to(emulator_url, tmp_path, table) as lab:
        yield lab


# --- single writes --------------------------------------------------------------------


async def test_an_accepted_put_shows_what_was_there_and_what_is(lab: Lab) -> None:
    reply = await lab.call(
        "put_item", Item=order("a", "4.0"), ConditionExpression="attribute_not_exists(id)"
    )
    assert "Attributes" not in reply
    assert reply["ResponseMetadata"]["RetryAttempts"] == 0
    call = lab.last
    assert (call.service, call.operation, call.resource) == ("dynamodb", "PutItem", lab.table)
    assert (call.invocation_id, call.attempt, call.decision) == (7, 1, Decision.ACCEPTED)
    assert call.sdk_id is not None
    assert call.answered_at is not None
    assert call.answered_at >= call.sent_at
    assert '"ConditionExpression"' in (call.request or "")
    assert "ALL_OLD" not in (call.request or "")  # what the handler asked, not the gateway
    assert lab.last_items == [
        CallItem(
            call.call_id,
            lab.table,
            item_text(key("a")),
            Action.PUT,
            condition="attribute_not_exists(id)",
            decision=Decision.ACCEPTED,
            before=NO_ITEM,
            after=item_text(order("a", 4)),
        )
    ]


async def test_an_overwrite_shows_the_item_that_was_lost(lab: Lab) -> None:
    await lab.call("put_item", Item=order("a", 1))
    await lab.call("put_item", Item=order("a", 1))
    (item,) = lab.last_items
    assert (item.before, item.after) == (item_text(order("a", 1)), item_text(order("a", 1)))


async def test_a_rejected_put_shows_the_item_that_stood_in_the_way(lab: Lab) -> None:
    await lab.call("put_item", Item=order("a", 1))
    reply = await lab.call(
        "put_item",
        Item=order("a", 2),
        ConditionExpression="#k <> :k OR quantity = :q",
        ExpressionAttributeNames={"#k": "id"},
        ExpressionAttributeValues={":k": {"S": "a"}, ":q": {"N": "3"}},
    )
    assert reply["Error"]["Code"] == "ConditionalCheckFailedException"
    assert "Item" not in reply
    assert (lab.last.decision, lab.last.error_code) == (
        Decision.REJECTED,
        "ConditionalCheckFailedException",
    )
    (item,) = lab.last_items
    assert item.decision is Decision.REJECTED
    assert item.condition == 'id <> "a" OR quantity = 3'
    assert item.before == item.after == item_text(order("a", 1))


async def test_a_handler_that_asks_for_the_old_item_itself_still_gets_it(lab: Lab) -> None:
    await lab.call("put_item", Item=order("a", 1))
    reply = await lab.call("put_item", Item=order("a", 2), ReturnValues="ALL_OLD")
    assert reply["Attributes"] == order("a", 1)
    reply = await lab.call(
        "put_item",
        Item=order("a", 3),
        ConditionExpression="attribute_not_exists(id)",
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
    )
    assert reply["Item"] == order("a", 2)
    (item,) = lab.last_items
    assert item.before == item_text(order("a", 2))


async def test_a_write_the_store_refuses_for_another_reason_has_failed(lab: Lab) -> None:
    reply = await lab.call("put_item", Item=order("a", "four"))
    assert reply["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert (lab.last.decision, lab.last.error_code) == (Decision.FAILED, "ValidationException")
    (item,) = lab.last_items
    assert (item.decision, item.before, item.after) == (Decision.FAILED, None, None)


async def test_a_delete_shows_what_was_deleted(lab: Lab) -> None:
    await lab.call("put_item", Item=order("a", 1))
    assert "Attributes" not in await lab.call("delete_item", Key=key("a"))
    (item,) = lab.last_items
    assert (item.action, item.before, item.after) == (
        Action.DELETE,
        item_text(order("a", 1)),
        NO_ITEM,
    )
    await lab.call("delete_item", Key=key("a"))
    assert [item.before for item in lab.last_items] == [NO_ITEM]


@pytest.mark.parametrize("asked", ["NONE", "ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW"])
async def test_an_update_shows_both_images_whatever_the_handler_asks_for(
    lab: Lab, direct: Any, asked: str
) -> None:
    await lab.call("put_item", Item=order("a", 1))
    await lab.call("put_item", Item=order("b", 1))
    update: dict[str, Any] = {
        "UpdateExpression": "ADD quantity :n",
        "ExpressionAttributeValues": {":n": {"N": "2"}},
        "ReturnValues": asked,
    }
    reply = await lab.call("update_item", Key=key("a"), **update)
    (item,) = lab.last_items
    assert (item.before, item.after) == (item_text(order("a", 1)), item_text(order("a", 3)))
    same = await call(direct, "update_item", TableName=lab.table, Key=key("b"), **update)
    seen, expected = reply.get("Attributes"), same.get("Attributes")
    assert (seen and seen | key("")) == (expected and expected | key(""))

    reply = await lab.call(
        "update_item", Key=key("a"), ConditionExpression="quantity = :n", **update
    )
    assert reply["Error"]["Code"] == "ConditionalCheckFailedException"
    (item,) = lab.last_items
    assert item.decision is Decision.REJECTED
    assert item.before == item.after == item_text(order("a", 3))


async def test_updates_of_one_key_at_once_form_an_unbroken_chain(lab: Lab) -> None:
    aws = [client("dynamodb", lab.door) for _ in range(4)]

    def count(one: Any) -> None:
        for _ in range(5):
            one.update_item(
                TableName=lab.table,
                Key=key("a"),
                UpdateExpression="ADD quantity :n",
                ExpressionAttributeValues={":n": {"N": "1"}},
            )

    await asyncio.gather(*(asyncio.to_thread(count, one) for one in aws))
    for one in aws:
        one.close()
    steps = {item.before: item.after for item in lab.recorder.items()}
    image: str | None = NO_ITEM
    for quantity in range(1, 21):
        image = steps[image]
        assert image == item_text(order("a", quantity))


async def test_the_legacy_condition_is_read_instead_of_changed(lab: Lab) -> None:
    legacy = {"id": {"Exists": False}}
    await lab.call("put_item", Item=order("a", 1), Expected=legacy)
    (item,) = lab.last_items
    assert (item.condition, item.before, item.after) == (
        '{"id": {"Exists": false}}',
        NO_ITEM,
        item_text(order("a", 1)),
    )


# --- transactions and batches ---------------------------------------------------------


def put(table: str, item: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"Put": {"TableName": table, "Item": item, **more}}


async def test_an_accepted_transaction_shows_every_item(lab: Lab) -> None:
    await lab.call("put_item", Item=order("old", 1))
    await lab.call("put_item", Item=order("gone", 2))
    reply = await call(
        lab.dynamodb,
        "transact_write_items",
        TransactItems=[
            put(lab.table, order("new", 5), ConditionExpression="attribute_not_exists(id)"),
            {
                "Update": {
                    "TableName": lab.table,
                    "Key": key("old"),
                    "UpdateExpression": "SET quantity = :q",
                    "ExpressionAttributeValues": {":q": {"N": "9"}},
                }
            },
            {"Delete": {"TableName": lab.table, "Key": key("gone")}},
            {
                "ConditionCheck": {
                    "TableName": lab.table,
                    "Key": key("guard"),
                    "ConditionExpression": "attribute_not_exists(id)",
                }
            },
        ],
    )
    assert reply["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert (lab.last.decision, lab.last.resource) == (Decision.ACCEPTED, None)
    assert [(item.action, item.decision, item.before, item.after) for item in lab.last_items] == [
        (Action.PUT, Decision.ACCEPTED, NO_ITEM, item_text(order("new", 5))),
        (
            Action.UPDATE,
            Decision.ACCEPTED,
            item_text(order("old", 1)),
            item_text(order("old", 9)),
        ),
        (Action.DELETE, Decision.ACCEPTED, item_text(order("gone", 2)), NO_ITEM),
        (Action.CHECK, Decision.ACCEPTED, NO_ITEM, NO_ITEM),
    ]


async def test_a_cancelled_transaction_gives_each_item_its_own_reason(lab: Lab) -> None:
    await lab.call("put_item", Item=order("a", 1))
    reply = await call(
        lab.dynamodb,
        "transact_write_items",
        TransactItems=[
            put(lab.table, order("b", 1)),
            put(lab.table, order("a", 2), ConditionExpression="attribute_not_exists(id)"),
        ],
    )
    assert [reason["Code"] for reason in reply["CancellationReasons"]] == [
        "None",
        "ConditionalCheckFailed",
    ]
    assert (lab.last.decision, lab.last.error_code) == (
        Decision.REJECTED,
        "TransactionCanceledException",
    )
    assert [
        (item.decision, item.error_code, item.before, item.after) for item in lab.last_items
    ] == [
        (Decision.FAILED, "None", NO_ITEM, NO_ITEM),
        (
            Decision.REJECTED,
            "ConditionalCheckFailed",
            item_text(order("a", 1)),
            item_text(order("a", 1)),
        ),
    ]


async def test_a_transaction_made_again_with_its_token_is_not_a_second_write(lab: Lab) -> None:
    for _ in range(2):
        await call(
            lab.dynamodb,
            "transact_write_items",
            TransactItems=[put(lab.table, order("a", 1))],
            ClientRequestToken="order-a",
        )
    first, second = lab.recorder.items()
    assert (first.action, first.before) == (Action.PUT, NO_ITEM)
    assert (second.action, second.decision) == (Action.CHECK, Decision.ACCEPTED)
    assert second.before == second.after == item_text(order("a", 1))


async def test_a_batch_write_shows_every_item(lab: Lab) -> None:
    await lab.call("put_item", Item=order("a", 1))
    await call(
        lab.dynamodb,
        "batch_write_item",
        RequestItems={
            lab.table: [
                {"PutRequest": {"Item": order("a", 2)}},
                {"DeleteRequest": {"Key": key("b")}},
                {"PutRequest": {"Item": order("c", 3)}},
            ]
        },
    )
    assert [(item.action, item.before, item.after) for item in lab.last_items] == [
        (Action.PUT, item_text(order("a", 1)), item_text(order("a", 2))),
        (Action.DELETE, NO_ITEM, NO_ITEM),
        (Action.PUT, NO_ITEM, item_text(order("c", 3))),
    ]


async def test_statements_in_partiql_are_calls_without_items(lab: Lab) -> None:
    await call(
        lab.dynamodb,
        "execute_statement",
        Statement=f"INSERT INTO \"{lab.table}\" VALUE {{'id': 'a'}}",
    )
    assert (lab.last.operation, lab.last.decision) == ("ExecuteStatement", Decision.ACCEPTED)
    assert lab.last_items == []


# --- reads and tables -----------------------------------------------------------------


async def test_reads_show_the_items_they_saw(lab: Lab) -> None:
    for name in "ab":
        await lab.call("put_item", Item=order(name, 1))
    image = item_text(order("a", 1))

    await lab.call("get_item", Key=key("a"))
    assert [(item.action, item.before, item.after) for item in lab.last_items] == [
        (Action.READ, image, image)
    ]
    await lab.call("get_item", Key=key("a"), ProjectionExpression="quantity")
    assert [item.before for item in lab.last_items] == [None]
    await lab.call("get_item", Key=key("none"))
    assert [item.before for item in lab.last_items] == [NO_ITEM]

    keys = [key("a"), key("none")]
    await call(lab.dynamodb, "batch_get_item", RequestItems={lab.table: {"Keys": keys}})
    assert [item.before for item in lab.last_items] == [image, NO_ITEM]
    gets = [{"Get": {"TableName": lab.table, "Key": one}} for one in keys]
    await call(lab.dynamodb, "transact_get_items", TransactItems=gets)
    assert [item.before for item in lab.last_items] == [image, NO_ITEM]

    await lab.call(
        "query",
        KeyConditionExpression="id = :id",
        ExpressionAttributeValues={":id": {"S": "a"}},
    )
    assert [(item.item_key, item.before) for item in lab.last_items] == [
        (item_text(key("a")), image)
    ]
    await lab.call("scan")
    assert len(lab.last_items) == 2
    await lab.call("scan", Select="COUNT")
    assert lab.last_items == []


async def test_a_scan_keeps_no_more_than_a_hundred_rows(lab: Lab, direct: Any) -> None:
    for number in range(120):
        direct.put_item(TableName=lab.table, Item=order(str(number)))
    assert (await lab.call("scan"))["Count"] == 120
    assert len(lab.last_items) == 100


async def test_the_keys_of_a_table_nobody_declared_are_looked_up(lab: Lab, direct: Any) -> None:
    other = f"{lab.table}-other"
    make_table(direct, other, sort=True)
    item = {"id": {"S": "a"}, "version": {"N": "1"}, "text": {"S": "x"}}
    await lab.call("put_item", TableName=other, Item=item)
    (row,) = lab.last_items
    assert (row.resource, row.item_key, row.after) == (
        other,
        item_text({"id": {"S": "a"}, "version": {"N": "1"}}),
        item_text(item),
    )


async def test_a_table_that_does_not_exist_gives_the_handler_the_stores_error(lab: Lab) -> None:
    reply = await lab.call("put_item", TableName="nowhere", Item=order("a"))
    assert reply["Error"]["Code"] == "ResourceNotFoundException"
    assert (lab.last.decision, lab.last.resource) == (Decision.FAILED, "nowhere")
    assert lab.last_items == []


async def test_a_table_named_by_its_arn_is_the_same_table(lab: Lab, direct: Any) -> None:
    arn = direct.describe_table(TableName=lab.table)["Table"]["TableArn"]
    await lab.call("put_item", TableName=arn, Item=order("a"))
    assert [item.resource for item in lab.last_items] == [lab.table]


async def test_calls_outside_an_invocation_are_recorded_as_such(lab: Lab) -> None:
    lab.occupant.current_invocation = None
    await lab.call("get_item", Key=key("a"))
    assert lab.last.invocation_id is None


# --- what the handler sees ------------------------------------------------------------


def visible(reply: dict[str, Any]) -> dict[str, Any]:
    """What a handler can tell apart, but for ids and times of the exchange."""
    metadata = reply["ResponseMetadata"]
    headers = {
        name: value
        for name, value in metadata["HTTPHeaders"].items()
        if name not in ("date", "x-amzn-requestid", "x-amz-request-id", "x-amz-id-2")
    }
    return {
        **reply,
        "ResponseMetadata": {
            "HTTPStatusCode": metadata["HTTPStatusCode"],
            "RetryAttempts": metadata["RetryAttempts"],
            "HTTPHeaders": headers,
        },
    }


async def test_the_reply_is_the_one_without_a_gateway_to_the_byte(
    emulator_url: str, direct: Any, tmp_path: Path
) -> None:
    text = {"text": {"S": 'é "quoted" \U0001f600'}, "list": {"L": [{"N": "1.50"}, {"NULL": True}]}}
    insert = {"ConditionExpression": "attribute_not_exists(id)"}
    failing = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    add = {
        "UpdateExpression": "ADD quantity :n",
        "ExpressionAttributeValues": {":n": {"N": "1"}},
    }
    script: list[tuple[str, dict[str, Any]]] = [
        ("put_item", {"Item": order("a", 1, **text), **insert}),
        ("put_item", {"Item": order("a", 2, **text), **insert}),
        ("put_item", {"Item": order("a", 2, **text), **insert, **failing}),
        ("put_item", {"Item": order("a", 3, **text), "ReturnConsumedCapacity": "TOTAL"}),
        ("put_item", {"Item": order("a", 4, **text), "ReturnValues": "ALL_OLD"}),
        ("put_item", {"Item": order("a", 4, **text), "ReturnValues": "NONE"}),
        ("put_item", {"Item": {"other": {"S": "no key"}}}),
        ("put_item", {"Item": order("a", "four")}),
        ("update_item", {"Key": key("a"), **add}),
        ("update_item", {"Key": key("a"), **add, "ReturnConsumedCapacity": "TOTAL"}),
        ("update_item", {"Key": key("a"), **add, "ReturnValues": "ALL_NEW"}),
        ("update_item", {"Key": key("a"), **add, "ConditionExpression": "quantity < :n"}),
        ("get_item", {"Key": key("a")}),
        ("query", {"KeyConditionExpression": "id = :n", **add} | {"UpdateExpression": None}),
        ("scan", {}),
        ("delete_item", {"Key": key("a"), "ConditionExpression": "attribute_not_exists(id)"}),
        ("delete_item", {"Key": key("a")}),
        ("delete_item", {"Key": key("a"), "ReturnValues": "ALL_OLD"}),
    ]
    script = [
        (operation, {name: value for name, value in members.items() if value is not None})
        for operation, members in script
    ]
    table = f"orders-{next(names)}"
    make_table(direct, table)
    expected = [
        visible(await call(direct, operation, TableName=table, **members))
        for operation, members in script
    ]
    direct.delete_table(TableName=table)
    make_table(direct, table)
    async with gateway_to(emulator_url, tmp_path, table) as lab:
        seen = [visible(await lab.call(operation, **members)) for operation, members in script]
    for (operation, _), one, other in zip(script, seen, expected, strict=True):
        assert one == other, operation


# --- other services -------------------------------------------------------------------


async def test_queue_calls_are_recorded_without_receipt_handles(lab: Lab) -> None:
    sqs = client("sqs", lab.door)
    name = f"{lab.table}-queue"
    url = (await call(sqs, "create_queue", QueueName=name))["QueueUrl"]
    await call(sqs, "send_message", QueueUrl=url, MessageBody="hello")
    assert (lab.last.service, lab.last.operation, lab.last.resource) == ("sqs", "SendMessage", name)
    assert '"hello"' in (lab.last.request or "")
    received = await call(sqs, "receive_message", QueueUrl=url)
    handle = received["Messages"][0]["ReceiptHandle"]
    event = f'{{"Records": [{{"receiptHandle": "{handle}"}}]}}'
    await call(sqs, "send_message", QueueUrl=url, MessageBody=event)
    await call(sqs, "delete_message", QueueUrl=url, ReceiptHandle=handle)
    assert (lab.last.operation, lab.last.decision) == ("DeleteMessage", Decision.ACCEPTED)
    evidence = (lab.recorder.directory / "calls.jsonl").read_text()
    assert handle not in evidence
    assert evidence.count("(removed)") == 4  # two calls, each written twice
    missing = url.replace(name, "nowhere")
    await call(sqs, "send_message", QueueUrl=missing, MessageBody="hello")
    assert lab.last.decision is Decision.FAILED
    assert lab.last.error_code is not None
    sqs.close()


async def test_topic_calls_are_recorded(lab: Lab) -> None:
    sns = client("sns", lab.door)
    topic = (await call(sns, "create_topic", Name=f"{lab.table}-topic"))["TopicArn"]
    reply = await call(sns, "publish", TopicArn=topic, Message="hello")
    assert reply["MessageId"]
    assert (lab.last.service, lab.last.operation, lab.last.resource, lab.last.decision) == (
        "sns",
        "Publish",
        f"{lab.table}-topic",
        Decision.ACCEPTED,
    )
    await call(sns, "publish", TopicArn=f"{topic}-nowhere", Message="hello")
    assert (lab.last.decision, lab.last.error_code) == (Decision.FAILED, "NotFound")
    sns.close()


@pytest.mark.parametrize("size", [0, 1_000, 3_000_000], ids=["empty", "small", "streamed"])
async def test_objects_go_through_unchanged(lab: Lab, size: int) -> None:
    s3 = client("s3", lab.door)
    bucket = f"bucket-{next(names)}"
    content = bytes(number % 251 for number in range(size))
    await call(
        s3,
        "create_bucket",
        Bucket=bucket,
        CreateBucketConfiguration={"LocationConstraint": "eu-west-1"},
    )
    await call(s3, "put_object", Bucket=bucket, Key="a b/ä+1", Body=content)
    assert (lab.last.service, lab.last.operation, lab.last.resource, lab.last.decision) == (
        "s3",
        f"PUT {bucket}",
        bucket,
        Decision.ACCEPTED,
    )
    assert len(lab.last.request or "") < 20_000
    head = await call(s3, "head_object", Bucket=bucket, Key="a b/ä+1")
    assert head["ContentLength"] == size
    reply = await call(s3, "get_object", Bucket=bucket, Key="a b/ä+1")
    assert await asyncio.to_thread(reply["Body"].read) == content
    missing = await call(s3, "get_object", Bucket=bucket, Key="nowhere")
    assert missing["Error"]["Code"] == "NoSuchKey"
    assert (lab.last.decision, lab.last.error_code) == (Decision.FAILED, "NoSuchKey")
    s3.close()


# --- upstreams and handlers that misbehave --------------------------------------------


class Upstream:
    """Answers every request with the same bytes, when it is let, and closes."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.head = self.body = b""  # of the last request
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = (await reader.readuntil(b"\r\n\r\n")).lower()
        for line in self.head.split(b"\r\n"):
            if line.startswith(b"content-length:"):
                self.body = await reader.readexactly(int(line.partition(b":")[2]))
        self.asked.set()
        await self.may_answer.wait()
        writer.write(self.answer)
        writer.close()


def answer(status: str, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), size, body)


@asynccontextmanager
async def lab_before(upstream: Upstream, directory: Path) -> AsyncIterator[Lab]:
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with gateway_to(f"http://127.0.0.1:{port}", directory, "orders") as lab:
            yield lab
    finally:
        server.close()


PUT = {"Item": order("a", 1), "ConditionExpression": "attribute_not_exists(id)"}


@pytest.mark.parametrize(
    "broken",
    [b"", answer("200 OK", b"{", length=100), b"SSH-2.0-OpenSSH_9.7\r\n"],
    ids=["closes", "closes in the middle", "is no HTTP server"],
)
async def test_an_upstream_that_breaks_off_leaves_the_write_unknown(
    broken: bytes, tmp_path: Path
) -> None:
    async with lab_before(Upstream(broken), tmp_path) as lab:
        with pytest.raises(ConnectionClosedError):
            await lab.call("put_item", **PUT)
        assert (lab.last.decision, lab.last.error_code) == (
            Decision.UNKNOWN,
            "ConnectionClosedError",
        )
        (item,) = lab.last_items
        assert (item.decision, item.before, item.after) == (Decision.UNKNOWN, None, None)
        assert lab.gateway.upstream_failures == 1
        assert "PutItem" in (lab.gateway.last_upstream_failure or "")


async def test_an_upstream_that_is_not_there_did_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with gateway_to(f"http://127.0.0.1:{port}", tmp_path, "orders") as lab:
        with pytest.raises((ConnectionClosedError, EndpointConnectionError)):
            await lab.call("put_item", **PUT)
        assert (lab.last.decision, lab.last.error_code) == (
            Decision.UNKNOWN,
            "EndpointConnectionError",
        )
        assert [item.decision for item in lab.last_items] == [Decision.FAILED]
        assert lab.gateway.upstream_failures == 1


@pytest.mark.parametrize(
    ("operation", "members", "decision"),
    [
        ("put_item", PUT, Decision.UNKNOWN),
        ("get_item", {"Key": key("a")}, Decision.FAILED),
    ],
)
async def test_a_server_error_leaves_a_write_unknown_and_a_read_failed(
    operation: str, members: dict[str, Any], decision: Decision, tmp_path: Path
) -> None:
    body = b'{"__type":"com.amazonaws.dynamodb.v20120810#InternalServerError","message":"no"}'
    async with lab_before(Upstream(answer("500 Internal Server Error", body)), tmp_path) as lab:
        reply = await lab.call(operation, **members)
        assert reply["Error"]["Code"] == "InternalServerError"
        assert (lab.last.decision, lab.last.error_code) == (decision, "InternalServerError")
        assert [item.decision for item in lab.last_items] == [decision]
        assert lab.gateway.upstream_failures == 0  # it answered, as AWS does


async def test_a_page_instead_of_a_reply_is_passed_on_and_counted(tmp_path: Path) -> None:
    page = answer("200 OK", b"<html>Welcome to the proxy</html>")
    async with lab_before(Upstream(page), tmp_path) as lab:
        await lab.call("put_item", **PUT)  # botocore takes any 200 for a success
        assert (lab.last.decision, lab.last.error_code) == (Decision.UNKNOWN, "UnreadableReply")
        assert [item.decision for item in lab.last_items] == [Decision.UNKNOWN]
        assert lab.gateway.upstream_failures == 1


async def test_every_attempt_of_the_sdk_is_a_call(tmp_path: Path) -> None:
    async with lab_before(Upstream(b""), tmp_path) as lab:
        retrying = client("sqs", lab.door, attempts=3)
        with pytest.raises(ConnectionClosedError):
            await call(retrying, "delete_message", QueueUrl="http://q/1/jobs", ReceiptHandle="h")
        retrying.close()
        calls = lab.recorder.calls()
        assert [one.attempt for one in calls] == [1, 2, 3]
        assert len({one.sdk_id for one in calls}) == 1


async def test_a_killed_handler_learns_nothing_but_what_it_did_is_kept(tmp_path: Path) -> None:
    upstream = Upstream(answer("200 OK", b"{}"))
    upstream.may_answer.clear()
    async with lab_before(upstream, tmp_path) as lab:
        _, writer = await connect(lab.door)
        writer.write(raw_put(lab.door))
        await upstream.asked.wait()
        writer.transport.abort()
        for _ in range(20):  # gateway, upstream and this test share one loop: let it notice
            await asyncio.sleep(0)
        upstream.may_answer.set()
        await lab.recorder.until(lambda: lab.last.answered_at is not None)
        assert (lab.last.decision, lab.last.error_code) == (
            Decision.UNKNOWN,
            "HandlerDisconnected",
        )
        assert lab.last.service == "dynamodb"  # told by the target: nothing was signed
        (item,) = lab.last_items
        assert (item.decision, item.before, item.after) == (
            Decision.ACCEPTED,
            NO_ITEM,
            item_text(order("a", 1)),
        )


async def test_a_handler_killed_while_sending_has_made_no_call(tmp_path: Path) -> None:
    upstream = Upstream(answer("200 OK", b"{}"))
    async with lab_before(upstream, tmp_path) as lab:
        _, writer = await connect(lab.door)
        writer.write(raw_put(lab.door)[:-5])
        await writer.drain()
        writer.transport.abort()
        # The door still serves others.
        await lab.call("put_item", **PUT)
        assert len(lab.recorder.calls()) == 1


async def test_a_client_that_waits_to_be_told_to_go_on_is_told(tmp_path: Path) -> None:
    async with lab_before(Upstream(answer("200 OK", b"{}")), tmp_path) as lab:
        reader, writer = await connect(lab.door)
        head, _, body = raw_put(lab.door).partition(b"\r\n\r\n")
        writer.write(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        assert lab.last.decision is Decision.ACCEPTED


async def test_a_body_in_chunks_is_understood(tmp_path: Path) -> None:
    async with lab_before(Upstream(answer("200 OK", b"{}")), tmp_path) as lab:
        reader, writer = await connect(lab.door)
        body = raw_put(lab.door).partition(b"\r\n\r\n")[2]
        writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: DynamoDB_20120810.PutItem\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        )
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        assert lab.last_items[0].after == item_text(order("a", 1))


async def ask(door: str, request: bytes) -> bytes:
    """One raw request, and everything that comes back."""
    reader, writer = await connect(door)
    writer.write(request)
    reply = await reader.read()
    writer.close()
    return reply


async def test_compressed_bodies_go_through_as_they_are(tmp_path: Path) -> None:
    packed = gzip.compress(b"hello", mtime=0)
    upstream = Upstream(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s"
        % (len(packed), packed)
    )
    async with lab_before(upstream, tmp_path) as lab:
        reply = await ask(
            lab.door,
            b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n"
            b"Accept-Encoding: gzip\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s"
            % (len(packed), packed),
        )
        assert upstream.body == packed
        assert b"accept-encoding: gzip" in upstream.head
        assert b"x-hop" not in upstream.head
        assert b"user-agent" not in upstream.head
        assert b"Content-Encoding: gzip" in reply
        assert reply.endswith(packed)


async def test_a_reply_that_must_be_read_is_asked_for_uncompressed(tmp_path: Path) -> None:
    upstream = Upstream(answer("200 OK", b"{}"))
    async with lab_before(upstream, tmp_path) as lab:
        request = raw_put(lab.door).replace(
            b"Host:", b"Connection: close\r\nAccept-Encoding: gzip\r\nHost:"
        )
        assert (await ask(lab.door, request)).startswith(b"HTTP/1.1 200 OK")
        assert b"accept-encoding: identity" in upstream.head


async def test_redirects_are_for_the_handler_to_follow(tmp_path: Path) -> None:
    upstream = Upstream(
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n"
    )
    async with lab_before(upstream, tmp_path) as lab:
        reply = await ask(lab.door, b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 307 Temporary Redirect\r\n")
        assert b"Location: http://x/\r\n" in reply


async def test_a_long_reply_that_breaks_off_is_not_made_to_look_whole(tmp_path: Path) -> None:
    upstream = Upstream(answer("200 OK", b"x" * 2_000_000, length=3_000_000))
    async with lab_before(upstream, tmp_path) as lab:
        reply = await ask(lab.door, b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"Content-Length: 3000000\r\n" in reply
        assert len(reply) < 3_000_000
        assert (lab.last.decision, lab.last.error_code) == (
            Decision.UNKNOWN,
            "ConnectionClosedError",
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
async def test_without_evidence_the_handler_gets_no_further(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "calls.jsonl").symlink_to("/dev/full")
    upstream = Upstream(answer("200 OK", b"{}"))
    recorder = WatchedRecorder(tmp_path / "evidence")
    gateway = Gateway("http://127.0.0.1:1", HostClock(), recorder, [], None, no_faults(recorder))
    aws = client("dynamodb", await gateway.open_door(Occupied(1, 1)))
    with pytest.raises(ConnectionClosedError):
        await call(aws, "put_item", TableName="orders", **PUT)
    assert recorder.failure is not None
    assert not upstream.asked.is_set()
    aws.close()
    await gateway.close()
    recorder.close()


# --- signatures -----------------------------------------------------------------------


class CheckingUpstream:
    """Says whether the signature of each request is right, by botocore's own arithmetic."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.right: list[bool] = []
        self.seen: list[web.BaseRequest] = []

    async def serve(self, request: web.BaseRequest) -> web.Response:
        body = await request.content.read()
        head = dict(
            part.strip().split("=", 1)
            for part in request.headers["Authorization"].partition(" ")[2].split(",")
        )
        _, _, region, service, _ = head["Credential"].split("/")
        signed = {name: request.headers[name] for name in head["SignedHeaders"].split(";")}
        again = AWSRequest(request.method, f"http://{request.host}{request.raw_path}", signed, body)
        again.context["timestamp"] = request.headers["X-Amz-Date"]
        auth = SigV4Auth(self.credentials, service, region)
        if service == "s3":
            auth._normalize_url_path = lambda path: path
        signature = auth.signature(auth.string_to_sign(again, auth.canonical_request(again)), again)
        right = signature == head["Signature"] and "host" in signed
        self.right.append(right and request.headers["X-Amz-Security-Token"] == "run-token")
        self.seen.append(request)
        return web.Response(body=b"{}", content_type="application/x-amz-json-1.0")


async def test_what_was_signed_is_signed_again_with_the_runs_own_credentials(
    tmp_path: Path,
) -> None:
    credentials = Credentials("AKIDRUN", "run-secret", "run-token")
    upstream = CheckingUpstream(credentials)
    server = web.Server(upstream.serve, access_log=None)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    host = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with gateway_to(f"http://{host}", tmp_path, "orders", Signer(credentials)) as lab:
        await lab.call("put_item", **PUT)  # changed: the gateway asks for more
        await lab.call("get_item", Key=key("a"))  # unchanged
        await lab.call("update_item", Key=key("a"))  # with a read of the gateway's own
        sqs = client("sqs", lab.door)
        await call(sqs, "send_message", QueueUrl="http://q/1/jobs", MessageBody="x")
        sqs.close()
        s3 = client("s3", lab.door)
        for body in (b"x", b"x" * 2_000_000):
            await call(s3, "put_object", Bucket="bucket", Key="a//b ä", Body=body)
        s3.close()
    assert upstream.right == [True] * 7
    assert {request.host for request in upstream.seen} == {host}
    assert upstream.seen[-1].content_length == 2_000_000  # streamed, not in chunks
    listener.close()
    await server.shutdown(1)


# --- doors ----------------------------------------------------------------------------


async def test_each_door_knows_its_own_invocation(lab: Lab) -> None:
    other = await lab.gateway.open_door(Occupied(2, 99))
    second = client("dynamodb", other)
    await call(second, "get_item", TableName=lab.table, Key=key("a"))
    await lab.call("get_item", Key=key("a"))
    assert [one.invocation_id for one in lab.recorder.calls()] == [99, 7]
    second.close()
