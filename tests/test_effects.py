"""Declared side effects: found in real clients' requests, settled by what the service did."""

from __future__ import annotations

import asyncio
import json
import types
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import botocore.endpoint
import pytest
from botocore.exceptions import ConnectionClosedError
from hypothesis import given
from hypothesis import strategies as st

from analysis.schema import Action, CallItem, Decision, Effect, EffectInfo
from consumer import aws_wire, dynamodb_wire
from consumer.effects import Effects, http_url, order_key
from consumer.faults import FaultName, FaultRule
from tests.gateway_lab import Lab, call, client, gateway_to, key, make_table, names, order

ACCEPTED, REJECTED, FAILED = Decision.ACCEPTED, Decision.REJECTED, Decision.FAILED


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    no_wait = types.SimpleNamespace(sleep=lambda seconds: None)
    monkeypatch.setattr(botocore.endpoint, "time", no_wait)


@pytest.fixture(scope="module")
def direct(emulator_url: str) -> Iterator[Any]:
    aws = client("dynamodb", emulator_url)
    yield aws
    aws.close()


Opener = Callable[..., Awaitable[Lab]]


@pytest.fixture
async def open_lab(emulator_url: str, tmp_path: Path) -> AsyncIterator[Opener]:
    async with AsyncExitStack() as stack:

        async def open_one(effect: str, resource: str | None, *rules: FaultRule) -> Lab:
            service, operation = effect.split(":")
            info = EffectInfo(service, operation, resource, "id", f"{effect} {resource}")
            lab = gateway_to(emulator_url, tmp_path, "orders", rules=rules, effects=[info])
            return await stack.enter_async_context(lab)

        yield open_one


def effects(lab: Lab) -> list[tuple[int, int, str | None, Decision]]:
    return [
        (one.effect, one.position, one.order_key, one.decision) for one in lab.recorder.effects()
    ]


def text(name: str) -> str:
    return json.dumps({"id": name, "quantity": 1})


# --- each service ---------------------------------------------------------------------


async def test_what_is_published_to_a_topic(open_lab: Opener) -> None:
    name = f"receipts-{next(names)}"
    lab = await open_lab("sns:Publish", name)
    sns = client("sns", lab.door)
    topic = (await call(sns, "create_topic", Name=name))["TopicArn"]
    other = (await call(sns, "create_topic", Name=f"{name}-other"))["TopicArn"]
    await call(sns, "publish", TopicArn=topic, Message=text("a"))
    await call(sns, "publish", TopicArn=other, Message=text("b"))
    attributes = {"id": {"DataType": "String", "StringValue": "c"}}
    await call(sns, "publish", TopicArn=topic, Message="thanks", MessageAttributes=attributes)
    await call(
        sns,
        "publish_batch",
        TopicArn=topic,
        PublishBatchRequestEntries=[
            {"Id": "x", "Message": text("d")},
            {"Id": "y", "Message": "no order"},
        ],
    )
    sns.close()
    assert effects(lab) == [
        (1, 1, "a", ACCEPTED),
        (1, 1, "c", ACCEPTED),
        (1, 1, "d", ACCEPTED),
        (1, 2, None, ACCEPTED),
    ]
    assert [one.call_id for one in lab.recorder.effects()] == [3, 5, 6, 6]


async def test_a_topic_that_does_not_exist_was_told_nothing(open_lab: Opener) -> None:
    lab = await open_lab("sns:Publish", "nowhere")
    sns = client("sns", lab.door)
    topic = "arn:aws:sns:eu-west-1:000000000000:nowhere"
    reply = await call(sns, "publish", TopicArn=topic, Message=text("a"))
    sns.close()
    assert "Error" in reply
    assert effects(lab) == [(1, 1, "a", FAILED)]


async def test_what_is_sent_to_a_queue(open_lab: Opener) -> None:
    name = f"outlet-{next(names)}"
    lab = await open_lab("sqs:SendMessage", name)
    sqs = client("sqs", lab.door)
    url = (await call(sqs, "create_queue", QueueName=name))["QueueUrl"]
    await call(sqs, "send_message", QueueUrl=url, MessageBody=text("a"))
    await call(
        sqs,
        "send_message_batch",
        QueueUrl=url,
        Entries=[
            {"Id": "1", "MessageBody": text("b")},
            {"Id": "2", "MessageBody": text("c")},
        ],
    )
    sqs.close()
    assert effects(lab) == [(1, 1, "a", ACCEPTED), (1, 1, "b", ACCEPTED), (1, 2, "c", ACCEPTED)]


async def test_a_fifo_queue_that_drops_what_it_has_already(open_lab: Opener) -> None:
    name = f"outlet-{next(names)}.fifo"
    lab = await open_lab("sqs:SendMessage", name)
    sqs = client("sqs", lab.door)
    reply = await call(sqs, "create_queue", QueueName=name, Attributes={"FifoQueue": "true"})
    for name in ("a", "a", "b"):
        await call(
            sqs,
            "send_message",
            QueueUrl=reply["QueueUrl"],
            MessageBody=text(name),
            MessageGroupId="g",
            MessageDeduplicationId=name,
        )
    sqs.close()
    assert effects(lab) == [(1, 1, "a", ACCEPTED), (1, 1, "a", REJECTED), (1, 1, "b", ACCEPTED)]


async def test_mail(open_lab: Opener) -> None:
    lab = await open_lab("ses:SendEmail", "shop@x.org")
    ses, sesv2 = client("ses", lab.door), client("sesv2", lab.door)
    await call(ses, "verify_email_identity", EmailAddress="shop@x.org")
    message = {"Subject": {"Data": "thanks"}, "Body": {"Text": {"Data": text("a")}}}
    to = {"ToAddresses": ["b@x.org"]}
    await call(ses, "send_email", Source="shop@x.org", Destination=to, Message=message)
    await call(
        sesv2,
        "send_email",
        FromEmailAddress="shop@x.org",
        Destination=to,
        Content={"Simple": {**message, "Body": {"Text": {"Data": "hello"}}}},
        EmailTags=[{"Name": "id", "Value": "b"}],
    )
    await call(ses, "send_email", Source="else@x.org", Destination=to, Message=message)
    ses.close()
    sesv2.close()
    assert effects(lab) == [(1, 1, "a", ACCEPTED), (1, 1, "b", ACCEPTED)]
    assert [one.operation for one in lab.recorder.calls()][1:] == ["SendEmail"] * 3


async def test_items_of_a_second_table(open_lab: Opener, direct: Any) -> None:
    outbox, orders = f"outbox-{next(names)}", f"orders-{next(names)}"
    make_table(direct, outbox)
    make_table(direct, orders)
    lab = await open_lab("dynamodb:PutItem", outbox)
    insert = {"Item": order("a"), "ConditionExpression": "attribute_not_exists(id)"}
    await call(lab.dynamodb, "put_item", TableName=outbox, **insert)
    await call(lab.dynamodb, "put_item", TableName=outbox, **insert)
    await call(lab.dynamodb, "put_item", TableName=orders, **insert)
    await call(lab.dynamodb, "get_item", TableName=outbox, Key=key("a"))
    await call(lab.dynamodb, "delete_item", TableName=outbox, Key=key("a"))
    put = {"Put": {"TableName": outbox, "Item": order("b")}}
    transaction: dict[str, Any] = {
        "TransactItems": [{"Put": {"TableName": orders, "Item": order("b")}}, put],
        "ClientRequestToken": f"token-{outbox}",
    }
    await call(lab.dynamodb, "transact_write_items", **transaction)
    await call(lab.dynamodb, "transact_write_items", **transaction)
    await call(
        lab.dynamodb,
        "batch_write_item",
        RequestItems={outbox: [{"PutRequest": {"Item": order("c")}}]},
    )
    assert effects(lab) == [
        (1, 1, "a", ACCEPTED),
        (1, 1, "a", REJECTED),
        (1, 2, "b", ACCEPTED),
        (1, 2, "b", REJECTED),  # the same token: nothing was done again
        (1, 1, "c", ACCEPTED),
    ]


async def test_a_transaction_declared_by_its_own_name(open_lab: Opener, direct: Any) -> None:
    table = f"outbox-{next(names)}"
    make_table(direct, table)
    lab = await open_lab("dynamodb:TransactWriteItems", table)
    check = {"Key": key("z"), "ConditionExpression": "attribute_not_exists(id)"}
    await call(
        lab.dynamodb,
        "transact_write_items",
        TransactItems=[
            {"ConditionCheck": {"TableName": table, **check}},
            {
                "Update": {
                    "TableName": table,
                    "Key": key("a"),
                    "UpdateExpression": "SET quantity = :q",
                    "ExpressionAttributeValues": {":q": {"N": "1"}},
                }
            },
        ],
    )
    await call(lab.dynamodb, "put_item", TableName=table, Item=order("b"))
    assert effects(lab) == [(1, 2, "a", ACCEPTED)]


# --- HTTP -----------------------------------------------------------------------------


def post(url: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=body, method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


async def test_http_is_answered_by_the_gateway(open_lab: Opener) -> None:
    lab = await open_lab("http:POST", "card charges")
    url = http_url(lab.door, "card charges")
    assert await asyncio.to_thread(post, url, text("a").encode()) == (200, b"{}")
    assert await asyncio.to_thread(post, f"{url}/now?id=b", b"amount=1") == (200, b"{}")
    assert await asyncio.to_thread(post, url, b"id=c&amount=1") == (200, b"{}")
    assert await asyncio.to_thread(post, url, b"", "DELETE") == (200, b"{}")
    other = http_url(lab.door, "refunds")
    assert await asyncio.to_thread(post, other, text("a").encode()) == (200, b"{}")
    assert effects(lab) == [(1, 1, name, ACCEPTED) for name in "abc"]
    first = lab.recorder.calls()[0]
    assert (first.service, first.operation, first.resource) == ("http", "POST", "card charges")
    assert (first.invocation_id, first.decision) == (7, ACCEPTED)
    assert text("a") in (first.request or "")
    assert lab.gateway.upstream_failures == 0


@pytest.mark.parametrize(
    ("name", "status"),
    [
        (FaultName.THROTTLE, 429),
        (FaultName.SERVER_ERROR, 500),
        (FaultName.ACCESS_DENIED, 403),
    ],
)
async def test_http_meets_faults(open_lab: Opener, name: FaultName, status: int) -> None:
    lab = await open_lab("http:POST", "charges", FaultRule(name))
    url = http_url(lab.door, "charges")
    code, body = await asyncio.to_thread(post, url, text("a").encode())
    assert code == status
    assert set(json.loads(body)) == {"error"}
    assert effects(lab) == [(1, 1, "a", FAILED)]
    assert (lab.last.fault, lab.last.error_code) == (name.value, f"HTTP {status}")
    assert [one.name for one in lab.recorder.faults()] == [name.value]


# --- truth under faults ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "decision"),
    [
        (FaultRule(FaultName.LOST_REPLY), ACCEPTED),
        (FaultRule(FaultName.SERVER_ERROR, option="applied"), ACCEPTED),
        (FaultRule(FaultName.LOST_REQUEST), FAILED),
        (FaultRule(FaultName.SERVER_ERROR), FAILED),
        (FaultRule(FaultName.THROTTLE), FAILED),
    ],
    ids=lambda value: value.name if isinstance(value, FaultRule) else "",
)
async def test_an_effect_is_what_the_service_did(
    open_lab: Opener, rule: FaultRule, decision: Decision
) -> None:
    name = f"receipts-{next(names)}"
    lab = await open_lab("sns:Publish", name, rule)
    sns = client("sns", lab.door, 2)
    lab.occupant.current_invocation = None
    topic = (await call(sns, "create_topic", Name=name))["TopicArn"]
    lab.occupant.current_invocation = 7
    assert (await call(sns, "publish", TopicArn=topic, Message=text("a")))["MessageId"]
    sns.close()
    assert [one[3] for one in effects(lab)] == [decision, ACCEPTED]  # the SDK asked again


async def test_an_effect_on_nobody_has_failed(tmp_path: Path) -> None:
    info = EffectInfo("sqs", "SendMessage", "jobs", "id", "sqs:SendMessage jobs")
    async with gateway_to("http://127.0.0.1:9", tmp_path, "orders", effects=[info]) as lab:
        sqs = client("sqs", lab.door)
        with pytest.raises(ConnectionClosedError):
            await call(sqs, "send_message", QueueUrl="http://q/1/jobs", MessageBody=text("a"))
        sqs.close()
        assert effects(lab) == [(1, 1, "a", FAILED)]


# --- replies of batches ---------------------------------------------------------------

PUBLISHES = {
    "Content-Type": "application/x-www-form-urlencoded",
    "Authorization": "AWS4-HMAC-SHA256 Credential=A/20260101/eu-west-1/sns/aws4_request",
}
TOPIC = EffectInfo("sns", "Publish", "t", "id", "sns:Publish t")
QUEUE = EffectInfo("sqs", "SendMessage", "jobs", "id", "sqs:SendMessage jobs")


def test_a_batch_may_be_published_in_part() -> None:
    members = ["Action=PublishBatch", "TopicArn=arn:aws:sns:eu-west-1:1:t"]
    for number, name in enumerate("ab", 1):
        entry = f"PublishBatchRequestEntries.member.{number}"
        members += [f"{entry}.Id=e{number}", f"{entry}.Message=%7B%22id%22%3A%22{name}%22%7D"]
    body = "&".join(members).encode()
    declared = Effects([TOPIC])
    asked = declared.asked(9, aws_wire.subject("POST", "/", PUBLISHES, body), "/", body, None)
    assert [(one.row.position, one.row.order_key) for one in asked] == [(1, "a"), (2, "b")]
    reply = (
        b'<PublishBatchResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">'
        b"<PublishBatchResult><Successful><member><Id>e1</Id><MessageId>m1</MessageId></member>"
        b"</Successful><Failed><member><Id>e2</Id><Code>InternalError</Code></member></Failed>"
        b"</PublishBatchResult></PublishBatchResponse>"
    )
    assert [one.decision for one in declared.settled(asked, ACCEPTED, reply)] == [ACCEPTED, FAILED]


def test_a_batch_may_be_sent_in_part() -> None:
    entries = [{"Id": name, "MessageBody": text(name)} for name in "ab"]
    body = json.dumps({"QueueUrl": "http://q/1/jobs", "Entries": entries}).encode()
    headers = {"X-Amz-Target": "AmazonSQS.SendMessageBatch"}
    subject = aws_wire.subject("POST", "/", headers, body)
    declared = Effects([QUEUE])
    asked = declared.asked(9, subject, "/", body, None)
    reply = b'{"Successful": [{"Id": "b", "MessageId": "m"}], "Failed": [{"Id": "a"}]}'
    assert declared.settled(asked, ACCEPTED, reply) == [
        Effect(9, 1, 1, "a", FAILED),
        Effect(9, 1, 2, "b", ACCEPTED),
    ]


@pytest.mark.parametrize("reply", [b"", b"<broken", b"{", b"[]", b"\xff", b"<a/>"])
def test_a_reply_that_cannot_be_read_says_what_its_status_says(reply: bytes) -> None:
    body = json.dumps({"QueueUrl": "http://q/1/jobs", "MessageBody": text("a")}).encode()
    headers = {"X-Amz-Target": "AmazonSQS.SendMessage"}
    subject = aws_wire.subject("POST", "/", headers, body)
    declared = Effects([QUEUE])
    asked = declared.asked(9, subject, "/", body, None)
    assert [one.decision for one in declared.settled(asked, ACCEPTED, reply)] == [ACCEPTED]


def test_the_items_decide_for_a_table() -> None:
    declared = Effects([EffectInfo("dynamodb", "PutItem", "t", "id", "dynamodb:PutItem t")])
    body = json.dumps(
        {"RequestItems": {"t": [{"PutRequest": {"Item": order(name)}} for name in "ab"]}}
    ).encode()
    headers = {"X-Amz-Target": "DynamoDB_20120810.BatchWriteItem"}
    subject = aws_wire.subject("POST", "/", headers, body)
    wire = dynamodb_wire.parse("BatchWriteItem", body)
    asked = declared.asked(9, subject, "/", body, wire)
    items = [
        CallItem(9, "t", name, Action.PUT, decision=decision)
        for name, decision in (("a", ACCEPTED), ("b", FAILED))
    ]
    settled = declared.settled(asked, ACCEPTED, items=items)
    assert [(one.order_key, one.decision) for one in settled] == [("a", ACCEPTED), ("b", FAILED)]


# --- order keys -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"id": "a"}, "a"),
        ({"id": 4}, "4"),
        ({"id": 4.0}, "4"),
        ({"id": None, "order": {"id": "a"}}, "a"),
        ({"id": True}, None),
        ({"lines": [{"id": "line"}], "order": '{"id": "a"}'}, "line"),
        ({"order": {"id": "a"}, "lines": [{"line": {"id": "line"}}]}, "a"),
        ({"Message": '{"default": "{\\"id\\": \\"a\\"}"}'}, "a"),
        ({"Message": ' [1, {"id": "a"}]'}, "a"),
        ({"Message": "{id: a}"}, None),
        ({"Item": {"id": {"S": "a"}}}, "a"),
        ({"Item": {"id": {"N": "4.0"}}}, "4"),
        ({"Item": {"body": {"S": '{"id": "a"}'}}}, "a"),
        ({"Item": {"details": {"M": {"id": {"S": "a"}}}}}, "a"),
        ({"MessageAttributes": {"id": {"DataType": "String", "StringValue": "a"}}}, "a"),
        ({"entry": {"1": {"Name": "id", "Value": {"StringValue": "a"}}}}, "a"),
        ({"Tags": [{"Name": "id", "Value": "a"}]}, "a"),
        ({"ID": "a"}, None),
        (None, None),
        ("id", None),
    ],
)
def test_the_order_key_is_found_at_any_depth(content: Any, found: str | None) -> None:
    assert order_key(content, "id") == found


@given(
    st.recursive(
        st.sampled_from(["x", "{", "[]", 1, None, True]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "b", "Name", "Value"]), inner, max_size=3)
            | inner.map(json.dumps)
        ),
        max_leaves=12,
    ),
    st.integers(0, 3),
)
def test_a_key_is_found_however_deep_it_lies(noise: Any, depth: int) -> None:
    content: Any = {"id": "wanted"}
    for level in range(depth):
        content = {"noise": noise, "more": json.dumps(content) if level % 2 else [content]}
    assert order_key(content, "id") == "wanted"


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text("ab{[", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["Id", "id", "Name", "Entries", "member"]), inner)
    ),
    max_leaves=8,
)


@given(json_values, json_values, st.binary(max_size=20))
def test_no_request_and_no_reply_breaks_it(entries: Any, receipts: Any, noise: bytes) -> None:
    body = json.dumps({"QueueUrl": "jobs", "Entries": entries}).encode()
    reply = json.dumps({"Failed": receipts, "MessageId": receipts}).encode()
    headers = {"X-Amz-Target": "AmazonSQS.SendMessageBatch"}
    declared = Effects([QUEUE, TOPIC])
    for sent in (body, noise, json.dumps(entries).encode()):
        subject = aws_wire.subject("POST", "/", headers, sent)
        asked = declared.asked(1, subject, "/", sent, None)
        for told in (reply, noise, b"<" + noise, b"<?xml version='1.0' encoding='x'?><a/>"):
            assert len(declared.settled(asked, ACCEPTED, told)) == len(asked)
    form = b"Action=PublishBatch&TopicArn=t&PublishBatchRequestEntries.member=1&" + noise
    subject = aws_wire.subject("POST", "/", PUBLISHES, form)
    declared.asked(1, subject, "/", form, None)


# --- evidence order -------------------------------------------------------------------


async def test_an_effect_is_known_before_it_is_sent(open_lab: Opener) -> None:
    lab = await open_lab("sqs:SendMessage", "jobs", FaultRule(FaultName.SLOW, seconds=(0, 0)))
    sqs = client("sqs", lab.door)
    await call(sqs, "send_message", QueueUrl="http://q/1/jobs", MessageBody=text("a"))
    sqs.close()
    lines = (lab.recorder.directory / "effects.jsonl").read_text().splitlines()
    assert [json.loads(line)["decision"] for line in lines] == ["unknown", "failed"]
