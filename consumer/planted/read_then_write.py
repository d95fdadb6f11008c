"""Planted bug: looks the order up and writes it when missing, without a condition.

Two copies that both read before either writes both find nothing and both write. Copies
that come one after the other never show it.
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
    found = _table.get_item(Key={"id": order["id"]}, ConsistentRead=True)
    if "Item" in found:
        return order | {"processed": False, "duplicate": True}
    _table.put_item(Item=order | {"total_cents": order["quantity"] * 250 + 100})
    return order | {"processed": True, "duplicate": False}
