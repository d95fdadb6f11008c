"""Planted bug (ACK): a poller of its own deletes what it received before it does the work.

An error or a crash after the delete loses the order, and what the delete could not delete
is not looked at. The handler is called on a schedule and polls the queue of ``QUEUE_URL``.

Reports: A1 RichardKnop/machinery#275, A2 worldcoin/iris-mpc#2159, A3
opensearch-project/data-prepper#6999, A4 bbc/sqs-consumer#193, A5
ruby-shoryuken/shoryuken#370, A6 useautumn/autumn#2415, A7
awspring/spring-cloud-aws#925.
"""

import json
import os
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer
from botocore.exceptions import ClientError

_table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
_plain = TypeDeserializer().deserialize
_sqs = boto3.client("sqs")
_queue_url = os.environ["QUEUE_URL"]


def parse(body: str) -> dict[str, Any]:
    order = json.loads(body)
    if not isinstance(order, dict) or set(order) != {"id", "quantity"}:
        raise ValueError("an order has exactly the fields id and quantity")
    if not isinstance(order["id"], str) or type(order["quantity"]) is not int:
        raise ValueError("id must be text and quantity a whole number")
    if not 1 <= order["quantity"] <= 10:
        raise ValueError("quantity must be from 1 to 10")
    return order


def handler(event: dict[str, Any], context: Any) -> None:
    messages = receive()
    delete(messages)
    for message in messages:
        store_once(parse(message["Body"]))


def correct(event: dict[str, Any], context: Any) -> None:
    """Deletes what is done; the rest comes back, and in the end to the dead-letter queue."""
    done = []
    for message in receive():
        try:
            store_once(parse(message["Body"]))
            done.append(message)
        except Exception as error:
            print("left in the queue", message["MessageId"], error)
    for failure in delete(done):
        print("not deleted, it will come back as a copy", failure)


def receive() -> list[dict[str, Any]]:
    found = _sqs.receive_message(QueueUrl=_queue_url, MaxNumberOfMessages=10)
    return list(found.get("Messages", ()))


def delete(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Delete them; the entries that could not be deleted."""
    if not messages:
        return []
    entries = [
        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
        for number, message in enumerate(messages)
    ]
    answer = _sqs.delete_message_batch(QueueUrl=_queue_url, Entries=entries)
    return list(answer.get("Failed", ()))


def store_once(order: dict[str, Any]) -> None:
    """Insert the order, unless it is there.

    :raises ValueError: it is there with other details.
    """
    try:
        _table.put_item(
            Item=order,
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        stored = {name: _plain(value) for name, value in error.response["Item"].items()}
        if any(stored.get(name) != order[name] for name in order):
            raise ValueError(f"order {order['id']} is stored with other details") from error
