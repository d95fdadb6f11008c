"""Planted bug (KEY): the item's key is made anew in every invocation.

A random key never collides, so the condition on it never fails: each copy is one item more.

Reports: K1 simalexan/api-lambda-save-dynamodb#7, K2 serverless/examples#659.
"""

import json
import os
import uuid
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
    return answer(order, store_once(item_of(order, str(uuid.uuid4()))))


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The key is the order's id."""
    order = parse(event["Records"][0]["body"])
    return answer(order, store_once(item_of(order, order["id"])))


def item_of(order: dict[str, Any], key: str) -> dict[str, Any]:
    return {"id": key, "order_id": order["id"], "quantity": order["quantity"]}


def answer(order: dict[str, Any], new: bool) -> dict[str, Any]:
    return {"id": order["id"], "processed": new, "duplicate": not new}


def store_once(item: dict[str, Any]) -> bool:
    """Insert the order; False for a copy of the one that is there.

    :raises ValueError: it is there with other details.
    """
    try:
        _table.put_item(
            Item=item,
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        stored = {name: _plain(value) for name, value in error.response["Item"].items()}
        if any(stored.get(name) != item[name] for name in item):
            raise ValueError(f"order {item['order_id']} is stored with other details") from error
        return False
    return True
