"""Reserves stock for an order, and looks before it does: what happens in between?"""

import json
import os
from typing import Any

import boto3

reservations = boto3.resource("dynamodb").Table(os.environ["RESERVATIONS"])


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    reservation = parse(event["Records"][0]["body"])
    key = {"order_id": reservation["order_id"]}
    stored = reservations.get_item(Key=key, ConsistentRead=True).get("Item")
    if stored is not None:
        if stored != reservation:
            raise ValueError(f"{key} is reserved with other details")
        return {**key, "reserved": False, "duplicate": True}
    # Once more, to be safe. But the key is order_id: no item has an attribute "id", so this
    # condition holds for every item.
    reservations.put_item(Item=reservation, ConditionExpression="attribute_not_exists(id)")
    return {**key, "reserved": True, "duplicate": False}


def parse(body: str) -> dict[str, Any]:
    reservation = json.loads(body)
    if not isinstance(reservation, dict) or set(reservation) != {"order_id", "sku", "pieces"}:
        raise ValueError("a reservation has exactly order_id, sku and pieces")
    if not all(isinstance(reservation[name], str) for name in ("order_id", "sku")):
        raise ValueError("order_id and sku must be text")
    if type(reservation["pieces"]) is not int or not 1 <= reservation["pieces"] <= 20:
        raise ValueError("pieces must be from 1 to 20")
    return reservation
