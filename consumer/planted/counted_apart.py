"""Planted bug (EFFECT): counters are added to one after another, before the order is stored.

A run that dies in between is repeated from the start, and what was counted is counted again.

Reports: F3 aws-samples/sample-voice-of-customer-datalake#264.
"""

import json
import os
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import ClientError

_resource = boto3.resource("dynamodb")
_table = _resource.Table(os.environ["TABLE_NAME"])
_totals = _resource.Table(os.environ["TOTALS_TABLE"])
_client = boto3.client("dynamodb")
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
    found = _table.get_item(Key={"id": order["id"]}, ConsistentRead=True)
    if "Item" not in found:
        _totals.update_item(Key={"id": order["id"]}, **_add_one("times"))
    return answer(order, store_once(order))


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The order and its counters are one transaction."""
    order = parse(event["Records"][0]["body"])
    add = {
        "TableName": os.environ["TOTALS_TABLE"],
        "Key": typed({"id": order["id"]}),
        "UpdateExpression": "ADD times :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    return answer(order, one_transaction(order, [{"Update": add}]))


def _add_one(name: str) -> dict[str, Any]:
    return {"UpdateExpression": f"ADD {name} :one", "ExpressionAttributeValues": {":one": 1}}


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


def one_transaction(order: dict[str, Any], others: list[dict[str, Any]]) -> bool:
    """Insert the order together with what follows from it; False for a copy.

    :raises ValueError: it is there with other details.
    """
    put = {
        "TableName": os.environ["TABLE_NAME"],
        "Item": typed(order),
        "ConditionExpression": "attribute_not_exists(id)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    try:
        _client.transact_write_items(TransactItems=[{"Put": put}, *others])
    except ClientError as error:
        reasons = error.response.get("CancellationReasons", [])
        if {reason["Code"] for reason in reasons} - {"None"} != {"ConditionalCheckFailed"}:
            raise
        stored = {name: _plain(value) for name, value in reasons[0]["Item"].items()}
        if any(stored.get(name) != order[name] for name in order):
            raise ValueError(f"order {order['id']} is stored with other details") from error
        return False
    return True


def typed(item: dict[str, Any]) -> dict[str, Any]:
    return {name: _typed(value) for name, value in item.items()}
