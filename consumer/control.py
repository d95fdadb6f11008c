"""The control: a handler with a known race, for orders of any shape.

It looks an order up and writes it when missing, without a condition. A load under which
this overwrites nothing would not have shown the same race in another handler. Only the
race matters here: what is no order is acknowledged, and details are not compared.

From the environment: ``TABLE_NAME``, and ``SHAPE``, a JSON list of

* what is around an order: ``sns``, ``eventbridge`` or nothing,
* the place of the order's id in the body: names of members, indexes of lists,
* the table's key attributes: their names, types and texts, in which ``{id}`` is the order's id,
* attributes with the same value in every item: their names, types and texts,
* places in the body and the attributes they become; a full stop in a name leads into a map.
"""

import json
import os
from decimal import Decimal
from typing import Any

import boto3

_table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
_envelope, _id_place, _keys, _fixed, _details = json.loads(os.environ["SHAPE"])


def handler(event: dict[str, Any], context: Any) -> None:
    for record in event["Records"]:
        try:
            order = json.loads(record["body"], parse_float=Decimal)
            if _envelope == "sns":
                order = json.loads(order["Message"], parse_float=Decimal)
            elif _envelope == "eventbridge":
                order = order["detail"]
            order_id = str(at(order, _id_place))
            key = {
                name: value_of(kind, text.replace("{id}", order_id)) for name, kind, text in _keys
            }
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            print("no order", record["messageId"], repr(error))
            continue
        store(order, key)


def store(order: dict[str, Any], key: dict[str, Any]) -> None:
    if "Item" in _table.get_item(Key=key, ConsistentRead=True):
        return
    item: dict[str, Any] = {}
    for place, attribute in _details:
        try:
            value = at(order, place)
        except (TypeError, LookupError):
            continue
        *maps, last = attribute.split(".")
        inner = item
        for name in maps:
            inner = inner.setdefault(name, {})
        inner[last] = value
    fixed = {name: value_of(kind, text) for name, kind, text in _fixed}
    _table.put_item(Item=item | fixed | key)


def at(value: Any, place: list[Any]) -> Any:
    for step in place:
        value = value[step]
    return value


def value_of(kind: str, value: str) -> Any:
    """A value as the store's type S, N or B."""
    match kind:
        case "N":
            return Decimal(value)
        case "B":
            return value.encode()
    return value
