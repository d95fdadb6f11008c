"""Planted bug (KEY): the guard remembers the queue's message id, not the order's.

A redelivery is recognised. A producer that sends the order again, and a redrive, make a
new message id, and the order is written again.

Reports: K3 AWS knowledge center "Lambda function processes SQS messages more than once",
K5 jasoneisen/idiomatic-critter-stack#9.
"""

import json
import os
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer
from botocore.exceptions import ClientError

_table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
_plain = TypeDeserializer().deserialize
_seen = boto3.resource("dynamodb").Table(os.environ["SEEN_TABLE"])


def parse(body: str) -> dict[str, Any]:
    order = json.loads(body)
    if not isinstance(order, dict) or set(order) != {"id", "quantity"}:
        raise ValueError("an order has exactly the fields id and quantity")
    if not isinstance(order["id"], str) or type(order["quantity"]) is not int:
        raise ValueError("id must be text and quantity a whole number")
    if not 1 <= order["quantity"] <= 10:
        raise ValueError("quantity must be from 1 to 10")
    return order


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    record = event["Records"][0]
    order = parse(record["body"])
    try:
        _seen.put_item(
            Item={"message_id": record["messageId"]},
            ConditionExpression="attribute_not_exists(message_id)",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        return answer(order, False)
    _table.put_item(Item=order)
    return answer(order, True)


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The order's own id is the guard."""
    order = parse(event["Records"][0]["body"])
    return answer(order, store_once(order))


def answer(order: dict[str, Any], new: bool) -> dict[str, Any]:
    return {"id": order["id"], "processed": new, "duplicate": not new}


def store_once(order: dict[str, Any]) -> bool:
    """Insert the order; False for a copy of the one that is there.

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
        return False
    return True
