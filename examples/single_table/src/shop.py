"""An order, its lines and a count of the shop's orders, all in one table and one transaction.

The condition on the order's own item guards the whole: lines and count are written with the
order or not at all.
"""

import json
import os
from decimal import Decimal
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer

client = boto3.client("dynamodb")
table = os.environ["SHOP_TABLE"]


def typed(item: dict[str, Any]) -> dict[str, Any]:
    return {name: TypeSerializer().serialize(value) for name, value in item.items()}


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    for record in event["Records"]:
        take(parse(record["body"]))
    return {}


def parse(body: str) -> dict[str, Any]:
    message = json.loads(body, parse_float=Decimal)
    if not isinstance(message, dict) or set(message) != {"type", "order"}:
        raise ValueError("a message has exactly type and order")
    order = message["order"]
    if message["type"] != "OrderPlaced" or not isinstance(order, dict):
        raise ValueError("not an order that was placed")
    if set(order) != {"number", "shop", "lines"} or not isinstance(order["number"], str):
        raise ValueError("an order has exactly number, shop and lines")
    if order["shop"] not in ("north", "south") or not isinstance(order["lines"], list):
        raise ValueError("no such shop, or no lines")
    for line in order["lines"]:
        if set(line) != {"sku", "quantity"} or not isinstance(line["sku"], str):
            raise ValueError("a line has exactly sku and quantity")
        if type(line["quantity"]) is not int or not 1 <= line["quantity"] <= 9:
            raise ValueError("quantity must be from 1 to 9")
    return order


def take(order: dict[str, Any]) -> None:
    key = f"ORDER#{order['number']}"
    head = {"pk": key, "sk": "ORDER", "shop": order["shop"], "lines": order["lines"]}
    writes: list[dict[str, Any]] = [
        {
            "Put": {
                "TableName": table,
                "Item": typed(head),
                "ConditionExpression": "attribute_not_exists(pk)",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }
    ]
    for number, line in enumerate(order["lines"]):
        item = typed({"pk": key, "sk": f"LINE#{number}", **line})
        writes.append({"Put": {"TableName": table, "Item": item}})
    writes.append(
        {
            "Update": {
                "TableName": table,
                "Key": typed({"pk": f"SHOP#{order['shop']}", "sk": "COUNT"}),
                "UpdateExpression": "ADD orders :one",
                "ExpressionAttributeValues": typed({":one": 1}),
            }
        }
    )
    try:
        client.transact_write_items(TransactItems=writes)
    except client.exceptions.TransactionCanceledException as error:
        reason = error.response["CancellationReasons"][0]
        if reason["Code"] != "ConditionalCheckFailed":
            raise  # met by another transaction: the message comes again
        stored = {name: TypeDeserializer().deserialize(v) for name, v in reason["Item"].items()}
        if stored != head:
            raise ValueError(f"order {order['number']} is stored with other details") from error
