"""Planted bug: every delivery writes the item, nothing asks whether it is there.

Identical copies look harmless in the table; a conflict silently replaces the order.
"""

import json
import os
from typing import Any

import boto3

_table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    order: dict[str, Any] = json.loads(event["Records"][0]["body"])
    if not isinstance(order.get("id"), str) or type(order.get("quantity")) is not int:
        raise ValueError("not an order")
    if set(order) != {"id", "quantity"} or not 1 <= order["quantity"] <= 10:
        raise ValueError("not an order")
    _table.put_item(Item=order | {"total_cents": order["quantity"] * 250 + 100})
    return order | {"processed": True, "duplicate": False}
