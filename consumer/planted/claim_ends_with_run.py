"""Planted bug (CLAIM): a claim is free again when its run has timed out, whatever it did.

The receipt of the first run may be out. The next run takes the claim and sends another.

Reports: L4 aws-powertools/powertools-lambda-python#8049.
"""

import json
import os
import time
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
    now_ms = time.time_ns() // 1_000_000
    ends_ms = now_ms + context.get_remaining_time_in_millis()
    if not claim(order | {"phase": "CLAIMED", "claim_ends": ends_ms}, now_ms):
        return answer(order, False)
    _receipts.put_item(Item=order)
    _table.update_item(
        Key={"id": order["id"]},
        UpdateExpression="SET phase = :done",
        ExpressionAttributeValues={":done": "DONE"},
    )
    return answer(order, True)


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The receipt and "done" are one transaction: there is no time in between."""
    order = parse(event["Records"][0]["body"])
    put = {"TableName": os.environ["RECEIPTS_TABLE"], "Item": typed(order)}
    return answer(order, one_transaction(order | {"phase": "DONE"}, [{"Put": put}]))


def claim(item: dict[str, Any], now_ms: int) -> bool:
    """Take the order; False when it is done.

    :raises ValueError: it is there with other details.
    :raises RuntimeError: somebody else is at work on it.
    """
    try:
        _table.put_item(
            Item=item,
            ConditionExpression="attribute_not_exists(id) OR "
            "(phase = :claimed AND claim_ends < :now AND quantity = :quantity)",
            ExpressionAttributeValues={
                ":claimed": "CLAIMED",
                ":now": now_ms,
                ":quantity": item["quantity"],
            },
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        stored = {name: _plain(value) for name, value in error.response["Item"].items()}
        if stored["quantity"] != item["quantity"]:
            raise ValueError(f"order {item['id']} is stored with other details") from error
        if stored["phase"] != "DONE":
            raise RuntimeError("in progress elsewhere, to be tried again") from error
        return False
    return True


def answer(order: dict[str, Any], new: bool) -> dict[str, Any]:
    return {"id": order["id"], "processed": new, "duplicate": not new}


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
