"""Planted bug (SELF-CONFLICT): an addition is repeated because its reply was lost.

The addition is applied, no reply comes, and the SDK sends the same request again. An
update with ADD has no condition that could stop it: it is applied twice.

Reports: F1 Devlaner/devlane#374, S8 highbar.solutions "DynamoDB errors, part 2".
"""

import json
import os
import uuid
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
    new = store_once(order, uuid.uuid4().hex)
    if new:
        _totals.update_item(
            Key={"id": order["id"]},
            UpdateExpression="ADD times :one",
            ExpressionAttributeValues={":one": 1},
        )
    return answer(order, new)


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """A transaction carries a token: sent again, it is not made again."""
    order = parse(event["Records"][0]["body"])
    add = {
        "TableName": os.environ["TOTALS_TABLE"],
        "Key": typed({"id": order["id"]}),
        "UpdateExpression": "ADD times :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    return answer(order, one_transaction(order, [{"Update": add}]))


def answer(order: dict[str, Any], new: bool) -> dict[str, Any]:
    return {"id": order["id"], "processed": new, "duplicate": not new}


def store_once(order: dict[str, Any], mark: str) -> bool:
    """Insert the order; False for a copy of the one that is there, unless that has our mark.

    :raises ValueError: it is there with other details.
    """
    try:
        _table.put_item(
            Item=order | {"mark": mark},
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        stored = {name: _plain(value) for name, value in error.response["Item"].items()}
        if any(stored.get(name) != order[name] for name in order):
            raise ValueError(f"order {order['id']} is stored with other details") from error
        return stored.get("mark") == mark
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
