"""Stores each order once. Copies are acknowledged; what cannot be stored goes back alone."""

import json
import os
from decimal import Decimal
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer

orders = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
AlreadyThere = orders.meta.client.exceptions.ConditionalCheckFailedException


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    failures = []
    for record in event["Records"]:
        try:
            store(parse(record["body"]))
        except Exception as error:
            print(f"message {record['messageId']} failed: {error!r}")
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}


def parse(body: str) -> dict[str, Any]:
    order = json.loads(body, parse_float=Decimal)
    if not isinstance(order, dict) or set(order) != {"id", "customer", "total"}:
        raise ValueError("an order has exactly id, customer and total")
    if not isinstance(order["id"], str) or not isinstance(order["customer"], str):
        raise ValueError("id and customer must be text")
    if type(order["total"]) not in (int, Decimal) or not 1 <= order["total"] <= 500:
        raise ValueError("total must be from 1 to 500")
    return order


def store(order: dict[str, Any]) -> None:
    try:
        orders.put_item(
            Item=order,
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except AlreadyThere as error:
        item = error.response["Item"]
        stored = {name: TypeDeserializer().deserialize(value) for name, value in item.items()}
        if stored != order:
            raise ValueError(f"order {order['id']} is stored with other details") from error
