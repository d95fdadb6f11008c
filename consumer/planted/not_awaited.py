"""Planted bug (ACK): the work is started in the background, and the answer does not wait.

The message is deleted while the order is not stored yet. When the environment is frozen or
dies, or the work fails, nobody knows of it any more.

Reports: A10 bbc/sqs-consumer#167.
"""

import json
import os
import threading
import time
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer
from botocore.exceptions import ClientError

_table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
_plain = TypeDeserializer().deserialize


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
    order = parse(event["Records"][0]["body"])
    threading.Thread(target=reserve_and_store, args=(order,)).start()
    return {"id": order["id"]}


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answers when the work is done."""
    order = parse(event["Records"][0]["body"])
    reserve_and_store(order)
    return {"id": order["id"]}


def reserve_and_store(order: dict[str, Any]) -> None:
    time.sleep(0.1)  # a call to the warehouse
    store_once(order)


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
