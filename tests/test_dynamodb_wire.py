"""DynamoDB's wire format, and what any AWS request says about itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.schema import NO_ITEM, Action, CallItem, Decision, item_text
from consumer import aws_wire, dynamodb_wire
from consumer.dynamodb_wire import Exchange, Reply, parse

KEY = {"id": {"S": "a"}}
ITEM = {"id": {"S": "a"}, "quantity": {"N": "4"}}


def body(**members: Any) -> bytes:
    return json.dumps({"TableName": "orders"} | members).encode()


def forwarded(operation: str, **members: Any) -> dict[str, Any]:
    request = parse(operation, body(**members))
    assert request is not None
    sent: dict[str, Any] = json.loads(request.body)
    return sent


# --- what is forwarded ----------------------------------------------------------------


@pytest.mark.parametrize("asked", [{}, {"ReturnValues": "NONE"}, {"ReturnValues": None}])
def test_the_old_item_is_asked_for_where_the_handler_did_not(asked: dict[str, Any]) -> None:
    assert forwarded("PutItem", Item=ITEM, **asked) == {
        "TableName": "orders",
        "Item": ITEM,
        "ReturnValues": "ALL_OLD",
    }


def test_the_rejecting_item_is_asked_for_only_where_there_is_a_condition() -> None:
    sent = forwarded("DeleteItem", Key=KEY, ConditionExpression="attribute_exists(id)")
    assert sent["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
    assert "ReturnValuesOnConditionCheckFailure" not in forwarded("DeleteItem", Key=KEY)


@pytest.mark.parametrize(
    ("operation", "members"),
    [
        ("PutItem", {"Item": ITEM, "ReturnValues": "ALL_OLD"}),
        ("PutItem", {"Item": ITEM, "Expected": {"id": {"Exists": False}}}),
        ("UpdateItem", {"Key": KEY, "ReturnValues": "ALL_NEW"}),
        ("GetItem", {"Key": KEY}),
        ("Query", {"KeyConditionExpression": "id = :id"}),
    ],
)
def test_what_needs_no_change_is_forwarded_as_it_came(
    operation: str, members: dict[str, Any]
) -> None:
    sent = b" " + body(**members)
    request = parse(operation, sent)
    assert request is not None
    assert request.body is sent


def test_values_are_forwarded_letter_by_letter() -> None:
    # Spellings that a decoded and encoded number or text would lose.
    sent = b'{"TableName":"orders","Item":{"id":{"S":"\\u00e9\\/"},"n":{"N":"1.00"}}}'
    request = parse("PutItem", sent)
    assert request is not None
    assert b'"Item":{"id":{"S":"\\u00e9\\/"},"n":{"N":"1.00"}}' in request.body


@pytest.mark.parametrize(
    ("operation", "sent"),
    [
        ("PutItem", b""),
        ("PutItem", b"{"),
        ("PutItem", b"[]"),
        ("PutItem", b"\xff\xfe"),
        ("PutItem", body()),
        ("PutItem", body(Item="a")),
        ("PutItem", body(Item=ITEM, TableName=5)),
        ("UpdateItem", body(Item=ITEM)),
        ("TransactWriteItems", body(TransactItems=[{}])),
        ("TransactWriteItems", body(TransactItems=[{"Put": {"TableName": "orders"}}])),
        ("BatchWriteItem", body(RequestItems={"orders": [{}]})),
        ("BatchGetItem", body(RequestItems={"orders": 1})),
        ("ExecuteStatement", body(Statement="SELECT 1")),
        ("DescribeTable", body()),
        ("", b"{}"),
    ],
)
def test_what_is_not_understood_is_not_guessed(operation: str, sent: bytes) -> None:
    assert parse(operation, sent) is None


@given(
    st.sampled_from(
        ["PutItem", "UpdateItem", "Query", "TransactWriteItems", "BatchGetItem", "GetItem"]
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["TableName", "Item", "Key", "TransactItems", "Put", "Keys"])
                | st.text(),
                inner,
            )
        ),
        max_leaves=12,
    ),
)
def test_no_request_and_no_reply_breaks_the_parser(operation: str, content: Any) -> None:
    text = json.dumps(content).encode()
    parse(operation, text)
    dynamodb_wire.parse_reply(text)
    aws_wire.error_code(400, {}, text)
    aws_wire.subject("POST", "/", {"X-Amz-Target": f"DynamoDB_20120810.{operation}"}, text)


# --- conditions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("attribute_not_exists(id)", "attribute_not_exists(id)"),
        ("attribute_not_exists(#k)", "attribute_not_exists(order-id)"),
        ("#n = :n AND #n < :n2", "#n = 4 AND #n < :n2"),
        ("begins_with(#k, :s)", 'begins_with(order-id, "é")'),
        (":b = :m", 'true = {"M": {"x": {"N": "1"}}}'),
    ],
)
def test_a_condition_is_shown_with_its_names_and_values(expression: str, expected: str) -> None:
    request = parse(
        "PutItem",
        body(
            Item=ITEM,
            ConditionExpression=expression,
            ExpressionAttributeNames={"#k": "order-id"},
            ExpressionAttributeValues={
                ":n": {"N": "4"},
                ":s": {"S": "é"},
                ":b": {"BOOL": True},
                ":m": {"M": {"x": {"N": "1"}}},
            },
        ),
    )
    assert request is not None
    assert request.touches[0].condition == expected


# --- replies --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "left"),
    [
        (b'{"Attributes":{"id":{"S":"a"}}}', b"{}"),
        (b'{"Attributes": {"id": {"S": "a"}}}', b"{}"),
        (b'{"A":{"N":"1.0"},"Attributes":{},"B":"\\u00e9"}', b'{"A":{"N":"1.0"},"B":"\\u00e9"}'),
        (b'{"A": {"N": "1.0"}, "Attributes": {}, "B": 2}', b'{"A": {"N": "1.0"}, "B": 2}'),
        (b'{"A" : 1}', b'{"A" : 1}'),
    ],
)
def test_a_member_is_taken_out_and_the_rest_left_as_it_is(reply: bytes, left: bytes) -> None:
    assert dynamodb_wire.without(reply, "Attributes") == left


@pytest.mark.parametrize(
    ("code", "reasons", "decision"),
    [
        ("ConditionalCheckFailedException", None, Decision.REJECTED),
        ("TransactionCanceledException", ["None", "ConditionalCheckFailed"], Decision.REJECTED),
        (
            "TransactionCanceledException",
            ["ConditionalCheckFailed", "TransactionConflict"],
            Decision.FAILED,
        ),
        ("TransactionCanceledException", ["None", "ThrottlingError"], Decision.FAILED),
        ("TransactionCanceledException", None, Decision.FAILED),
        ("ThrottlingException", None, Decision.FAILED),
    ],
)
def test_only_a_failed_condition_is_a_rejection(
    code: str, reasons: list[str] | None, decision: Decision
) -> None:
    members = {} if reasons is None else {"CancellationReasons": [{"Code": one} for one in reasons]}
    reply = dynamodb_wire.parse_reply(json.dumps(members).encode())
    assert reply is not None
    assert dynamodb_wire.write_decision(Decision.FAILED, code, reply) is decision


def row(action: Action, name: str = "a") -> CallItem:
    return CallItem(1, "orders", item_text({"id": {"S": name}}), action)


def test_an_unprocessed_item_of_a_batch_was_not_written() -> None:
    left = {"orders": [{"PutRequest": {"Item": ITEM}}]}
    request = parse(
        "BatchWriteItem",
        body(
            RequestItems={
                "orders": [{"DeleteRequest": {"Key": {"id": {"S": "b"}}}}, *left["orders"]]
            }
        ),
    )
    reply = dynamodb_wire.parse_reply(json.dumps({"UnprocessedItems": left}).encode())
    assert request is not None
    assert reply is not None
    rows = [row(Action.DELETE, "b"), row(Action.PUT)]
    images = {(one.resource, one.item_key): NO_ITEM for one in rows}
    settled = dynamodb_wire.settle(
        request, rows, Exchange(Decision.ACCEPTED, None, reply, images, images)
    )
    assert [(one.decision, one.error_code, one.after) for one in settled] == [
        (Decision.ACCEPTED, None, NO_ITEM),
        (Decision.FAILED, "UnprocessedItem", NO_ITEM),
    ]


def test_an_unanswered_transaction_keeps_what_was_there_before() -> None:
    put = {"Put": {"TableName": "orders", "Item": ITEM}}
    request = parse("TransactWriteItems", body(TransactItems=[put]))
    assert request is not None
    (settled,) = dynamodb_wire.settle(
        request,
        [row(Action.PUT)],
        Exchange(Decision.UNKNOWN, "HTTP 503", None, {("orders", item_text(KEY)): NO_ITEM}),
    )
    assert (settled.decision, settled.before, settled.after) == (Decision.UNKNOWN, NO_ITEM, None)


def test_a_repeated_token_does_not_hide_a_write_that_changed_something() -> None:
    put = {"Put": {"TableName": "orders", "Item": ITEM}}
    request = parse("TransactWriteItems", body(TransactItems=[put], ClientRequestToken="t"))
    assert request is not None
    assert request.token == "t"
    key = ("orders", item_text(KEY))
    exchange = Exchange(
        Decision.ACCEPTED, None, Reply(), {key: NO_ITEM}, {key: item_text(ITEM)}, replayed=True
    )
    (settled,) = dynamodb_wire.settle(request, [row(Action.PUT)], exchange)
    assert settled.action is Action.PUT


def test_many_keys_are_read_a_hundred_at_a_time() -> None:
    keys = [(f"table-{number % 2}", {"id": {"S": str(number)}}) for number in range(150)]
    requests = dynamodb_wire.read_requests(keys)
    asked = [
        (table, key)
        for _, text in requests
        for table, entry in json.loads(text)["RequestItems"].items()
        for key in entry["Keys"]
    ]
    assert [operation for operation, _ in requests] == ["BatchGetItem", "BatchGetItem"]
    assert sorted(asked, key=str) == sorted(keys, key=str)
    assert all(b'"ConsistentRead":true' in text for _, text in requests)


def test_items_the_store_did_not_get_to_are_not_taken_for_absent() -> None:
    request = parse(
        "BatchGetItem",
        body(RequestItems={"orders": {"Keys": [{"id": {"S": name}} for name in "abc"]}}),
    )
    reply = dynamodb_wire.parse_reply(
        json.dumps(
            {
                "Responses": {"orders": [ITEM]},
                "UnprocessedKeys": {"orders": {"Keys": [{"id": {"S": "b"}}]}},
            }
        ).encode()
    )
    assert request is not None
    assert reply is not None
    rows = dynamodb_wire.read_rows(
        request, 1, Exchange(Decision.ACCEPTED, None, reply), lambda _: ("id",)
    )
    assert [one.before for one in rows] == [item_text(ITEM), None, NO_ITEM]


@pytest.mark.parametrize(
    "members", [{"ProjectionExpression": "id"}, {"IndexName": "by-date"}, {"Select": "COUNT"}]
)
def test_a_part_of_an_item_is_no_image(members: dict[str, Any]) -> None:
    request = parse("Query", body(**members))
    assert request is not None
    rows = dynamodb_wire.read_rows(
        request, 1, Exchange(Decision.ACCEPTED, None, Reply(items=[ITEM])), lambda _: ("id",)
    )
    assert [(one.item_key, one.before) for one in rows] == [(item_text(KEY), None)]


# --- any service ----------------------------------------------------------------------

SCOPED = {"Authorization": "AWS4-HMAC-SHA256 Credential=AKID/20260101/eu-west-1/%s/aws4_request, x"}


@pytest.mark.parametrize(
    ("method", "target", "headers", "text", "expected"),
    [
        (
            "POST",
            "/",
            {"X-Amz-Target": "AmazonSQS.SendMessage", "amz-sdk-request": "attempt=3; max=5"},
            b'{"QueueUrl":"http://h/1/jobs"}',
            ("sqs", None, "SendMessage", "jobs", 3),
        ),
        (
            "POST",
            "/",
            {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"} | SCOPED,
            b"Action=Publish&TopicArn=arn%3Aaws%3Asns%3Aeu-west-1%3A1%3Areceipts",
            ("sns", "eu-west-1", "Publish", "receipts", 1),
        ),
        (
            "PUT",
            "/bucket/a/b?x=1",
            SCOPED,
            b"x",
            ("s3", "eu-west-1", "PUT bucket", "bucket", 1),
        ),
        ("GET", "/v1/things", {}, b"", ("unknown", None, "GET v1", None, 1)),
    ],
)
def test_a_request_says_what_it_asks_of_whom(
    method: str,
    target: str,
    headers: dict[str, str],
    text: bytes,
    expected: tuple[str, str | None, str, str | None, int],
) -> None:
    headers = {name: value.replace("%s", expected[0]) for name, value in headers.items()}
    subject = aws_wire.subject(method, target, headers, text)
    assert (
        subject.service,
        subject.region,
        subject.operation,
        subject.resource,
        subject.attempt,
    ) == expected


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"ReceiptHandle":"AQEB+/x=="}', '{"ReceiptHandle":"(removed)"}'),
        ('{"ReceiptHandle": "AQEB"}', '{"ReceiptHandle": "(removed)"}'),
        (
            '{"B":"{\\"receiptHandle\\": \\"AQEB\\", \\"a\\": 1}"}',
            '{"B":"{\\"receiptHandle\\": \\"(removed)\\", \\"a\\": 1}"}',
        ),
        ("Action=X&ReceiptHandle=AQEB%2Bx&Z=1", "Action=X&ReceiptHandle=(removed)&Z=1"),
        ('{"receipt_handle":{"S":"AQEB"}}', '{"receipt_handle":{"S":"(removed)"}}'),
        ('{"id":{"S":"a"}}', '{"id":{"S":"a"}}'),
    ],
)
def test_receipt_handles_are_left_out(text: str, kept: str) -> None:
    assert aws_wire.request_text("POST", "/", text.encode(), None) == kept


def test_request_texts_are_bounded_and_say_what_they_leave_out() -> None:
    text = aws_wire.request_text("POST", "/", "é".encode() * 100_000, None)
    assert text.startswith("é" * 16_384 + " ... (cut, 200000 bytes")
    assert len(text) < 17_000
    assert (
        aws_wire.request_text("PUT", "/b/k", b"\xff\x00", None) == "PUT /b/k\n(2 bytes, not text)"
    )
    assert aws_wire.request_text("PUT", "/b/k", b"", 9) == "PUT /b/k\n(9 bytes, streamed)"
    presigned = "/b/k?X-Amz-Credential=AKID%2F1&x=1&X-Amz-Signature=abc"
    assert aws_wire.request_text("GET", presigned, b"", None) == (
        "GET /b/k?X-Amz-Credential=(removed)&x=1&X-Amz-Signature=(removed)\n"
    )


@pytest.mark.parametrize(
    ("status", "headers", "text", "code"),
    [
        (200, {}, b"{}", None),
        (
            400,
            {},
            b'{"__type":"com.amazonaws.dynamodb.v20120810#ThrottlingException"}',
            "ThrottlingException",
        ),
        (400, {"x-amzn-errortype": "NotFound:http://internal.amazon.com/x"}, b"", "NotFound"),
        (404, {}, b"<Error><Code>NoSuchKey</Code></Error>", "NoSuchKey"),
        (502, {}, b"<html>bad gateway</html>", "HTTP 502"),
        (500, {}, b"[]", "HTTP 500"),
        (400, {}, b'{"__type": 5}', "HTTP 400"),
    ],
)
def test_an_error_reply_says_its_code(
    status: int, headers: dict[str, str], text: bytes, code: str | None
) -> None:
    assert aws_wire.error_code(status, headers, text) == code


@pytest.mark.parametrize(
    ("status", "reads", "decision"),
    [
        (200, False, Decision.ACCEPTED),
        (400, False, Decision.FAILED),
        (500, False, Decision.UNKNOWN),
        (503, True, Decision.FAILED),
    ],
)
def test_a_server_error_on_a_write_tells_nothing(
    status: int, reads: bool, decision: Decision
) -> None:
    assert aws_wire.decision(status, reads=reads) is decision


def test_what_a_store_left_of_its_half_stays_undone_with_the_other_half() -> None:
    entries = [{"PutRequest": {"Item": {"id": {"S": name}}}} for name in "abcd"]
    body = json.dumps({"RequestItems": {"t": entries[:3], "u": entries[3:]}}).encode()
    request = parse("BatchWriteItem", body)
    assert request is not None
    halves = dynamodb_wire.halved(request)
    assert halves is not None
    half, left = halves
    assert json.loads(half.body) == {"RequestItems": {"t": entries[:2]}}
    assert half.touches == request.touches
    reply = json.dumps({"UnprocessedItems": {"t": entries[:1]}, "more": 1}).encode()
    assert json.loads(dynamodb_wire.with_unprocessed(reply, left)) == {
        "UnprocessedItems": {"t": [entries[0], entries[2]], "u": [entries[3]]},
        "more": 1,
    }
