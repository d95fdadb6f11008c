"""Planted bug (BATCH): only the expected error is reported, the catch-all just logs.

Whatever else goes wrong with a record acknowledges it.

Reports: B9 github-aws-runners/terraform-aws-github-runner#5129.
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
        except ClientError as error:
            print("failed", record["messageId"], error)
            failed.append({"itemIdentifier": record["messageId"]})
        except Exception as error:
            print("unexpected", record["messageId"], error)
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
