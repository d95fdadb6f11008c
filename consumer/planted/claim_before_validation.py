"""Planted bug (CLAIM): the claim is made first, and an error after it leaves it behind.

The body is validated when the claim is already there. Each later delivery is told that
the order is in progress.

Reports: L13 Noveum/orbit#455.
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
    body = event["Records"][0]["body"]
    order_id = str(json.loads(body)["id"])
    try:
        _table.put_item(
            Item={"id": order_id, "phase": "CLAIMED"},
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        stored = {name: _plain(value) for name, value in error.response["Item"].items()}
        if stored["phase"] != "DONE":
            raise RuntimeError("in progress elsewhere, to be tried again") from error
        order = parse(body)
        if stored["quantity"] != order["quantity"]:
            raise ValueError(f"order {order_id} is stored with other details") from error
        return answer(order, False)
    order = parse(body)
    _table.update_item(
        Key={"id": order_id},
        UpdateExpression="SET quantity = :quantity, phase = :done",
        ExpressionAttributeValues={":quantity": order["quantity"], ":done": "DONE"},
    )
    return answer(order, True)


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Validated first, and stored in one step: there is no claim to leave behind."""
    order = parse(event["Records"][0]["body"])
    return answer(order, store_once(order | {"phase": "DONE"}))


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
