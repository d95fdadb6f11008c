"""A payment and its receipt, from a FIFO queue to a FIFO topic.

The payment is stored as RECEIVED, the receipt is published, the payment becomes RECEIPTED. A
run that ends in between leaves RECEIVED, and the next one publishes again: under the payment's
own deduplication id, so the topic drops what it has sent before.
"""

import contextlib
import json
import os
from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer

payments = boto3.resource("dynamodb").Table(os.environ["PAYMENTS"])
sns = boto3.client("sns")
topic = os.environ["RECEIPTS"]
ConditionFailed = payments.meta.client.exceptions.ConditionalCheckFailedException


def handler(event: dict[str, Any], context: Any) -> None:
    for record in event["Records"]:
        take(parse(record["body"]))


def parse(body: str) -> dict[str, Any]:
    payment = json.loads(body)
    if not isinstance(payment, dict) or set(payment) != {"payment", "cents"}:
        raise ValueError("a payment has exactly payment and cents")
    if not isinstance(payment["payment"], str) or type(payment["cents"]) is not int:
        raise ValueError("payment must be text and cents a whole number")
    if not 1 <= payment["cents"] <= 99_999:
        raise ValueError("cents must be from 1 to 99999")
    return payment


def take(payment: dict[str, Any]) -> None:
    if not store(payment):
        return
    sns.publish(
        TopicArn=topic,
        Message=json.dumps(payment),
        MessageGroupId=payment["payment"],
        MessageDeduplicationId=payment["payment"],
    )
    with contextlib.suppress(ConditionFailed):  # another run of this payment was faster
        payments.update_item(
            Key={"payment": payment["payment"]},
            UpdateExpression="SET #s = :receipted",
            ConditionExpression="#s = :received",
            ExpressionAttributeNames={"#s": "status"},
            ExpressionAttributeValues={":received": "RECEIVED", ":receipted": "RECEIPTED"},
        )


def store(payment: dict[str, Any]) -> bool:
    """Whether its receipt has to be sent, for the first time or again."""
    try:
        payments.put_item(
            Item={**payment, "status": "RECEIVED"},
            ConditionExpression="attribute_not_exists(payment)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except ConditionFailed as error:
        item = error.response["Item"]
        stored = {name: TypeDeserializer().deserialize(value) for name, value in item.items()}
        if stored["cents"] != payment["cents"]:
            raise ValueError(f"{payment['payment']} is stored with other details") from error
        return bool(stored["status"] == "RECEIVED")
    return True
