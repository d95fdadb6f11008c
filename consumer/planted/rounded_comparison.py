"""Planted bug (COMPARE): amounts are compared rounded, so 1.40 passes for a copy of 1.10.

Reports: P8 yantrikos/yantrikdb#77.
"""

import json
import os
from decimal import Decimal
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer
from botocore.exceptions import ClientError

_table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
_plain = TypeDeserializer().deserialize


def parse(body: str) -> dict[str, Any]:
    order = json.loads(body, parse_float=Decimal)
    if not isinstance(order, dict) or set(order) != {"id", "amount"}:
        raise ValueError("an order has exactly the fields id and amount")
    if not isinstance(order["id"], str) or type(order["amount"]) not in (int, Decimal):
        raise ValueError("id must be text and amount a number")
    if not 1 <= order["amount"] <= Decimal("1.4"):
        raise ValueError("amount must be from 1.00 to 1.40")
    return order


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    order = parse(event["Records"][0]["body"])
    try:
        return answer(order, store_once(order))
    except ValueError:
        stored = _table.get_item(Key={"id": order["id"]}, ConsistentRead=True)["Item"]
        if round(stored["amount"]) != round(order["amount"]):
            raise
        return answer(order, False)


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Amounts are compared as they are."""
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
