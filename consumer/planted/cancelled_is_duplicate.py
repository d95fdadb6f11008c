"""Planted bug (CLASSIFY): every cancelled transaction is read as "already there".

A transaction is also cancelled by a conflict with another one, by throttling and by
validation; those orders are acknowledged and lost.

Reports: E1 aws-samples/sample-voice-of-customer-datalake#350, E2
aws-samples/sample-voice-of-customer-datalake#383, E4 antiwork/gumroad#7452, E5
amzn/smoke-dynamodb#90, E6 guregu/dynamo#203.
"""

import json
import os
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import ClientError

_client = boto3.client("dynamodb")
_name = os.environ["TABLE_NAME"]
_typed = TypeSerializer().serialize
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
        insert(order)
    except ClientError as error:
        if error.response["Error"]["Code"] != "TransactionCanceledException":
            raise
        (reason,) = error.response["CancellationReasons"]
        stored = {name: _plain(value) for name, value in reason.get("Item", {}).items()}
        if stored.get("quantity", order["quantity"]) != order["quantity"]:
            raise ValueError(f"order {order['id']} is stored with other details") from error
        return answer(order, False)
    return answer(order, True)


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """A duplicate only when the failed condition is the only reason."""
    order = parse(event["Records"][0]["body"])
    try:
        insert(order)
    except ClientError as error:
        reasons = error.response.get("CancellationReasons", [])
        if {reason["Code"] for reason in reasons} - {"None"} != {"ConditionalCheckFailed"}:
            raise
        stored = {name: _plain(value) for name, value in reasons[0]["Item"].items()}
        if stored["quantity"] != order["quantity"]:
            raise ValueError(f"order {order['id']} is stored with other details") from error
        return answer(order, False)
    return answer(order, True)


def answer(order: dict[str, Any], new: bool) -> dict[str, Any]:
    return {"id": order["id"], "processed": new, "duplicate": not new}


def insert(order: dict[str, Any]) -> None:
    put = {
        "TableName": _name,
        "Item": {name: _typed(value) for name, value in order.items()},
        "ConditionExpression": "attribute_not_exists(id)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    _client.transact_write_items(TransactItems=[{"Put": put}])
