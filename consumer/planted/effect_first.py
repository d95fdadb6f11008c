"""Planted bug (EFFECT): the receipt goes out before the guard is asked.

A copy, and a conflict that is then refused, have already sent theirs.

Reports: F6 akash-network/console#3449, F7 stripe/ai#402, F8
ForestAdmin/agent-nodejs#1663, C6 juspay/superposition#982.
"""

import json
import os
import time
import uuid
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer
from botocore.exceptions import ClientError

_table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
_plain = TypeDeserializer().deserialize
_sns = boto3.client("sns")

LEASE_MS = 5_000
"""Longer than one run may take, shorter than all deliveries of a message together."""


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
    send_receipt(order)
    return answer(order, store_once(order | {"phase": "DONE"}))


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The claim has an owner and ends by itself; only its owner completes it."""
    order = parse(event["Records"][0]["body"])
    me, now_ms = uuid.uuid4().hex, time.time_ns() // 1_000_000
    claim = {"phase": "CLAIMED", "claimed_by": me, "lease_until": now_ms + LEASE_MS}
    try:
        _table.put_item(
            Item=order | claim,
            ConditionExpression="attribute_not_exists(id) OR "
            "(phase = :claimed AND lease_until < :now AND quantity = :quantity)",
            ExpressionAttributeValues={
                ":claimed": "CLAIMED",
                ":now": now_ms,
                ":quantity": order["quantity"],
            },
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        stored = {name: _plain(value) for name, value in error.response["Item"].items()}
        if stored["quantity"] != order["quantity"]:
            raise ValueError(f"order {order['id']} is stored with other details") from error
        if stored["phase"] == "DONE":
            return answer(order, False)
        # An earlier attempt of this very call, whose reply was lost, may have claimed it.
        if stored["claimed_by"] != me:
            raise RuntimeError("in progress elsewhere, to be tried again") from error
    send_receipt(order)
    _table.update_item(
        Key={"id": order["id"]},
        UpdateExpression="SET phase = :done",
        ConditionExpression="claimed_by = :me",
        ExpressionAttributeValues={":done": "DONE", ":me": me},
    )
    return answer(order, True)


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


def send_receipt(order: dict[str, Any]) -> None:
    _sns.publish(TopicArn=os.environ["RECEIPTS_TOPIC"], Message=json.dumps(order))
