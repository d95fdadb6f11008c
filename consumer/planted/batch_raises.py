"""Planted bug (BATCH): one bad record fails the whole batch.

The failures are collected, and then raised as one error. Records that were stored come
back, and use up their receives together with the bad one.

Reports: B1 aws-powertools/powertools-lambda-java#119, B2 LeanerCloud/CUDly#1574, B5
storacha/indexing-service#159.
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
    failed = []
    for record in event["Records"]:
        try:
            store_once(parse(record["body"]))
        except Exception as error:
            print("failed", record["messageId"], error)
            failed.append({"itemIdentifier": record["messageId"]})
    if failed:
        raise RuntimeError(f"{len(failed)} records failed")
    return {"batchItemFailures": failed}


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Every record is tried, and exactly those that failed are reported."""
    failed = []
    for record in event["Records"]:
        try:
            store_once(parse(record["body"]))
        except Exception as error:
            print("failed", record["messageId"], error)
            failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed}


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
