"""The control: a handler with a known race, for orders of any shape.

It looks an order up and writes it when missing, without a condition. A load under which
this overwrites nothing would not have shown the same race in another handler. Only the
race matters here: what is no order is acknowledged, and details are not compared.

From the environment: ``TABLE_NAME``, and ``SHAPE``, a JSON list of

* the field of the body that holds the order's key,
* the table's key attribute and its type,
* attributes with the same value in every item: their names, types and texts,
* how many of these, the first ones, belong to the item's key (a sort key does),
* fields of the body and the attributes they become.
"""

import json
import os
from decimal import Decimal
from typing import Any

import boto3

_table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
_field, (_key, _key_type), _fixed, _in_key, _attributes = json.loads(os.environ["SHAPE"])


def handler(event: dict[str, Any], context: Any) -> None:
    for record in event["Records"]:
        try:
            order = json.loads(record["body"], parse_float=Decimal)
            key = {_key: value_of(_key_type, order[_field])}
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            print("no order", record["messageId"], repr(error))
            continue
        store(order, key)


def store(order: dict[str, Any], key: dict[str, Any]) -> None:
    key |= {name: value_of(kind, text) for name, kind, text in _fixed[:_in_key]}
    if "Item" in _table.get_item(Key=key, ConsistentRead=True):
        return
    details = {attribute: order[field] for field, attribute in _attributes if field in order}
    fixed = {name: value_of(kind, text) for name, kind, text in _fixed}
    _table.put_item(Item=details | fixed | key)


def value_of(kind: str, value: Any) -> Any:
    """A value as the store's type S, N or B."""
    match kind:
        case "N":
            return Decimal(str(value))
        case "B":
            return str(value).encode()
    return str(value)
