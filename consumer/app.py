"""The reference handler: one order a message, stored once.

Deployable on its own (standard library and boto3 only). The table's name comes from
``TABLE_NAME``; endpoint, region and credentials come from the environment, as in Lambda.
"""

import json
import os
import uuid
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import ClientError

UNIT_PRICE_CENTS = 250
SHIPPING_CENTS = 100

_client = boto3.client("dynamodb")
_table = os.environ["TABLE_NAME"]
_serialize = TypeSerializer().serialize
_deserialize = TypeDeserializer().deserialize


def parse_order(body: str) -> dict[str, Any]:
    """The order in a message body.

    :raises ValueError: unless the body is a JSON object with exactly ``id`` (text) and
        ``quantity`` (whole number from 1 to 10).
    """
    order = json.loads(body)
    if not isinstance(order, dict) or set(order) != {"id", "quantity"}:
        raise ValueError("an order has exactly the fields id and quantity")
    if not isinstance(order["id"], str) or not order["id"]:
        raise ValueError("id must be text")
    # bool is a subclass of int: true must not pass for 1.
    if type(order["quantity"]) is not int or not 1 <= order["quantity"] <= 10:
        raise ValueError("quantity must be a whole number from 1 to 10")
    return order


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Store the order of the event's one record, or recognise a copy of it.

    Returns ``{id, quantity, processed, duplicate}``.

    :raises ValueError: for a message that is no order, and for an order whose id is
        already stored with other details. The message then returns to the queue.
    """
    _log("EVENT", event)
    records = event["Records"]
    if len(records) != 1:
        raise ValueError(f"expected exactly one record, got {len(records)}")
    order = parse_order(records[0]["body"])
    attempt = uuid.uuid4().hex
    item = order | {
        "total_cents": order["quantity"] * UNIT_PRICE_CENTS + SHIPPING_CENTS,
        "attempt": attempt,
    }
    _log("JOB", item)
    duplicate = False
    try:
        _client.put_item(
            TableName=_table,
            Item={name: _serialize(value) for name, value in item.items()},
            ConditionExpression="attribute_not_exists(id)",
            # The item that made the condition fail, as of that moment: a read afterwards
            # could be stale.
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        stored = {name: _deserialize(value) for name, value in error.response["Item"].items()}
        if any(stored.get(name) != order[name] for name in order):
            raise ValueError(f"order {order['id']} is already stored with other details") from error
        # The SDK sends a request again when its reply was lost: then the item is our own.
        duplicate = stored.get("attempt") != attempt
    result = order | {"processed": not duplicate, "duplicate": duplicate}
    _log("RESULT", result)
    return result


def _log(label: str, value: object) -> None:
    print(label, json.dumps(value, sort_keys=True))
