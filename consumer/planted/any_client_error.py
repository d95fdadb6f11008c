"""Planted bug (CLASSIFY): every error of the store is taken for "already there".

Throttling, denied access and validation errors are acknowledged like copies.

Reports: E9 saleor/apps#2181.
"""

import json
import os
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
    try:
        return answer(order, store_once(order))
    except ClientError as error:
        print("already stored", error)  # or throttled, denied, invalid
        return answer(order, False)


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Only the failed condition is special, every other error goes on."""
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
