"""Planted bug (CLAIM): an abandoned claim is taken over on the word of an earlier read.

Two copies read the same expired claim, and both take it and complete it: no write after the
read asks whether the claim is still the one that was read.

Reports: L7 aws-powertools/powertools-lambda-typescript#5714.
"""

import json
import os
import time
import uuid
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import ClientError

_table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
_client = boto3.client("dynamodb")
_typed = TypeSerializer().serialize
_plain = TypeDeserializer().deserialize

LEASE_MS = 3_000
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
    return work(order, guarded=False)


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Every write asks for the very claim that it rests on."""
    order = parse(event["Records"][0]["body"])
    return work(order, guarded=True)


def work(order: dict[str, Any], *, guarded: bool) -> dict[str, Any]:
    me, now_ms = uuid.uuid4().hex, time.time_ns() // 1_000_000
    claim = order | {"phase": "CLAIMED", "claimed_by": me, "lease_until": now_ms + LEASE_MS}
    stored = insert(claim)
    if stored is not None and stored.get("claimed_by") != me:
        if stored["quantity"] != order["quantity"]:
            raise ValueError(f"order {order['id']} is stored with other details")
        if stored["phase"] == "DONE":
            return answer(order, False)
        if stored["lease_until"] >= now_ms:
            raise RuntimeError("in progress elsewhere, to be tried again")
        if guarded:
            take_over(claim, stored["claimed_by"])
        else:
            _table.put_item(Item=claim)
    complete(order, me if guarded else None)
    return answer(order, True)


def insert(item: dict[str, Any]) -> dict[str, Any] | None:
    """Put the item where none is; else the one that is there."""
    try:
        _table.put_item(
            Item=item,
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        return {name: _plain(value) for name, value in error.response["Item"].items()}
    return None


def take_over(item: dict[str, Any], former: str) -> None:
    """:raises RuntimeError: the claim is no longer the one that was read."""
    try:
        _table.put_item(
            Item=item,
            ConditionExpression="claimed_by = :former",
            ExpressionAttributeValues={":former": former},
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        raise RuntimeError("taken over elsewhere, to be tried again") from error


def answer(order: dict[str, Any], new: bool) -> dict[str, Any]:
    return {"id": order["id"], "processed": new, "duplicate": not new}


def complete(order: dict[str, Any], owner: str | None) -> None:
    """Send the receipt and call the order done, in one transaction."""
    done = {
        "TableName": os.environ["TABLE_NAME"],
        "Key": typed({"id": order["id"]}),
        "UpdateExpression": "SET phase = :done",
        "ExpressionAttributeValues": typed({":done": "DONE"}),
    }
    if owner is not None:
        done["ConditionExpression"] = "claimed_by = :owner"
        done["ExpressionAttributeValues"] = typed({":done": "DONE", ":owner": owner})
    receipt = {"TableName": os.environ["RECEIPTS_TABLE"], "Item": typed(order)}
    _client.transact_write_items(TransactItems=[{"Update": done}, {"Put": receipt}])


def typed(item: dict[str, Any]) -> dict[str, Any]:
    return {name: _typed(value) for name, value in item.items()}
