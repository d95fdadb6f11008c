"""Planted bug (BATCH): the failures are reported to a mapping that does not read them.

Without ``ReportBatchItemFailures`` in the event source mapping an answer is a success,
whatever it says: the messages named in it are deleted.

Reports: B3 aws/aws-lambda-go#430, B4 elastic-ipfs/infrastructure#154.
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
    return {"batchItemFailures": failed}


def correct(event: dict[str, Any], context: Any) -> None:
    """With batches of one and no such setting, raising is the way to report."""
    (record,) = event["Records"]
    store_once(parse(record["body"]))


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
