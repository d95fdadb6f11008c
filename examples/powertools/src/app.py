"""Consumers as they are written with Powertools for AWS Lambda (Python). Not one line knows
of the tester.

``handler``: partial batches, and idempotency by the order's id with a check of its details;
the business write itself has no condition, the idempotency record in front of it is the
guard. ``unvalidated`` leaves the check of the details out.
"""

import json
import os
from typing import Any

import boto3
from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.typing import LambdaContext

orders = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
records = DynamoDBPersistenceLayer(table_name=os.environ["RECORDS_TABLE"])
sns = boto3.client("sns")
processor = BatchProcessor(event_type=EventType.SQS)

checked = IdempotencyConfig(
    event_key_jmespath="id",
    payload_validation_jmespath="quantity",
    raise_on_no_idempotency_key=True,
)
unchecked = IdempotencyConfig(event_key_jmespath="id", raise_on_no_idempotency_key=True)


def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    checked.register_lambda_context(context)
    return process_partial_response(
        event=event, record_handler=take, processor=processor, context=context
    )


def unvalidated(event: dict[str, Any], context: LambdaContext) -> Any:
    unchecked.register_lambda_context(context)
    return process_partial_response(
        event=event, record_handler=take_unchecked, processor=processor, context=context
    )


def take(record: SQSRecord) -> None:
    store(order=parse(record.body))


def take_unchecked(record: SQSRecord) -> None:
    store_unchecked(order=parse(record.body))


def parse(body: str) -> dict[str, Any]:
    order = json.loads(body)
    if not isinstance(order, dict) or set(order) != {"id", "quantity"}:
        raise ValueError("an order has exactly the fields id and quantity")
    if not isinstance(order["id"], str) or type(order["quantity"]) is not int:
        raise ValueError("id must be text and quantity a whole number")
    if not 1 <= order["quantity"] <= 10:
        raise ValueError("quantity must be from 1 to 10")
    return order


def work(order: dict[str, Any]) -> dict[str, Any]:
    orders.put_item(Item=order)
    if "RECEIPTS_TOPIC" in os.environ:
        sns.publish(TopicArn=os.environ["RECEIPTS_TOPIC"], Message=json.dumps(order))
    return order


@idempotent_function(data_keyword_argument="order", config=checked, persistence_store=records)
def store(order: dict[str, Any]) -> dict[str, Any]:
    return work(order)


@idempotent_function(data_keyword_argument="order", config=unchecked, persistence_store=records)
def store_unchecked(order: dict[str, Any]) -> dict[str, Any]:
    return work(order)
