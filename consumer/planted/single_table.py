"""Planted bug (KEY): in a table for everything, the record beside the order is the message's.

One transaction stores the order, its line and a record of what was done, and counts. Its only
condition is on the record, whose key is the queue's message id: a second message of the
order has a record of its own, and the order is written again. Each item looks as it should.

Reports: K3 AWS knowledge center "Lambda function processes SQS messages more than once",
K5 jasoneisen/idiomatic-critter-stack#9.
"""

import json
import os
from typing import Any

import boto3
from botocore.exceptions import ClientError

_client = boto3.client("dynamodb")
_name = os.environ["TABLE_NAME"]


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
    record = event["Records"][0]
    order = parse(record["body"])
    return answer(order, stored(order, record["messageId"], {}))


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The record is the order's, and the order itself has a condition too."""
    order = parse(event["Records"][0]["body"])
    return answer(order, stored(order, order["id"], _INSERT))


_INSERT = {"ConditionExpression": "attribute_not_exists(pk)"}


def stored(order: dict[str, Any], done_by: str, condition: dict[str, Any]) -> bool:
    """Whether this call stored it; not when the same is there already."""
    key = {"pk": {"S": f"ORDER#{order['id']}"}, "sk": {"S": "META"}}
    item = key | {"quantity": {"N": str(order["quantity"])}}
    line = {"pk": key["pk"], "sk": {"S": "LINE#1"}, "quantity": item["quantity"]}
    record = {"pk": {"S": f"DONE#{done_by}"}, "sk": {"S": "META"}}
    count = {
        "TableName": _name,
        "Key": {"pk": {"S": "STATS"}, "sk": {"S": "META"}},
        "UpdateExpression": "ADD orders :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    try:
        _client.transact_write_items(
            TransactItems=[
                {"Put": {"TableName": _name, "Item": record, **_INSERT}},
                {"Put": {"TableName": _name, "Item": item, **condition}},
                {"Put": {"TableName": _name, "Item": line}},
                {"Update": count},
            ]
        )
    except ClientError as error:
        reasons = {one["Code"] for one in error.response.get("CancellationReasons", [])}
        if "ConditionalCheckFailed" not in reasons:
            raise
        there = _client.get_item(TableName=_name, Key=key, ConsistentRead=True)["Item"]
        if there != item:
            raise ValueError(f"order {order['id']} is stored with other details") from error
        return False
    return True


def answer(order: dict[str, Any], new: bool) -> dict[str, Any]:
    return {"id": order["id"], "processed": new, "duplicate": not new}
