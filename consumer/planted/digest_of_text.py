"""Planted bug (COMPARE): the digest is that of the text, not of the order.

The same order in another spelling (order of the keys, ``1.0`` for ``1``, white space, an
escape) has another digest and is refused as a conflict.

Reports: P4 aws-powertools/powertools-lambda-python#638, P5 juspay/clairvoyance#1014, P6
scylladb/scylladb#29501, P7 aws-samples/sample-citadel#80.
"""

import hashlib
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
    order = parse(body)
    digest = hashlib.sha256(body.encode()).hexdigest()
    try:
        _table.put_item(
            Item=order | {"digest": digest},
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        if error.response["Item"]["digest"] != {"S": digest}:
            raise ValueError(f"order {order['id']} is stored with other details") from error
        return answer(order, False)
    return answer(order, True)


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Parsed values are compared, however they were written."""
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
