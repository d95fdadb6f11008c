"""Planted bug (EFFECT): the guard says "done" before the receipt is out.

When the process dies in between, the redelivery is taken for a copy, and the receipt is
never sent.

Reports: F2 langfuse/langfuse#15463, F4 masslight/ottehr#8837, F5
wso2-open-operations/cs-tools#1541.
"""

import json
import os
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import ClientError

_resource = boto3.resource("dynamodb")
_table = _resource.Table(os.environ["TABLE_NAME"])
_receipts = _resource.Table(os.environ["RECEIPTS_TABLE"])
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
    if not store_once(order):
        return answer(order, False)  # the one that stored it may have died on the next line
    _receipts.put_item(Item=order)
    return answer(order, True)


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The receipt is stored with the order, in one transaction."""
    order = parse(event["Records"][0]["body"])
    put = {"TableName": os.environ["RECEIPTS_TABLE"], "Item": typed(order)}
    return answer(order, one_transaction(order, [{"Put": put}]))


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
