"""Planted bug (SELF-CONFLICT): a retry of one's own write is taken for somebody else's.

The write is applied, the reply is lost, the SDK sends it again, and the second attempt
fails on the item of the first. The handler reports a duplicate, and so does everybody after
it: nobody reports the order as processed, and what depends on that never happens.

Reports: S1 aws/aws-sdk-java#2667, S3 aws/aws-sdk-go#3765, S4
awslabs/amazon-kinesis-client#59, S5 Tarsnap/kivaloo#155, S6 cds-snc/sre-bot#1495, S7
Netflix/edda#53.
"""

import json
import os
import uuid
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer
from botocore.exceptions import ClientError

_table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
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
    return answer(order, store_once(order))


def correct(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """A mark of this call in the item tells its own write from everybody else's."""
    order = parse(event["Records"][0]["body"])
    return answer(order, store_once(order, mark=uuid.uuid4().hex))


def answer(order: dict[str, Any], new: bool) -> dict[str, Any]:
    return {"id": order["id"], "processed": new, "duplicate": not new}


def store_once(order: dict[str, Any], mark: str = "") -> bool:
    """Insert the order; False for a copy of the one that is there, unless that has our mark.

    :raises ValueError: it is there with other details.
    """
    try:
        _table.put_item(
            Item=order | ({"mark": mark} if mark else {}),
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
            raise
        stored = {name: _plain(value) for name, value in error.response["Item"].items()}
        if any(stored.get(name) != order[name] for name in order):
            raise ValueError(f"order {order['id']} is stored with other details") from error
        return bool(mark) and stored.get("mark") == mark
    return True
